"""Residual branches that can be removed whole.

    sum = other + branch(x)

A unit inside a branch may keep no channel at all. Then its branch adds nothing: zeros take the place of what it adds,
in eval and in training mode, whatever the biases and batch norms behind the unit are. So

    sum = other

and the layers of the branch are gone, with their parameters. Modules that stand in for them (`Absent`) let the code of
the model run as it is: they return one zero, which has no cost, and `without_absent` removes the last traces of them
from a recorded graph: the addition, and an activation that follows its like.

Which units may do so is found from the graph: the last layer of the branch reads nothing but the unit, and everything
that writes or reads the unit is used for the branch only. A projection in a shortcut has no unit of its own: it stays.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from prunus.graph.absent import ZERO_STAYS, Absent, is_addition, name_of
from prunus.graph.discover import ChannelAnalysis
from prunus.graph.grouping import Grouped
from prunus.graph.labels import compact
from prunus.graph.traced import FUNCTIONS, MIXING, Traced, is_depthwise, named_modules
from prunus.graph.units import Unit


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
    called = {str(each.target) for each in nodes if each.op == "call_module"}
    mine = tuple(sorted(name for name in called if _only_in(traced, name, nodes)))
    needed = {name for name in called if any(True for _ in traced.modules[name].parameters())}
    needed |= {str(end.target), *(each.module for each in unit.readers), *(each.module for each in unit.writers)}
    whole = np.isin(analysis.reads[str(last.target)], grouped.channels[unit.name]).all()
    # A shortcut that is padded with zeros leaves nothing at all of some channels.
    lacking = not isinstance(labels, Tensor) or bool((compact(labels) < 0).any())
    fixed = any(n.name in traced.functional or n.target in FUNCTIONS or n.name in traced.guards for n in nodes)
    in_place = node.target in (operator.iadd, "add_") and node.args[0] is operand
    entering = [traced.shapes[each.all_input_nodes[0].name] for each in _first_calls(nodes, mine)]
    unlike = in_place and any(shape != traced.shapes[node.name] for shape in entering)  # there must be zeros to add to
    if lacking or fixed or unlike or not whole or not needed <= {*mine}:
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


def _only_in(traced: Traced, name: str, nodes: Iterable[fx.Node]) -> bool:
    """Whether all calls of a module are among these."""
    return traced.calls[name] == sum(node.op == "call_module" and str(node.target) == name for node in nodes)


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
    return [node for node in calls if calls.isdisjoint(_before(node, nodes))]


def _before(node: fx.Node, nodes: frozenset[fx.Node]) -> set[fx.Node]:
    """Those of `nodes` that `node` depends on."""
    seen: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        new = [used for used in waiting.pop().all_input_nodes if used in nodes and used not in seen]
        seen.update(new)
        waiting += new
    return seen


def _replace(model: nn.Module, name: str, new: nn.Module) -> None:
    """Put a module in place of another one, under each of its names."""
    old = model.get_submodule(name)
    new.train(old.training)
    for _, module in named_modules(model):
        for key, child in module._modules.items():
            if child is old:
                module._modules[key] = new


def zeros_like_output(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    """A forward hook: zeros in place of what the module returns."""
    return torch.zeros_like(output)
