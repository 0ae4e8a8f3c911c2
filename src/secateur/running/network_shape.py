"""Which layer feeds which, for drawings of the network: network.json.

Only layers with weights, and the places where several values meet, are listed. Batch norms, activations and pooling
belong to the layer before them.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from secateur.channels.graph import ChannelGraph

FORMAT, VERSION = "secateur-network", 1
INPUT, LAYER, JOIN, OUTPUT = "input", "layer", "join", "output"


def network_shape(graph: ChannelGraph) -> dict[str, Any]:
    """Nodes in the order of execution; each has its kind, its name, and the numbers of the nodes that it reads."""
    traced = graph.found.traced
    nodes: list[dict[str, Any]] = []
    origin: dict[fx.Node, int] = {}  # call -> the node that its value comes from

    def add(kind: str, name: str, sources: list[int]) -> int:
        nodes.append({"kind": kind, "name": name, "from": sources})
        return len(nodes) - 1

    for call in traced.graph.nodes:
        sources = list(dict.fromkeys(origin[each] for each in call.all_input_nodes if each in origin))
        layer = traced.layer_of(call)
        if call.op == "placeholder":
            origin[call] = add(INPUT, call.name, [])
        elif call.op == "output":
            add(OUTPUT, "output", sources)
        elif layer in graph.layers:
            origin[call] = add(LAYER, str(layer), sources)
        elif len(sources) > 1:
            origin[call] = add(JOIN, _operation(call), sources)
        elif sources:
            origin[call] = sources[0]
    return {"format": FORMAT, "version": VERSION, "nodes": nodes}


def _operation(call: fx.Node) -> str:
    """add, cat, mul: the name of a function or method; the last part of a module's name."""
    found = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", str(call.target))
    last = found.rpartition(".")[2].strip("_")
    return {"iadd": "add", "imul": "mul", "concat": "cat"}.get(last, last)
