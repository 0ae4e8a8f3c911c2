"""Modules that stand for those of a removed branch, and recorded graphs without a trace of them.

The code of the model runs as it is with these modules. What is left of a removed branch when it runs is an addition of
zeros. Recorded graphs do not have it, and so networks that were pruned before, exported files and engines do not.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from prunus.graph.traced import Traced, named_modules

ADDITIONS, ADDITION_METHODS = (operator.add, operator.iadd, torch.add), ("add", "add_")
# Functions of which zeros are zeros again; a product is zero if one of its factors is.
ZERO_STAYS = frozenset(
    (
        *("mul", "imul", "multiply", "truediv", "div", "neg"),
        *("relu", "relu_", "relu6", "silu", "gelu", "hardswish", "tanh", "leaky_relu", "elu"),
        *("dropout", "dropout1d", "dropout2d", "drop_path", "stochastic_depth"),
        *("permute", "transpose", "movedim", "contiguous", "clone", "to", "float", "half", "type_as"),
    )
)
IDEMPOTENT = (  # activations that change nothing the second time: modules, functions and methods
    (nn.ReLU, F.relu, torch.relu, torch.relu_, "relu", "relu_"),
    (nn.ReLU6, F.relu6),
)


class Absent(nn.Module):
    """Stands for a module of a branch that was removed. It has no parameters.

    The first modules and the last one of a branch return zeros: a single one, or as many as came in, where the code of
    the model adds to them in place. Modules in between return what they are given.
    """

    def __init__(self, zeros: bool, end: bool, whole: bool) -> None:
        super().__init__()
        self.zeros, self.end, self.whole = zeros, end, whole

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """[...] -> [1, ..., 1] or [...]."""
        if not self.zeros:
            return x
        return torch.zeros_like(x) if self.whole else x.new_zeros((1,) * x.dim())


def is_addition(node: fx.Node) -> bool:
    """Whether a call adds two values."""
    known = node.target in ADDITIONS if node.op == "call_function" else node.target in ADDITION_METHODS
    called = node.op in ("call_function", "call_method") and known and not node.kwargs
    return called and len(node.args) == 2 and all(isinstance(each, fx.Node) for each in node.args)


# -- recorded graphs without the traces of removed branches


def without_absent(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> None:
    """Take additions of removed branches, and what only these used, out of a recorded graph."""
    zero: set[fx.Node] = set()
    unused: set[fx.Node] = set()
    for node in list(graph.nodes):
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        known = name_of(node) in ZERO_STAYS and node.op in ("call_function", "call_method")
        if (isinstance(module, Absent) and module.end) or (known and not zero.isdisjoint(node.all_input_nodes)):
            zero.add(node)
        elif is_addition(node) and not zero.isdisjoint(node.args):
            other = next(each for each in node.args if each not in zero)
            unused.update(each for each in node.args if each in zero)
            if any(_writes(user, node, modules) and not _again(user, other, modules) for user in node.users):
                node.op, node.target, node.args = "call_method", "clone", (other,)  # or it would write into `other`
            else:
                node.replace_all_uses_with(other)
                graph.erase_node(node)
    for node in reversed(list(graph.nodes)) if unused else ():  # users come before what they use
        if node in unused and not node.users and node.op != "placeholder":
            unused.update(node.all_input_nodes)
            graph.erase_node(node)


def name_of(node: fx.Node) -> str:
    """The name of the function or method that a node calls."""
    return getattr(node.target, "__name__", str(node.target))


def _writes(user: fx.Node, node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a call writes into the value of `node`."""
    if user.op == "call_module":
        return bool(getattr(modules.get(str(user.target)), "inplace", False))
    in_place = name_of(user) in ("iadd", "isub", "imul", "itruediv", "with_part") or name_of(user).endswith("_")
    return bool(user.kwargs.get("inplace")) or (in_place and user.args[:1] == (node,))


def _again(node: fx.Node, before: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a call is an activation of what the same activation returned, so that it changes nothing."""
    kind = _activation(node, modules)
    return kind is not None and kind == _activation(before, modules)


def is_idempotent(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a call is an activation that changes nothing the second time."""
    return _activation(node, modules) is not None


def _activation(node: fx.Node, modules: Mapping[str, nn.Module]) -> int | None:
    """The number of the activation in IDEMPOTENT; None if the call is another one."""
    target = type(modules.get(str(node.target))) if node.op == "call_module" else node.target
    known = (number for number, names in enumerate(IDEMPOTENT) if node.op.startswith("call") and target in names)
    return next(known, None)


def has_absent(model: nn.Module) -> bool:
    """Whether branches of the network were removed."""
    return any(isinstance(module, Absent) for _, module in named_modules(model))


def plain_network(traced: Traced) -> nn.Module:
    """The network as its recorded calls, without removed branches, for engines and exporters.

    It has the parameters of the model under the same names.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(traced.graph, copies))
    for node, copy in list(copies.items()):
        if len(node.all_input_nodes) == 1 and _again(node, node.all_input_nodes[0], traced.modules):
            copy.replace_all_uses_with(copies[node.all_input_nodes[0]])
            graph.erase_node(copy)
            copies[node] = copies[node.all_input_nodes[0]]
    return fx.GraphModule(traced.model, graph, type(traced.model).__name__).train(traced.model.training)
