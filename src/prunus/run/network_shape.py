"""Which layer feeds which, for drawings of the network: network.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from prunus.graph.channel_graph import ChannelGraph
from prunus.run.folder import NETWORK, RunFolder

FORMAT, VERSION = "prunus-network", 1
INPUT, LAYER, JOIN, OUTPUT = "input", "layer", "join", "output"


@dataclass(frozen=True)
class Node:
    """A layer, or a place where values meet."""

    kind: str
    name: str
    sources: tuple[int, ...]  # places of the nodes that it reads


def network_shape(graph: ChannelGraph) -> list[Node]:
    """The nodes in the order of execution."""
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
    return nodes


def write_network(folder: RunFolder, graph: ChannelGraph) -> None:
    """Write network.json."""
    nodes = [{"kind": node.kind, "name": node.name, "from": node.sources} for node in network_shape(graph)]
    folder.write(NETWORK, {"format": FORMAT, "version": VERSION, "nodes": nodes})


def read_network(folder: RunFolder) -> tuple[Node, ...]:
    """The nodes in network.json; none if there is no such file."""

    def build(record: dict[str, Any]) -> tuple[Node, ...]:
        return tuple(Node(each["kind"], each["name"], tuple(each["from"])) for each in record.get("nodes", []))

    return folder.parse(NETWORK, build) if folder.has(NETWORK) else ()
