"""Residual branches that can be removed whole, and the modules that stand for them.

    sum = other + branch(x)

A unit inside a branch may keep no channel at all. Then its branch adds nothing: zeros take the place of what it adds,
in eval and in training mode, whatever the biases and batch norms behind the unit are. So

    sum = other

and the layers of the branch are gone, with their parameters. Modules that stand in for them (`Absent`) let the code of
the model run as it is: they return one zero, which has no cost. `without_absent` removes the last traces of them from a
recorded graph: the addition, and an activation that follows its like. So networks that were pruned before, exported
files and engines do not have them.

Which units may do so is found from the graph: the last layer of the branch reads nothing but the unit, and everything
that writes or reads the unit is used for the branch only. A projection in a shortcut has no unit of its own: it stays.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from prunus.graph.labels import compact
from prunus.graph.traced import FUNCTIONS, MIXING, Traced, is_depthwise, named_modules
from prunus.graph.units import Unit

if TYPE_CHECKING:
    from prunus.graph.discover import ChannelAnalysis
    from prunus.graph.units import Grouped

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


# -- branches


@dataclass(frozen=True, eq=False)
class Branch:
    """What one operand of an addition is computed from, and nothing else uses."""

    unit: str  # that takes the branch with it
    end: str  # the module whose output the branch adds
    modules: tuple[str, ...]  # that only the branch calls
    nodes: frozenset[fx.Node]
    sum: fx.Node
    other: fx.Node  # the operand that remains
    in_place: bool  # the addition writes into what the branch returns


@dataclass(frozen=True, eq=False)
class Removed:
    """The branches that a plan removes."""

    branches: tuple[Branch, ...] = ()
    modules: frozenset[str] = field(init=False)
    nodes: frozenset[fx.Node] = field(init=False)
    sums: Mapping[fx.Node, fx.Node] = field(init=False)  # addition -> the operand that is left of it

    def __post_init__(self) -> None:
        """All modules and calls that are gone."""
        object.__setattr__(self, "modules", frozenset(name for b in self.branches for name in b.modules))
        object.__setattr__(self, "nodes", frozenset(node for b in self.branches for node in b.nodes))
        object.__setattr__(self, "sums", {b.sum: b.other for b in self.branches})


# -- which units can vanish


def find_branches(analysis: ChannelAnalysis, grouped: Grouped) -> dict[str, Branch]:
    """Unit -> the branch that goes with it."""
    inner = {r.module: unit for unit in grouped.units.values() if unit.kind == "private" for r in unit.readers}
    found: dict[fx.Node, list[Branch]] = {}
    for node, operand, other in _operands(analysis.traced):
        branch = _branch(analysis, grouped, inner, node, operand, other)
        if branch is not None:
            found.setdefault(node, []).append(branch)
    # If both operands of an addition could go, nothing might be left.
    return {branches[0].unit: branches[0] for branches in found.values() if len(branches) == 1}


def _branch(
    analysis: ChannelAnalysis,
    grouped: Grouped,
    inner: Mapping[str, Unit],
    node: fx.Node,
    operand: fx.Node,
    other: fx.Node,
) -> Branch | None:
    """The branch that `operand` of the addition `node` is, if it can be removed with a unit inside of it."""
    traced, labels = analysis.traced, analysis.record.values[other.name]
    nodes = _exclusive(operand, node)
    end = _end(traced, operand, nodes)
    last = None if end is None else _last_layer(traced, end, nodes)
    unit = None if last is None else inner.get(str(last.target))
    if end is None or last is None or unit is None:
        return None
    calls = Counter(str(each.target) for each in nodes if each.op == "call_module")
    mine = tuple(sorted(name for name, count in calls.items() if traced.calls[name] == count))  # only the branch calls
    needed = {name for name in calls if any(True for _ in traced.modules[name].parameters())}
    needed |= {str(end.target), *(each.module for each in unit.readers), *(each.module for each in unit.writers)}
    whole = np.isin(analysis.reads[str(last.target)], grouped.channels[unit.name]).all()
    # A shortcut that is padded with zeros leaves nothing at all of some channels.
    lacking = not isinstance(labels, Tensor) or bool((compact(labels) < 0).any())
    fixed = any(n.name in traced.functional or n.target in FUNCTIONS or n.name in traced.guards for n in nodes)
    in_place = node.target in (operator.iadd, "add_") and node.args[0] is operand
    if lacking or fixed or not whole or not needed <= {*mine}:
        return None
    entering = [traced.shapes[each.all_input_nodes[0].name] for each in _first_calls(nodes, mine)] if in_place else []
    if any(shape != traced.shapes[node.name] for shape in entering):  # there must be zeros to add to
        return None
    return Branch(unit.name, str(end.target), mine, nodes, node, other, in_place)


def _operands(traced: Traced) -> Iterator[tuple[fx.Node, fx.Node, fx.Node]]:
    """(addition, operand, the other operand) of all additions of tensors of one shape."""
    for node in traced.graph.nodes:
        if is_addition(node):
            first, second = node.args
            shape = traced.shapes[node.name]
            if isinstance(shape, torch.Size) and traced.shapes[first.name] == traced.shapes[second.name] == shape:
                yield node, first, second
                yield node, second, first


def _exclusive(operand: fx.Node, user: fx.Node) -> frozenset[fx.Node]:
    """The calls whose values are used for `operand` only, and `operand` itself; none if others than `user` use it."""
    if list(operand.users) != [user] or operand.op == "placeholder" or list(user.args).count(operand) > 1:
        return frozenset()
    inside, waiting = {operand}, [operand]
    while waiting:
        for used in waiting.pop().all_input_nodes:
            if used not in inside and used.op != "placeholder" and all(each in inside for each in used.users):
                inside.add(used)
                waiting.append(used)
    return frozenset(inside)


def _end(traced: Traced, node: fx.Node, nodes: frozenset[fx.Node]) -> fx.Node | None:
    """The call of a module that the operand is computed from by functions of which zeros are zeros."""
    if node not in nodes or node.op == "call_module":
        return node if node in nodes else None
    name = name_of(node)
    if node.op not in ("call_function", "call_method") or name not in ZERO_STAYS:
        return None
    product = name in ("mul", "imul", "multiply")  # a gate has another shape than what it scales
    for used in node.all_input_nodes if product else node.all_input_nodes[:1]:
        whole = not product or traced.shapes[used.name] == traced.shapes[node.name]
        if whole and used in nodes and used.op != "get_attr":
            found = _end(traced, used, nodes)
            if found is not None:
                return found
    return None


def _last_layer(traced: Traced, node: fx.Node, nodes: frozenset[fx.Node]) -> fx.Node | None:
    """The last call of a layer that mixes channels."""
    at: fx.Node | None = node
    while at is not None:
        if at.op == "call_module" and isinstance(traced.module(at), MIXING) and not is_depthwise(traced.module(at)):
            return at
        at = next((used for used in at.all_input_nodes if used in nodes and used.op != "get_attr"), None)
    return None


# -- surgery


def remove_branch(model: nn.Module, branch: Branch) -> None:
    """Put stand-ins in place of the modules of a branch. Changes the model, which must be a copy."""
    first = {str(node.target) for node in _first_calls(branch.nodes, branch.modules)}
    for name in branch.modules:
        end = name == branch.end
        _replace(model, name, Absent(end or name in first, end, branch.in_place))


def _first_calls(nodes: frozenset[fx.Node], modules: Collection[str]) -> list[fx.Node]:
    """The calls of these modules that depend on no other such call."""
    calls = {node for node in nodes if node.op == "call_module" and str(node.target) in modules}
    return [node for node in calls if not _depends(node, calls, nodes)]


def _depends(node: fx.Node, calls: set[fx.Node], nodes: frozenset[fx.Node]) -> bool:
    """Whether `node` depends on one of these calls, by way of `nodes`."""
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        new = [used for used in waiting.pop().all_input_nodes if used in nodes and used not in seen]
        if not calls.isdisjoint(new):
            return True
        seen.update(new)
        waiting += new
    return False


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put a module in place of another one, under each of its names."""
    old = model.get_submodule(name)
    new.train(old.training)
    for _, module in named_modules(model):
        for key, child in module._modules.items():
            if child is old:
                module._modules[key] = new
