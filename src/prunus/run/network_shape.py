"""Which layer feeds which, for drawings of the network: network.json."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from prunus.graph.channel_graph import ChannelGraph

INPUT, LAYER, JOIN, OUTPUT = "input", "layer", "join", "output"


@dataclass(frozen=True)
class Node:
    """A layer, or a place where values meet."""

    kind: str
    name: str
    sources: tuple[int, ...]  # places of the nodes that it reads


@dataclass(frozen=True)
class NetworkShape:
    """network.json."""

    nodes: tuple[Node, ...]  # in the order of execution


def network_shape(graph: ChannelGraph) -> NetworkShape:
    """The layers of a network, and where their values meet."""
    traced = graph.analysis.traced
    nodes: list[Node] = []
    origin: dict[fx.Node, int] = {}  # call -> the node that its value comes from
    for call in traced.graph.nodes:
        sources = tuple(dict.fromkeys(origin[each] for each in call.all_input_nodes if each in origin))
        layer = traced.layer_of(call)
        if call.op == "placeholder":
            kind, name = INPUT, call.name
        elif call.op == "output":
            kind, name = OUTPUT, "output"
        elif layer in graph.layers:
            kind, name = LAYER, str(layer)
        elif len(sources) > 1:  # add, cat, mul: the name of a function or method; the last part of a module's name
            target = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", str(call.target))
            name = target.rpartition(".")[2].strip("_")
            kind, name = JOIN, {"iadd": "add", "imul": "mul", "concat": "cat"}.get(name, name)
        else:  # a call that only passes a value on
            if sources:
                origin[call] = sources[0]
            continue
        origin[call] = len(nodes)
        nodes.append(Node(kind, name, sources))
    return NetworkShape(tuple(nodes))
