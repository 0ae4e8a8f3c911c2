"""Channels followed by labels: the traced graph run once on integers that say which channel each position carries.

A label tensor has the shape of the activation it stands for, but is expanded (stride 0) wherever labels do not vary,
so that it costs a few integers, not an activation. A label >= 0 is one filter of one writer; FIXED is a position that
nobody may remove; ZERO is a position that zero padding made. Operations that only move elements simply execute.

The same pass runs twice. To *discover*, every writer emits a fresh label per filter, and the pass records who meets
whom. To *replay* a plan, writers emit only the labels that live on, selections are applied, and what arrives at each
layer says which slices of its weights stay, in which order: surgery needs no rules of its own, and a plan that the
network's own reshapes and splits cannot carry out is found out here, not in a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_map

from secateur.channels.selection import selection_of
from secateur.channels.tracing import Traced
from secateur.channels.units import Indices

FIXED, ZERO = -1, -2

Rule = Callable[["Call"], Any]


class Mismatch(Exception):
    """A replay that does not come out: the plan's widths do not fit what the network does at `node`."""

    def __init__(self, node: fx.Node, message: str) -> None:
        super().__init__(message)
        self.node = node


@dataclass
class Balance:
    """As many channels must be kept in each row of `blocks` as in any other."""

    blocks: Indices  # [blocks, positions] labels
    reader: str | None  # the grouped layer that asks for it, or None when the tensor itself is cut in equal parts
    reason: str


@dataclass(frozen=True)
class Selected:
    """What a module's selection takes of the `arriving` channels on axis `dim`."""

    index: Indices
    dim: int
    arriving: int

    @property
    def everything(self) -> bool:
        """Whether all that arrives is taken in its order, so that nothing needs to be selected."""
        return len(self.index) == self.arriving and bool((self.index == np.arange(self.arriving)).all())


@dataclass
class Record:
    """What one pass saw."""

    reads: dict[str, Indices] = field(default_factory=dict)  # reader -> labels on its input-channel axis
    writes: dict[str, Indices] = field(default_factory=dict)  # writer -> labels on its output-channel axis
    passes: dict[str, Indices] = field(default_factory=dict)  # batch norm, depthwise ... -> labels on its channels
    parameters: dict[str, Indices] = field(default_factory=dict)  # bare parameter -> labels on its one long axis
    unions: list[tuple[Indices, Indices, bool, fx.Node]] = field(default_factory=list)  # a, b, additive, where
    holds: list[tuple[Indices, str]] = field(default_factory=list)  # labels that must stay, and why
    balances: list[Balance] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)  # conv or linear layers without a rule that fits, and why
    values: dict[str, Any] = field(default_factory=dict)  # node name -> its value: labels or plain Python
    selected: dict[str, Selected] = field(default_factory=dict)  # module -> what its selection takes (replay)
    spread: dict[str, int] = field(default_factory=dict)  # node name -> operand broadcast over many channels
    axes: dict[tuple[str, str], list[int]] = field(default_factory=dict)  # (node, "in" or "out") -> axes of channels
    failed: dict[str, str] = field(default_factory=dict)  # node name -> why its rule could not follow the channels


# ---------------------------------------------------------------------------------------------- label tensors


def constant(shape: torch.Size | tuple[int, ...], label: int = FIXED) -> Tensor:
    """A label tensor with one label everywhere."""
    return torch.full((1,) * len(shape), label, dtype=torch.int64).expand(shape)


def fixed_like(shapes: Any) -> Any:
    """Fixed labels for every shape in a nested value."""
    return tree_map(
        lambda s: constant(s) if isinstance(s, torch.Size) else s, shapes, is_leaf=lambda s: isinstance(s, torch.Size)
    )


def along(vector: Tensor, shape: torch.Size | tuple[int, ...], dim: int) -> Tensor:
    """A label tensor that varies along `dim` only."""
    view = [1] * len(shape)
    view[dim] = -1
    full = list(shape)
    full[dim] = len(vector)
    return vector.view(view).expand(full)


def compact(labels: Tensor) -> Tensor:
    """The same labels with size 1 along every dimension that is expanded."""
    for dim in range(labels.dim()):
        if labels.size(dim) > 1 and labels.stride(dim) == 0:
            labels = labels.narrow(dim, 0, 1)
    return labels


def varying(labels: Tensor) -> list[int]:
    """The dimensions along which labels differ."""
    small = compact(labels)
    return [d for d in range(small.dim()) if small.size(d) > 1 and not _constant_along(small, d)]


def _constant_along(labels: Tensor, dim: int) -> bool:
    return bool((labels == labels.narrow(dim, 0, 1)).all())


def present(labels: Tensor) -> Indices:
    """The distinct channel labels in a tensor."""
    found = np.unique(compact(labels).numpy())
    return found[found >= 0]


def tensors_in(value: Any) -> list[Tensor]:
    """The label tensors in a nested value."""
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]


# ---------------------------------------------------------------------------------------------- the pass


class Emitter:
    """Hands out labels. Discovering, each writer gets a fresh range, the same one every time it is asked."""

    def __init__(self) -> None:
        self.count = 0
        self.ranges: dict[str, Tensor] = {}
        self.bare: set[str] = set()  # names of bare parameters among the writers

    def __call__(self, writer: str, width: int) -> Tensor:
        if writer not in self.ranges:
            self.ranges[writer] = torch.arange(self.count, self.count + width)
            self.count += width
        return self.ranges[writer]


@dataclass
class Replay:
    """What a plan changes for a pass: who still emits what, and which labels selections let through.

    Decisions that must not depend on the pruned widths (a tensor pruned to one channel must not look like a gate of
    size 1) are those of the first pass.
    """

    emit: Mapping[str, Tensor]  # writer -> labels that live on, in the order of its filters
    wanted: Mapping[str, Indices]  # module that selects -> labels it hands on, in order
    first: Record  # what the discovering pass saw

    def __call__(self, writer: str, width: int) -> Tensor:
        return self.emit[writer]


class LabelPass:
    """Runs a traced graph on labels, by the rules of `secateur.channels.rules`."""

    def __init__(
        self,
        traced: Traced,
        emit: Emitter | Replay,
        find_rule: Callable[[LabelPass, fx.Node], Rule],
        opaque: Mapping[str, str],
        record: Record | None = None,
    ) -> None:
        self.traced = traced
        self.emit = emit
        self.find_rule = find_rule
        self.opaque = opaque
        self.record = record if record is not None else Record()
        self.replaying = isinstance(emit, Replay)

    def run(self) -> Record:
        """One walk through the graph."""
        for node in self.traced.graph.nodes:
            try:
                value = self.record.values[node.name] = self._value(node)
                self._check_guard(node, value)
            except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
                if isinstance(self.emit, Replay):  # what fails on labels fails on the pruned activations too
                    raise Mismatch(node, str(error)) from error
                call = Call(self, node)
                self.record.failed[node.name] = f"the rule for {call.what} cannot follow it ({error})"
                self.record.values[node.name] = call.unknown(self.record.failed[node.name])
        return self.record

    def _check_guard(self, node: fx.Node, value: Any) -> None:
        """A size that the model's code has looked at must still be what it was."""
        guarded = isinstance(self.emit, Replay) and node.name in self.traced.guards
        if guarded and value != self.emit.first.values[node.name]:  # type: ignore[union-attr]
            raise Mismatch(node, "the code would take another path with fewer channels")

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return self._attribute(node)
        call = Call(self, node)
        if node.op == "output":
            call.hold(call.args, "they are outputs of the network")
            return None
        if isinstance(self.emit, Replay) and node.name in self.emit.first.failed:
            return call.unknown(self.emit.first.failed[node.name])
        return self.find_rule(self, node)(call)

    def _input(self, node: fx.Node) -> Any:
        shapes = self.traced.shapes[node.name]
        for name, value in self.traced.constants.items():
            if node.name == name or node.name.rpartition("_")[0] == name:
                return value
        return fixed_like(shapes)

    def _attribute(self, node: fx.Node) -> Any:
        """A bare parameter or buffer: along its one long axis it is a writer of channels, else it is fixed."""
        name = str(node.target)
        owner, _, attribute = name.rpartition(".")
        value = getattr(self.traced.model.get_submodule(owner), attribute)
        if not isinstance(value, Tensor):
            return value
        long = [d for d in range(value.dim()) if value.size(d) > 1]
        if len(long) != 1 or name in self.opaque:
            return constant(value.shape)
        vector = self.emit(name, value.size(long[0]))
        if isinstance(self.emit, Emitter):
            self.emit.bare.add(name)
        self.record.parameters[name] = vector.numpy()
        return along(vector, value.shape, long[0])


class Call:
    """One call in the graph, as a rule sees it."""

    def __init__(self, labels: LabelPass, node: fx.Node) -> None:
        self.labels = labels
        self.node = node
        self.record = labels.record
        values = labels.record.values
        self.args: tuple[Any, ...] = fx.node.map_arg(node.args, lambda n: values[n.name])
        self.kwargs: dict[str, Any] = fx.node.map_arg(node.kwargs, lambda n: values[n.name])
        if node.op == "call_module" and self.args and isinstance(self.args[0], Tensor):
            self.args = (self._selected(self.args[0]), *self.args[1:])

    # -- what is called

    @property
    def name(self) -> str:
        """The dotted name of the module called."""
        return str(self.node.target)

    @property
    def module(self) -> nn.Module:
        """The module called."""
        return self.labels.traced.module(self.node)

    @property
    def what(self) -> str:
        """The call in words, for reasons."""
        if self.node.op == "call_module":
            return f"{type(self.module).__name__} {self.name}"
        target = self.node.target
        return target if isinstance(target, str) else getattr(target, "__name__", str(target))

    @property
    def x(self) -> Tensor:
        """The first argument, which most rules are about."""
        first = self.args[0] if self.args else next(iter(self.kwargs.values()))
        if not isinstance(first, Tensor):
            raise TypeError(f"{self.what} got {type(first).__name__} where a tensor was expected")
        return first

    @property
    def shape(self) -> Any:
        """The shape that this call returned in the real forward."""
        return self.labels.traced.shapes.get(self.node.name)

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def literal(self, index: int, name: str) -> Any:
        """The same argument as the graph spells it: an fx.Node where it is computed from sizes."""
        return self.node.args[index] if len(self.node.args) > index else self.node.kwargs.get(name)

    # -- what happens to the channels

    def vector(self, labels: Tensor, dim: int) -> Tensor | None:
        """The labels along `dim`, or None if they vary along another dimension too."""
        small = compact(labels)
        for d in range(small.dim()):
            if d != dim % small.dim():
                if small.size(d) > 1 and not _constant_along(small, d):
                    return None
                small = small.narrow(d, 0, 1)
        if labels.size(dim) != small.size(dim):  # expanded along dim itself: one label many times
            return small.reshape(-1).expand(labels.size(dim))
        return small.reshape(-1)

    def axes(self, labels: Tensor, side: str = "in") -> list[int]:
        """The dimensions along which the channels of this call's input (or output) lie."""
        key = (self.node.name, side)
        if isinstance(self.labels.emit, Replay):
            return self.labels.emit.first.axes[key]
        self.record.axes[key] = varying(labels)
        return self.record.axes[key]

    def reads(self, vector: Tensor) -> None:
        """This layer mixes the channels `vector` on its input axis."""
        self.record.reads[self.name] = vector.numpy()

    def writes(self, width: int) -> Tensor:
        """Labels of the channels that this layer makes."""
        vector = self.labels.emit(self.name, width)
        self.record.writes[self.name] = vector.numpy()
        return vector

    def passes(self, vector: Tensor) -> None:
        """This layer has parameters per channel, and hands each channel on by itself."""
        self.record.passes[self.name] = vector.numpy()

    def hold(self, value: Any, reason: str) -> None:
        """These channels must stay."""
        for labels in tensors_in(value):
            found = present(labels)
            if len(found):
                self.record.holds.append((found, reason))

    def unknown(self, reason: str | None = None) -> Any:
        """The channels that come in stay, and so does what comes out."""
        reason = reason or f"{self.what} has no rule"
        self.hold((self.args, self.kwargs), reason)
        if self.node.op == "call_module" and not self.labels.replaying:
            self.record.opaque[self.name] = reason
        return fixed_like(self.shape)

    def balance(self, blocks: Tensor, reason: str, reader: str | None = None) -> None:
        """As many channels must be kept in each row as in any other."""
        if len(present(blocks)):
            self.record.balances.append(Balance(blocks.numpy(), reader, reason))

    def unite(self, a: Tensor, b: Tensor, *, additive: bool) -> Tensor:
        """Channels of `a` and `b` that meet at the same position go together; broadcasting as torch does."""
        dims = max(a.dim(), b.dim())
        a, b = a.reshape((1,) * (dims - a.dim()) + a.shape), b.reshape((1,) * (dims - b.dim()) + b.shape)
        spread = self._spread(a, b)
        if spread is not None:
            narrow, wide = (a, b) if spread == 0 else (b, a)
            self.hold(narrow, f"{self.what} spreads it over many channels")
            return wide.expand(_broadcast(a.shape, b.shape))
        shape = _broadcast(a.shape, b.shape)
        a, b = _meet(compact(a), compact(b))
        united = torch.where(a >= 0, a, b)
        both = (a >= 0) & (b >= 0) & (a != b)
        if bool(both.any()):
            self.record.unions.append((a[both].numpy(), b[both].numpy(), additive, self.node))
        for one, other in ((a, b), (b, a)):
            lone = (one >= 0) & (other < 0)
            if bool(lone.any()):
                kind = "zero padding" if bool((other[lone] == ZERO).any()) else "channels that cannot go"
                self.record.holds.append((np.unique(one[lone].numpy()), f"{self.what} joins it with {kind}"))
                if additive:  # united with itself: an addition all the same, so the channel belongs to a stream
                    self.record.unions.append((one[lone].numpy(), one[lone].numpy(), True, self.node))
        return united.expand(shape)

    def unite_along(self, labels: Tensor, dim: int) -> None:
        """All channels along `dim` go together."""
        first, rest = _meet(labels.narrow(dim, 0, 1), labels)
        self.unite(first, rest, additive=False)

    def _spread(self, a: Tensor, b: Tensor) -> int | None:
        """Which operand has size 1 where the other carries different channels (a spatial gate), if any."""
        if isinstance(self.labels.emit, Replay):  # a tensor pruned to one channel must not look like a gate
            return self.labels.emit.first.spread.get(self.node.name)
        for dim in range(a.dim()):
            if a.size(dim) == b.size(dim):
                continue
            narrow, wide = (0, b) if a.size(dim) == 1 else (1, a)
            small = compact(wide)
            if small.size(dim) > 1 and not _constant_along(small, dim):
                self.record.spread[self.node.name] = narrow
                return narrow
        return None

    # -- channel selection in front of a layer

    def _selected(self, x: Tensor) -> Tensor:
        """What is left of the input behind the layer's channel selection, if it has one."""
        emit = self.labels.emit
        selection = selection_of(self.module)
        if isinstance(emit, Replay):
            if self.name not in emit.wanted:
                return x
            dim = selection.dim if selection is not None else self._selection_dim(x)
            arriving = self.vector(x, dim)
            if arriving is None:
                raise Mismatch(self.node, f"channels of {self.name} arrive on more than one axis")
            index = match(arriving.numpy(), emit.wanted[self.name])
            if index is None:
                raise Mismatch(self.node, f"channels that {self.name} selects do not arrive there")
            self.record.selected[self.name] = Selected(index, dim, len(arriving))
            return _pick(x, dim, torch.from_numpy(index))
        return x if selection is None else _pick(x, selection.dim, selection.index.cpu())

    def _selection_dim(self, x: Tensor) -> int:
        return x.dim() - 1 if isinstance(self.module, nn.Linear) else 1


def _broadcast(a: torch.Size, b: torch.Size) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(a, b))  # type: ignore[no-untyped-call]


def _meet(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    shape = _broadcast(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)


def _pick(labels: Tensor, dim: int, index: Tensor) -> Tensor:
    """index_select along `dim` that keeps what is expanded expanded."""
    shape = [*labels.shape]
    shape[dim] = len(index)
    small = compact(labels)
    return (small.index_select(dim, index) if small.size(dim) > 1 else small).expand(shape)


def match(have: Indices, want: Indices) -> Indices | None:
    """Positions in `have` of the labels `want`, the k-th occurrence of a label to its k-th; None if some is missing."""
    have_order = np.argsort(have, kind="stable")
    want_order = np.argsort(want, kind="stable")
    sorted_have, sorted_want = have[have_order], want[want_order]
    start = np.searchsorted(sorted_have, sorted_want, side="left")
    rank = np.arange(len(want)) - np.searchsorted(sorted_want, sorted_want, side="left")
    place = start + rank
    if len(want) and (place.max() >= len(have) or not np.array_equal(sorted_have[place], sorted_want)):
        return None
    index = np.empty(len(want), dtype=np.int64)
    index[want_order] = have_order[place]
    return index
