"""One call of the graph as a rule sees it: what is called with which labels, and methods to record what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur.channels.labels.label_tensors import (
    GONE,
    ZERO,
    broadcast,
    broadcast_shape,
    compact,
    constant_along,
    fixed_like,
    match,
    padded,
    pick,
    places,
    present,
    same_labels,
    tensors_in,
    varying,
)
from secateur.channels.labels.record import Balance, Mismatch, Replay, Selected
from secateur.channels.layer_kinds import CONVOLUTIONS, batched_dims
from secateur.channels.selection import selection_of
from secateur.channels.units import Indices

if TYPE_CHECKING:
    from secateur.channels.labels.label_pass import LabelPass

Rule = Callable[["Call"], Any]


class Call:
    """One call of the graph, as a rule sees it."""

    def __init__(self, labels: LabelPass, node: fx.Node) -> None:
        self.labels = labels
        self.node = node
        self.record = labels.record
        self._united = 0  # how many pairs of tensors this call has united
        values = labels.record.values
        self.args: tuple[Any, ...] = fx.node.map_arg(node.args, lambda n: values[n.name])
        self.kwargs: dict[str, Any] = fx.node.map_arg(node.kwargs, lambda n: values[n.name]) if node.kwargs else {}
        if node.op == "call_module" and self.args and isinstance(self.args[0], Tensor):
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
        return self.node.args[index] if len(self.node.args) > index else self.node.kwargs.get(name)

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

    def axes(self, labels: Tensor, side: str = "in") -> list[int]:
        """The dimensions along which the channels of this call's input (or output) vary."""
        key = (self.node.name, side)
        if isinstance(self.labels.emit, Replay):
            return self.labels.emit.first.axes[key]
        self.record.axes[key] = varying(labels)
        return self.record.axes[key]

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

    def _at_every_call(self, vectors: dict[str, Indices], vector: Tensor) -> None:
        """A layer that is called several times has one weight for each position, so the channels that arrive there in
        different calls are pruned together."""
        own = vector.numpy()
        first = vectors.setdefault(self.name, own)
        if len(first) != len(own):
            raise ValueError(f"{self.name} is called with {len(first)} and with {len(own)} channels")
        if first is not own:
            self._meet(first, own, additive=False)

    def hold(self, value: Any, reason: str) -> None:
        """These channels must be kept, each in its place."""
        for labels in tensors_in(value):
            found = present(labels)
            if len(found):
                self.record.holds.append((found, reason))

    def unknown(self, reason: str | None = None) -> Any:
        """The channels of all arguments must be kept, and the result is fixed."""
        reason = reason or f"{self.what} has no rule"
        self.unchanged()
        self.hold((self.args, self.kwargs), reason)
        if self.labels.traced.layer_of(self.node) is not None and not self.labels.replaying:
            self.record.opaque[self.name] = reason
        return fixed_like(self.shape)

    def unchanged(self) -> None:
        """Raise Mismatch if a plan would change the tensors that enter this call, all of whose channels are kept."""
        if isinstance(self.labels.emit, Replay):
            for used in self.node.all_input_nodes:
                now, then = self.record.values[used.name], self.labels.emit.first.values[used.name]
                if any(not same_labels(a, b) for a, b in zip(tensors_in(now), tensors_in(then), strict=True)):
                    raise Mismatch(self.node, "channels that must be kept would be others")

    def balance(self, blocks: Tensor, reason: str, reader: str | None = None) -> None:
        """The same number of channels must be kept in each row of `blocks`."""
        if len(present(blocks)):
            self.record.balances.append(Balance(blocks.numpy(), reader, reason))

    def unite(self, a: Tensor, b: Tensor, *, additive: bool) -> Tensor:
        """Channels of `a` and `b` that meet at the same position are pruned together. Broadcasts as torch does."""
        dims = max(a.dim(), b.dim())
        a, b = a.reshape((1,) * (dims - a.dim()) + a.shape), b.reshape((1,) * (dims - b.dim()) + b.shape)
        spread = self._spread(a, b)
        if spread is not None:
            narrow, wide = (a, b) if spread == 0 else (b, a)
            self.hold(narrow, f"{self.what} broadcasts it over many channels")
            return wide.expand(broadcast_shape(a.shape, b.shape))
        shape = broadcast_shape(a.shape, b.shape)
        a, b = broadcast(compact(a), compact(b))
        return torch.from_numpy(self._meet(a.numpy(), b.numpy(), additive)).expand(shape)

    def _meet(self, a: Indices, b: Indices, additive: bool) -> Indices:
        """Record which channels meet, and return the labels of the result."""
        a_flows, b_flows = a >= 0, b >= 0
        both = a_flows & b_flows & (a != b)
        if both.any():
            self.record.unions.append((a[both], b[both], additive, self.node))
        for one, other, lone in ((a, b, a_flows & ~b_flows), (b, a, b_flows & ~a_flows)):
            if lone.any():
                kind = "zero padding" if (other[lone] == ZERO).any() else "channels that must be kept"
                self.record.holds.append((np.unique(one[lone]), f"{self.what} joins it with {kind}"))
                if additive:  # united with itself: it is an addition, so the channel belongs to a stream
                    self.record.unions.append((one[lone], one[lone], True, self.node))
        return a if a_flows.all() else np.where(a_flows, a, b)

    def unite_along(self, labels: Tensor, dim: int) -> None:
        """All channels along `dim` are pruned together."""
        first, rest = broadcast(labels.narrow(dim, 0, 1), labels)
        self.unite(first, rest, additive=False)

    def _spread(self, a: Tensor, b: Tensor) -> int | None:
        """The operand that has size 1 where the other carries different channels (a spatial gate), if any."""
        self._united += 1
        key = (self.node.name, self._united)
        if isinstance(self.labels.emit, Replay):  # a tensor pruned to one channel must not look like a gate
            return self.labels.emit.first.spread.get(key)
        for dim in range(a.dim()):
            if a.size(dim) == b.size(dim):
                continue
            narrow, wide = (0, b) if a.size(dim) == 1 else (1, a)
            small = compact(wide)
            if small.size(dim) > 1 and not constant_along(small, dim):
                self.record.spread[key] = narrow
                return narrow
        return None

    # -- channel selection in front of a layer

    def _selected(self, x: Tensor) -> Tensor:
        """The input after the layer's channel selection, if it has one."""
        emit = self.labels.emit
        selection = selection_of(self.module)
        if isinstance(emit, Replay):
            if self.name not in emit.wanted:
                return x
            dim = selection.dim if selection is not None else self._selection_dim(x)
            index = torch.from_numpy(self._replayed_selection(x, dim, emit.wanted[self.name]))
            return pick(padded(x, dim, 0, 1, GONE) if self.reads_all else x, dim, index)
        if selection is None:
            return x
        arriving = padded(x, selection.dim, 0, 1, GONE) if selection.filled else x
        return pick(arriving, selection.dim, selection.index.cpu())

    def _replayed_selection(self, x: Tensor, dim: int, wanted: Indices) -> Indices:
        """What the layer selects under the plan. Later calls of a layer select what its first call does."""
        arriving = self.vector(x, dim)
        if arriving is None:
            raise Mismatch(self.node, f"channels of {self.name} arrive on more than one axis")
        first = self.record.selected.get(self.name)
        if first is not None:
            if first.arriving != len(arriving) or first.dim != dim:
                raise Mismatch(self.node, f"{self.name} would have to select other channels in each call")
            return first.index
        index = (places if self.reads_all else match)(arriving.numpy(), wanted)
        if index is None:
            raise Mismatch(self.node, f"channels that {self.name} selects do not arrive at it")
        self.record.selected[self.name] = Selected(index, dim, len(arriving), self.reads_all)
        return index

    def _selection_dim(self, x: Tensor) -> int:
        layer = self.module
        if isinstance(layer, CONVOLUTIONS):
            return x.dim() - batched_dims(layer) + 1  # 1, or 0 without a batch dimension
        return x.dim() - 1 if isinstance(layer, nn.Linear) else 1
