"""Layers that people write themselves: a module that calls a convolution or linear function on a weight of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx


def own_layers(graph: fx.Graph, noted: Mapping[str, str]) -> dict[str, str]:
    """The calls among those `noted` (node -> module) that can be cut like the calls of a layer: without groups, and
    with a weight and a bias that nothing else uses."""
    by_name = {node.name: node for node in graph.nodes} if noted else {}
    wrong = {module for name, module in noted.items() if not _is_plain(by_name[name], module)}
    for node in graph.nodes if noted else ():
        if node.op == "get_attr":
            module, _, tensor = str(node.target).rpartition(".")
            if tensor in ("weight", "bias") and any(noted.get(user.name) != module for user in node.users):
                wrong.add(module)
    return {name: module for name, module in noted.items() if module not in wrong}


def _is_plain(node: fx.Node, module: str) -> bool:
    """Whether a function has no groups, and no bias but the module's own."""
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    own = isinstance(bias, fx.Node) and bias.op == "get_attr" and bias.target == f"{module}.bias"
    return (bias is None or own) and type(groups) is int and groups == 1
