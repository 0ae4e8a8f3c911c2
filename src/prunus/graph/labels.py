"""Label tensors: integers that say which channel each position of an activation carries.

A label tensor has the shape of the activation it stands for, but is expanded (stride 0) wherever labels do not vary,
so it takes a few integers of memory. A label >= 0 is one filter of one writer; FIXED is a position that must not be
removed; ZERO is a position that zero padding added; GONE is a channel of zeros in the place of one that was removed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.proxies import Number, Origin, attribute_name
from prunus.graph.selection import selection_of
from prunus.graph.traced import MIXING, argument_of, channel_dim
from prunus.graph.units import Indices, Mask

if TYPE_CHECKING:
    from prunus.graph.discover import LabelPass


FIXED, ZERO, GONE = -1, -2, -3


def constant(shape: torch.Size | tuple[int, ...], label: int = FIXED) -> Tensor:
    """A label tensor with one label everywhere."""
    return torch.full((1,) * len(shape), label, dtype=torch.int64).expand(shape)


def each_tensor(shapes: Any, labels: Callable[[torch.Size], Tensor]) -> Any:
    """The same nesting as that of the shapes of a value, with labels for every tensor."""
    return tree_map(
        lambda s: labels(s) if isinstance(s, torch.Size) else s, shapes, is_leaf=lambda s: isinstance(s, torch.Size)
    )


def fixed_like(shapes: Any) -> Any:
    """Fixed labels for every shape in a nested value."""
    return each_tensor(shapes, constant)


def shapes_in(shapes: Any) -> list[torch.Size]:
    """The shapes of all tensors in a nested value."""
    leaves = tree_leaves(shapes, is_leaf=lambda s: isinstance(s, torch.Size))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Size)]


def along(vector: Tensor, shape: torch.Size | tuple[int, ...], dim: int) -> Tensor:
    """A label tensor that varies along `dim` only."""
    view = [1] * len(shape)
    view[dim] = -1
    full = list(shape)
    full[dim] = len(vector)
    return vector.view(view).expand(full)


def compact(labels: Tensor) -> Tensor:
    """The same labels with size 1 along every dimension that is expanded."""
    strides = labels.stride()
    if 0 not in strides:
        return labels
    sizes = [1 if stride == 0 and size > 1 else size for size, stride in zip(labels.shape, strides, strict=True)]
    return labels.as_strided(sizes, strides)


def varying(labels: Tensor) -> list[int]:
    """The dimensions along which labels differ."""
    small = compact(labels)
    return [d for d in range(small.dim()) if small.size(d) > 1 and not constant_along(small, d)]


def constant_along(labels: Tensor, dim: int) -> bool:
    """Whether labels do not differ along a dimension."""
    numbers = labels.numpy().swapaxes(0, dim)
    if len(numbers) > 1 and numbers[0].size and numbers[0].flat[0] != numbers[1].flat[0]:
        return False
    return bool((numbers[1:] == numbers[:1]).all())


def present(labels: Tensor) -> Indices:
    """The distinct channel labels in a tensor."""
    distinct = np.unique(compact(labels).numpy())
    return distinct[distinct >= 0]


def same_labels(a: Tensor, b: Tensor) -> bool:
    """Whether two label tensors are equal, without expanding them."""
    if a.shape != b.shape:
        return False
    a, b = broadcast(compact(a), compact(b))
    return bool((a == b).all())


def tensors_in(value: Any) -> list[Tensor]:
    """The label tensors in a nested value."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape that two tensors broadcast to. Much faster than torch.broadcast_shapes."""
    if a == b:
        return a
    dims = max(len(a), len(b))
    pairs = zip((1,) * (dims - len(a)) + a, (1,) * (dims - len(b)) + b, strict=True)
    sizes = [n if m == 1 else m for m, n in pairs if m == n or 1 in (m, n)]
    if len(sizes) < dims:
        raise RuntimeError(f"tensors of shapes {tuple(a)} and {tuple(b)} do not broadcast")
    return torch.Size(sizes)


def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors, expanded to their common shape."""
    shape = broadcast_shape(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)


def pick(labels: Tensor, dim: int, index: Tensor) -> Tensor:
    """index_select along `dim`; expanded dimensions stay expanded."""
    shape = [*labels.shape]
    shape[dim] = len(index)
    small = compact(labels)
    return (small.index_select(dim, index) if small.size(dim) > 1 else small).expand(shape)


def padded(labels: Tensor, dim: int, before: int, after: int, label: int) -> Tensor:
    """Labels with further positions along `dim`; expanded dimensions stay expanded."""
    small = compact(labels).expand([size if d == dim else -1 for d, size in enumerate(labels.shape)])
    start, end = (
        torch.full((*small.shape[:dim], count, *small.shape[dim + 1 :]), label, dtype=torch.int64)
        for count in (before, after)
    )
    full = [*labels.shape]
    full[dim] += before + after
    return torch.cat([start, small, end], dim).expand(full)


def places(have: Indices, want: Indices) -> Indices | None:
    """Positions in `have` of the labels `want`, or its length for those that it lacks. None if others are in it."""
    there = np.isin(want, have)
    positions = match(have, want[there])
    if positions is None or len(positions) != len(have):
        return None
    index = np.full(len(want), len(have), dtype=np.int64)
    index[there] = positions
    return index


def match(have: Indices, want: Indices) -> Indices | None:
    """Positions in `have` of the labels `want`; the k-th occurrence matches the k-th. None if a label is missing."""
    if len(have) and (have[1:] > have[:-1]).all() and (want[1:] > want[:-1]).all():  # the usual case: in order
        found = np.minimum(np.searchsorted(have, want), len(have) - 1)
        return found if np.array_equal(have[found], want) else None
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


def entries_of(labels: Indices, shape: torch.Size, kept: Mask) -> list[Indices]:
    """The entries along each axis of a parameter of which these labels are kept. ValueError if they are no block of it.

    A parameter has a label for each of its numbers, or for each entry of its first axis longer than 1.
    """
    long = next((d for d in range(len(shape)) if shape[d] > 1), 0)
    full = kept.reshape(
        shape if len(labels) == math.prod(shape) else [-1 if d == long else 1 for d in range(len(shape))]
    )
    axes = [np.asarray(full.any(axis=tuple(d for d in range(full.ndim) if d != axis))) for axis in range(full.ndim)]
    if int(full.sum()) != math.prod(int(axis.sum()) for axis in axes):
        raise ValueError("what is left of the parameter is no block of it")
    sizes = [np.ones(shape[d], dtype=bool) if len(axes[d]) == 1 else axes[d] for d in range(len(shape))]
    return [np.flatnonzero(size) for size in sizes]


# -- what a label pass over a network records, and how a plan changes the pass


class CannotFollow(Exception):
    """A rule that cannot follow the channels of a call, with the reason: they are kept."""


class Mismatch(Exception):
    """A replay that fails: the widths of the plan do not fit what the network does at `node`."""

    def __init__(self, node: fx.Node, message: str) -> None:
        super().__init__(message)
        self.node = node

    @property
    def where(self) -> str:
        """The call at which it fails, in words."""
        return getattr(self.node.target, "__name__", str(self.node.target))


@dataclass
class Balance:
    """The same number of channels must be kept in each row of `blocks`."""

    blocks: Indices  # [blocks, positions] labels
    reader: str | None  # the grouped layer that needs it, or None if the tensor itself is split into equal parts
    reason: str


@dataclass(frozen=True)
class Selected:
    """The channels that a module selects among the `arriving` ones on axis `dim`."""

    index: Indices
    dim: int
    arriving: int
    filled: bool = False  # with zeros for those that do not arrive

    @property
    def everything(self) -> bool:
        """Whether all arriving channels are taken in order, so that no selection is needed."""
        return len(self.index) == self.arriving and bool((self.index == np.arange(self.arriving)).all())


@dataclass
class Record:
    """What one pass sees."""

    reads: dict[str, Indices] = field(default_factory=dict)  # reader -> labels on its input-channel axis
    writes: dict[str, Indices] = field(default_factory=dict)  # writer -> labels on its output-channel axis
    passes: dict[str, Indices] = field(default_factory=dict)  # batch norm, depthwise ... -> labels on its channels
    parameters: dict[str, Indices] = field(default_factory=dict)  # standalone parameter -> labels on its long axis
    filters: dict[str, Indices] = field(default_factory=dict)  # function with work for each channel -> labels of these
    unions: list[tuple[Indices, Indices, bool, fx.Node]] = field(default_factory=list)  # a, b, additive, where
    frozen: list[tuple[Indices, str]] = field(default_factory=list)  # labels that must be kept, and why
    balances: list[Balance] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)  # called modules that no rule fits -> reason
    values: dict[str, Any] = field(default_factory=dict)  # node name -> its value: labels or plain Python
    arriving: dict[str, Indices] = field(default_factory=dict)  # module that selects -> labels in front of it
    selected: dict[str, Selected] = field(default_factory=dict)  # module -> what it selects (replay)
    decisions: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # what depends on widths, see `Call.decided`
    failed: dict[str, str] = field(default_factory=dict)  # node name -> why its rule could not follow the channels
    norms: dict[str, tuple[int, str]] = field(default_factory=dict)  # norm or mean over channels -> axis, why whole
    products: list[Indices] = field(default_factory=list)  # labels of queries and keys that a product sums over
    scales: dict[tuple[str, str], tuple[Indices, float]] = field(default_factory=dict)  # attribute -> queries, scale
    averaged: list[tuple[Indices, str]] = field(default_factory=list)  # labels that code takes the mean of, and reason
    numbers: dict[Origin, Indices] = field(default_factory=dict)  # attribute of a module -> the channels that it counts
    _varying: dict[int, frozenset[int]] = field(default_factory=dict)  # id of a value -> the axes of its channels

    def varying(self, value: Tensor) -> frozenset[int]:
        """The dimensions along which labels of one of the values differ. Every replay of a plan asks for them."""
        if id(value) not in self._varying:
            self._varying[id(value)] = frozenset(varying(value))
        return self._varying[id(value)]


class Emitter:
    """Gives out labels when channels are discovered: each writer gets a new range, always the same one."""

    def __init__(self) -> None:
        self.count = 0
        self.ranges: dict[str, Tensor] = {}

    def __call__(self, writer: str, width: int) -> Tensor:
        if writer not in self.ranges:
            self.ranges[writer] = torch.arange(self.count, self.count + width)
            self.count += width
        return self.ranges[writer]


@dataclass
class Replay:
    """How a plan changes a pass: which labels each writer still emits, and which labels pass each selection.

    Decisions that must not depend on the pruned widths are taken from the first pass (`Call.decided`).
    """

    emit: Mapping[str, Tensor]  # writer -> labels that are still alive, in the order of its filters
    wanted: Mapping[str, Indices]  # module that selects -> labels it passes on, in order
    first: Record  # of the pass that discovered the channels
    numbers: Mapping[Origin, int] = field(default_factory=dict)  # attribute that counts channels -> how many are left

    def __call__(self, writer: str, width: int) -> Tensor:
        return self.emit[writer]

    def number(self, value: Any) -> Any:
        """A number that depends on attributes, as it is under the plan; anything else is returned as it is."""
        return value.under(self.numbers) if isinstance(value, Number) else value


Rule = Callable[["Call"], Any]


class Call:
    """One call of the graph as a rule sees it: what is called with which labels, and methods to record what happens."""

    def __init__(self, labels: LabelPass, node: fx.Node) -> None:
        self.labels = labels
        self.node = node
        self.record = labels.record
        self._united = 0  # how many pairs of tensors this call has united
        values = labels.record.values
        self.args: tuple[Any, ...] = fx.node.map_arg(node.args, lambda n: values[n.name])
        self.kwargs: dict[str, Any] = fx.node.map_arg(node.kwargs, lambda n: values[n.name]) if node.kwargs else {}
        if isinstance(labels.emit, Replay) and labels.emit.numbers and node.name in labels.traced.with_numbers:
            self.args, self.kwargs = tree_map(labels.emit.number, (self.args, self.kwargs))
        is_layer = node.op == "call_module" or labels.traced.is_layer_function(node)
        if is_layer and self.args and isinstance(self.args[0], Tensor):
            self.args = (self._selected(self.args[0]), *self.args[1:])

    # -- what is called

    @property
    def name(self) -> str:
        """The dotted name of the called layer."""
        return self.labels.traced.layer_of(self.node) or str(self.node.target)

    @property
    def module(self) -> nn.Module:
        """The called layer."""
        return self.labels.traced.module(self.node)

    @property
    def what(self) -> str:
        """The call in words, for reasons and messages."""
        if self.node.op == "call_module":
            return f"{type(self.module).__name__} {self.name}"
        target = self.node.target
        return target if isinstance(target, str) else getattr(target, "__name__", str(target))

    @property
    def x(self) -> Tensor:
        """The first argument, a tensor."""
        first = self.args[0] if self.args else next(iter(self.kwargs.values()))
        if not isinstance(first, Tensor):
            raise TypeError(f"{self.what} got {type(first).__name__} where a tensor was expected")
        return first

    @property
    def shape(self) -> Any:
        """The shape that this call returned when the network was traced."""
        return self.labels.traced.shapes.get(self.node.name)

    @property
    def reads_all(self) -> bool:
        """Whether the called layer keeps all of its inputs, with zeros for channels that are gone."""
        return self.name in self.labels.find_rule.reading_all

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def literal(self, index: int, name: str) -> Any:
        """The same argument in the graph: an fx.Node if it is computed from sizes."""
        return argument_of(self.node, index, name)

    # -- where the channels are

    def vector(self, labels: Tensor, dim: int) -> Tensor | None:
        """The labels along `dim`, or None if they vary along another dimension too."""
        small = compact(labels)
        for d in range(small.dim()):
            if d != dim % small.dim() and small.size(d) > 1:
                if not constant_along(small, d):
                    return None
                small = small.narrow(d, 0, 1)
        if labels.size(dim) != small.size(dim):  # expanded along dim itself: one label many times
            return small.reshape(-1).expand(labels.size(dim))
        return small.reshape(-1)

    def channels(self, labels: Tensor, dim: int) -> Tensor:
        """The labels along `dim`. If they vary along another dimension too, the rule ends here: all are kept."""
        vector = self.vector(labels, dim)
        if vector is None:
            raise CannotFollow(f"{self.what} runs along an axis that carries channels")
        return vector

    def inputs(self, dim: int) -> Tensor:
        """The labels that a layer mixes along `dim`. If another axis carries channels, as in the token mixing of an
        MLP-Mixer, these are kept, and the layer may only lose outputs."""
        vector = self.vector(self.x, dim)
        if vector is not None or (self.reads_all and not self.only_parameters(self.x)):
            return self.channels(self.x, dim)
        why = "runs along an axis that carries channels"
        self.record.opaque |= dict.fromkeys(self.only_parameters(self.x), f"{self.what} {why}")
        return self.keeps(dim, why)

    def only_parameters(self, labels: Tensor) -> list[str]:
        """The parameters from which alone this value is computed, as the queries of a decoder are."""
        mine = present(labels)
        within = {name: np.isin(mine, known) for name, known in self.record.parameters.items()}
        found = [name for name, inside in within.items() if inside.any()]
        return found if found and np.logical_or.reduce([within[name] for name in found]).all() else []

    def keeps(self, dim: int, why: str) -> Tensor:
        """The labels that a layer mixes along `dim` of its input if it must get all of them."""
        self.unchanged(self.node.all_input_nodes[:1])
        self.freeze(self.x, f"{self.what} {why}")
        return torch.full((self.x.size(dim),), FIXED)

    def axes(self, labels: Tensor, side: str = "in") -> list[int]:
        """The dimensions along which the channels of this call's input (or output) vary."""
        axes: list[int] = self.decided("axes", side, lambda: varying(labels))
        return axes

    def decided(self, what: str, which: str | int, decide: Callable[[], Any]) -> Any:
        """A decision of the first pass. Replays take it over: a tensor that is pruned to one channel must not look like
        a gate of size 1."""
        key = (self.node.name, what, which)
        if isinstance(self.labels.emit, Replay):
            return self.labels.emit.first.decisions.get(key)
        self.record.decisions[key] = decide()
        return self.record.decisions[key]

    # -- what happens to the channels

    def reads(self, vector: Tensor) -> None:
        """This layer mixes the channels `vector` of its input axis."""
        self._at_every_call(self.record.reads, vector)

    def writes(self, width: int) -> Tensor:
        """Labels of the channels that this layer produces."""
        vector = self.labels.emit(self.name, width)
        self.record.writes[self.name] = vector.numpy()
        return vector

    def passes(self, vector: Tensor) -> None:
        """This layer has parameters per channel and passes each channel on."""
        self._at_every_call(self.record.passes, vector)

    def averages(self, axis: int, reason: str) -> None:
        """This norm or mean over all channels divides by their original number, and takes those that are gone for
        zeros. Streams keep theirs for this reason, unless norms are compensated.

        axis: of the channels, counted from the end if it is negative: so it is found at every call.
        """
        self.passes(self.channels(self.x, axis % self.x.dim()))
        if self.record.norms.setdefault(self.name, (axis, reason))[0] != axis:
            raise ValueError("it is called with channels on several axes")

    def _at_every_call(self, vectors: dict[str, Indices], vector: Tensor) -> None:
        """A layer that is called several times has one weight for each position, so the channels that arrive there in
        different calls are pruned together."""
        labels = vector.numpy()
        first = vectors.setdefault(self.name, labels)
        if len(first) != len(labels):
            raise ValueError(f"{self.name} is called with {len(first)} and with {len(labels)} channels")
        if first is not labels:
            self._meet(first, labels, additive=False)

    def freeze(self, value: Any, reason: str) -> None:
        """These channels must be kept, each in its place."""
        for labels in tensors_in(value):
            distinct = present(labels)
            if len(distinct):
                self.record.frozen.append((distinct, reason))

    def unknown(self, reason: str | None = None) -> Any:
        """The channels of all arguments must be kept, and the result is fixed."""
        reason = reason or f"{self.what} has no rule"
        self.unchanged()
        self.freeze((self.args, self.kwargs), reason)
        if self.labels.traced.layer_of(self.node) is not None and not isinstance(self.labels.emit, Replay):
            self.record.opaque[self.name] = reason
        return fixed_like(self.shape)

    def unchanged(self, inputs: Sequence[fx.Node] | None = None) -> None:
        """Raise Mismatch if a plan would change the tensors that enter this call, all of whose channels are kept."""
        if isinstance(self.labels.emit, Replay):
            for used in self.node.all_input_nodes if inputs is None else inputs:
                now, then = self.record.values[used.name], self.labels.emit.first.values[used.name]
                if any(not same_labels(a, b) for a, b in zip(tensors_in(now), tensors_in(then), strict=True)):
                    raise Mismatch(self.node, "channels that must be kept would be others")

    def balance(self, blocks: Tensor, reason: str, reader: str | None = None) -> None:
        """The same number of channels must be kept in each row of `blocks`."""
        if len(present(blocks)):
            self.record.balances.append(Balance(blocks.numpy(), reader, reason))

    def counts(self, number: Number, vector: Tensor) -> None:
        """An attribute of a module is the number of these channels: it changes with them."""
        if number.origin is None:
            return
        first = self.record.numbers.setdefault(number.origin, vector.numpy())
        if len(first) == len(vector):
            both = torch.stack([torch.from_numpy(first), vector])
            self.balance(both, f"{attribute_name(number.origin)} is the number of both")
        else:
            raise CannotFollow(f"{attribute_name(number.origin)} counts other channels too")

    def unite(self, a: Tensor, b: Tensor, *, additive: bool) -> Tensor:
        """Channels of `a` and `b` that meet at the same position are pruned together. Broadcasts as torch does."""
        dims = max(a.dim(), b.dim())
        a, b = a.reshape((1,) * (dims - a.dim()) + a.shape), b.reshape((1,) * (dims - b.dim()) + b.shape)
        self._united += 1
        spread = self.decided("spread", self._united, lambda: self._spread(a, b))
        if spread is not None:
            narrow, wide = (a, b) if spread == 0 else (b, a)
            self.freeze(narrow, f"{self.what} broadcasts it over many channels")
            return wide.expand(broadcast_shape(a.shape, b.shape))
        shape = broadcast_shape(a.shape, b.shape)
        a, b = compact(a), compact(b)
        if self.decided("crosses", self._united, lambda: self._crosses(a, b)):
            kept, given_up = (a, b) if present(a)[0] < present(b)[0] else (b, a)
            for labels in (kept, given_up):
                self.freeze(labels, f"{self.what} joins channels of different axes")
            if additive:  # as in `_meet`: who reads the sum may select
                self.record.unions.append((present(kept), present(kept), True, self.node))
            return kept.expand(shape)
        a, b = broadcast(a, b)
        return torch.from_numpy(self._meet(a.numpy(), b.numpy(), additive)).expand(shape)

    def unite_everywhere(self, a: Tensor, b: Tensor) -> Tensor:
        """Channels that meet are pruned together, also where one of them meets many: the channels of a head."""
        shape = broadcast_shape(a.shape, b.shape)
        a, b = broadcast(compact(a), compact(b))
        return torch.from_numpy(self._meet(a.numpy(), b.numpy(), additive=False)).expand(shape)

    def _meet(self, a: Indices, b: Indices, additive: bool) -> Indices:
        """Record which channels meet, and return the labels of the result."""
        a_flows, b_flows = a >= 0, b >= 0
        both = a_flows & b_flows & (a != b)
        if both.any():
            self.record.unions.append((a[both], b[both], additive, self.node))
        for one, other, lone in ((a, b, a_flows & ~b_flows), (b, a, b_flows & ~a_flows)):
            if lone.any():
                kind = "zero padding" if (other[lone] == ZERO).any() else "channels that must be kept"
                self.record.frozen.append((np.unique(one[lone]), f"{self.what} joins it with {kind}"))
                if additive:  # united with itself: it is an addition, so the channel belongs to a stream
                    self.record.unions.append((one[lone], one[lone], True, self.node))
        return a if a_flows.all() else np.where(a_flows, a, b)

    def unite_along(self, labels: Tensor, dim: int) -> None:
        """All channels along `dim` are pruned together."""
        first, rest = broadcast(labels.narrow(dim, 0, 1), labels)
        self.unite(first, rest, additive=False)

    def _spread(self, a: Tensor, b: Tensor) -> int | None:
        """The operand that has size 1 where the other carries different channels (a spatial gate), if any."""
        for dim in range(a.dim()):
            if a.size(dim) == b.size(dim):
                continue
            narrow, wide = (0, b) if a.size(dim) == 1 else (1, a)
            small = compact(wide)
            if small.size(dim) > 1 and not constant_along(small, dim):
                if set(varying(a)) & set(varying(b)):  # both vary along another axis too: a factor for each head
                    continue
                return narrow
        return None

    def _crosses(self, a: Tensor, b: Tensor) -> bool:
        """Whether channels of `a` and `b` lie on different axes, so that each of one meets each of the other."""
        if a.shape == b.shape or not len(present(a)) or not len(present(b)):
            return False
        one, other = varying(a), varying(b)
        return bool(one or other) and not set(one) & set(other)

    # -- channel selection in front of a layer

    def _selected(self, x: Tensor) -> Tensor:
        """The input after the layer's channel selection, if it has one."""
        emit = self.labels.emit
        selection = selection_of(self.module)
        if isinstance(emit, Replay):
            if self.name not in emit.wanted:
                return x
            dim = selection.dim if selection is not None else self._selecting_dim(x, emit.first)
            index = torch.from_numpy(self._replayed_selection(x, dim, emit.wanted[self.name]))
            return pick(padded(x, dim, 0, 1, GONE) if self.reads_all else x, dim, index)
        if selection is None:
            return x
        vector = self.vector(x, selection.dim)
        if vector is not None:  # what is not selected too: every call finds the same number of channels
            self._at_every_call(self.record.arriving, vector)
        arriving = padded(x, selection.dim, 0, 1, GONE) if selection.filled else x
        return pick(arriving, selection.dim, selection.index.cpu())

    def _selecting_dim(self, x: Tensor, first: Record) -> int:
        """The axis of channels in front of this module: an activation may have tokens in front of them, or pixels
        behind them."""
        axes = varying(first.values[self.node.all_input_nodes[0].name])
        return axes[0] if len(axes) == 1 and not isinstance(self.module, MIXING) else channel_dim(self.module, x)

    def _replayed_selection(self, x: Tensor, dim: int, wanted: Indices) -> Indices:
        """What the layer selects under the plan. Later calls of a layer select what its first call does."""
        arriving = self.vector(x, dim)
        if arriving is None:
            raise Mismatch(self.node, f"channels of {self.name} arrive on more than one axis")
        first = self.record.selected.get(self.name)
        if first is not None:
            if first.arriving != len(arriving) or first.dim != dim:
                raise Mismatch(self.node, f"{self.name} would have to select other channels in each call")
            self._at_every_call(self.record.arriving, arriving)
            return first.index
        self._at_every_call(self.record.arriving, arriving)
        index = (places if self.reads_all else match)(arriving.numpy(), wanted)
        had = selection_of(self.module)
        if had is not None and isinstance(self.labels.emit, Replay):  # one label many times: those that it has selected
            before = self.labels.emit.first.arriving.get(self.name)
            chosen = had.index.cpu().numpy().copy()
            same = before is not None and not had.filled and np.array_equal(before, arriving.numpy())
            if same and np.array_equal(arriving.numpy()[chosen], wanted):
                index = chosen
        if index is None:
            raise Mismatch(self.node, f"channels that {self.name} selects do not arrive at it")
        self.record.selected[self.name] = Selected(index, dim, len(arriving), self.reads_all)
        return index
