"""The tensors that enter the readers. A tensor that several layers read is looked at once."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from secateur.base.preserve_state import nothing_compiled
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Indices, Reader
from secateur.errors import ScoreError


@dataclass(frozen=True, eq=False)
class Slot:
    """Some of a unit's channels in one tensor: their positions [n, m] on its channel axis."""

    unit: str
    channels: Indices  # [n]
    inputs: Indices  # [n, m]
    readers: tuple[Reader, ...]  # the unit's layers that read them there

    @property
    def key(self) -> bytes:
        """What must be reduced: empty for each position of the axis separately, else the slot's pooled positions."""
        return b"" if self.inputs.shape[1] == 1 else self.inputs.tobytes()


@dataclass(frozen=True, eq=False)
class Tap:
    """The tensor that enters one layer, or several that share it; `name` is the first of them."""

    name: str
    slots: tuple[Slot, ...]

    def needs(self) -> dict[bytes, Slot]:
        """What must be reduced here: key -> a slot that needs it."""
        return {slot.key: slot for slot in self.slots}


def reading_taps(graph: ChannelGraph) -> dict[str, Tap]:
    """One tap for each layer that reads channels of some unit, in the order of the units."""
    slots: dict[str, list[Slot]] = {}
    for name, unit in graph.units.items():
        for reader in unit.readers:
            slots.setdefault(reader.module, []).append(Slot(name, reader.channels, reader.inputs, (reader,)))
    return {module: Tap(module, tuple(parts)) for module, parts in slots.items()}


def channels_first(x: Tensor, layer: nn.Module) -> Tensor:
    """The tensor that enters `layer` with its channel axis at 1; linear layers have it at the end."""
    return x.movedim(-1, 1) if isinstance(layer, nn.Linear) and x.ndim > 2 else x


def gather(x: Tensor, slot: Slot) -> Tensor:
    """The slot's channels of x [N, F, ...], all positions of a channel together: [N, n, m x P].

    This is a view if they are in order (an ordinary flatten).
    """
    n, m = slot.inputs.shape
    flat = slot.inputs.reshape(-1)
    if n * m == x.shape[1] and np.array_equal(flat, np.arange(n * m)):
        return x.reshape(len(x), n, -1)
    return x[:, torch.from_numpy(flat).to(x.device)].reshape(len(x), n, -1)


See = Callable[[str, Tensor], None]  # the tap's name and its tensor, channels at axis 1


@dataclass
class Sharing:
    """Which layers read the same tensor as another layer before them."""

    owner: dict[str, str] = field(default_factory=dict)  # layer -> the first layer that reads its tensor

    def merged(self, taps: Mapping[str, Tap]) -> dict[str, Tap]:
        """The taps, with those that share a tensor merged into one."""
        slots: dict[str, list[Slot]] = {}
        for name, tap in taps.items():
            mine = slots.setdefault(self.owner.get(name, name), [])
            for slot in tap.slots:
                _add(mine, slot)
        return {name: Tap(name, tuple(parts)) for name, parts in slots.items()}


def _add(slots: list[Slot], new: Slot) -> None:
    for i, slot in enumerate(slots):
        same = slot.unit == new.unit and np.array_equal(slot.channels, new.channels)
        if same and np.array_equal(slot.inputs, new.inputs):
            slots[i] = Slot(slot.unit, slot.channels, slot.inputs, (*slot.readers, *new.readers))
            return
    slots.append(new)


@contextmanager
def tapped(graph: ChannelGraph, taps: Mapping[str, Tap], see: See) -> Iterator[Sharing]:
    """Inside the block every forward pass of `graph.model` shows each tap's tensor to `see`, a shared one only once.

    A layer that is called several times shows the tensor of each call, and shares it with no other layer.
    The hooks run after existing hooks, so they see the channels that a channel selection has left. They are removed
    afterwards, on errors too.
    """
    sharing, calls = Sharing(), graph.found.traced.calls
    seen: dict[
        tuple[int, bool], tuple[weakref.ref[Tensor], int, str]
    ] = {}  # (id of the tensor, linear layer?) -> tensor, version, layer
    handles: list[RemovableHandle] = []

    def look(name: str, layer: nn.Module, args: tuple[Any, ...]) -> None:
        if not args or not isinstance(args[0], Tensor):
            raise ScoreError(f"{name} must be called with a tensor as its first argument; it cannot be scored")
        x = args[0]
        key = (id(x), isinstance(layer, nn.Linear))  # linear layers have their channel axis elsewhere
        tensor, version, owner = seen.get(key, (lambda: None, 0, ""))
        once = calls.get(name, 1) == calls.get(owner, 1) == 1
        known = once and tensor() is x and version == x._version and owner != name
        if known and taps[name].needs().keys() <= taps[owner].needs().keys():
            sharing.owner[name] = owner
            return
        seen[key] = (weakref.ref(x), x._version, name)
        see(name, channels_first(x, layer))

    try:
        for name in taps:
            hook = functools.partial(look, name)
            handles.append(graph.model.get_submodule(name).register_forward_pre_hook(hook))
        with nothing_compiled():  # compiled code does not see new hooks
            yield sharing
    finally:
        for handle in handles:
            handle.remove()
