"""The tensors that a pass looks at: those that enter the readers, or those in front of the activations before them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base.preserve_state import evaluating, generators_kept, nothing_compiled
from secateur.channels.graph import ChannelGraph
from secateur.channels.traced import as_call
from secateur.errors import ScoreError
from secateur.scoring.activations import ActivationTaps, ActivationTracer, Origin
from secateur.scoring.settings import Where
from secateur.scoring.tap_hooks import See, Sharing, Slot, Tap, reading_taps, tapped

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TapLocations:
    """The taps of a pass: by layer for tensors that enter it, by call for tensors in front of an activation."""

    readers: Mapping[str, Tap]
    activations: Mapping[int, Tap] = field(default_factory=dict)
    last_axis: frozenset[int] = frozenset()  # activation calls whose channels are at the last axis
    notes: tuple[str, ...] = ()

    @property
    def taps(self) -> dict[str, Tap]:
        """All taps by name."""
        return {**self.readers, **{tap.name: tap for tap in self.activations.values()}}


def locate_taps(graph: ChannelGraph, where: Where) -> TapLocations:
    """The taps for `where`; "before_activation" runs the example once to find the activation that each layer reads."""
    taps = reading_taps(graph)
    if where == "reader":
        return TapLocations(taps)
    if where != "before_activation":
        raise ScoreError(f'tap must be "reader" or "before_activation", got {where!r}')
    origins = _origins(graph, taps)
    readers: dict[str, Tap] = {}
    slots: dict[int, list[Slot]] = {}
    last_axis: set[int] = set()
    notes: list[str] = []
    for name, tap in taps.items():
        at_end = isinstance(graph.model.get_submodule(name), nn.Linear)
        rest = []
        for slot in tap.slots:
            moved = _moved(slot, origins[name], at_end)
            rest += [] if moved is not None else [slot]
            for call, part in (moved or {}).items():
                slots.setdefault(call, []).append(part)
                if at_end and origins[name].direct == call:  # type: ignore[union-attr]
                    last_axis.add(call)
        if rest:
            readers[name] = Tap(name, tuple(rest))
            units = " and ".join(dict.fromkeys(slot.unit for slot in rest))
            several = graph.found.traced.calls.get(name, 1) > 1
            why = f"{name} is called several times" if several else f"there is no activation right before {name}"
            notes.append(f"{units}: {why}, so its input is scored")
    for note in notes:
        log.info("%s", note)
    activations = {call: Tap(f"activation {call}", tuple(parts)) for call, parts in sorted(slots.items())}
    return TapLocations(readers, activations, frozenset(last_axis), tuple(notes))


@contextmanager
def watched(graph: ChannelGraph, places: TapLocations, see: See) -> Iterator[Sharing]:
    """Inside the block every forward pass of the model shows the taps' tensors to `see`. Hooks are removed after it."""
    with tapped(graph, places.readers, see) as sharing:
        if not places.activations:
            yield sharing
            return
        look = ActivationTaps(
            {call: _shown(see, tap.name, call in places.last_axis) for call, tap in places.activations.items()}
        )
        handle = graph.model.register_forward_pre_hook(lambda *_: look.restart())
        try:
            with look:
                yield sharing
        finally:
            handle.remove()


def _shown(see: See, name: str, at_end: bool) -> Callable[[Tensor], None]:
    return lambda x: see(name, x.movedim(-1, 1) if at_end and x.ndim > 2 else x)


def _origins(graph: ChannelGraph, taps: Mapping[str, Tap]) -> dict[str, Origin | None]:
    """For each tapped layer that is called once: the activations that its input comes from."""
    follow = ActivationTracer()
    origins: dict[str, Origin | None] = dict.fromkeys(taps)
    model = graph.model
    args, kwargs = as_call(graph.example)

    def note(name: str, _: nn.Module, given: tuple[Any, ...]) -> None:
        origins[name] = follow.origin(given[0]) if given and isinstance(given[0], Tensor) else None

    once = [name for name in taps if graph.found.traced.calls.get(name, 1) == 1]
    handles = [model.get_submodule(name).register_forward_pre_hook(partial(note, name)) for name in once]
    try:
        with evaluating(model), generators_kept(), torch.no_grad(), nothing_compiled(), follow:
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return origins


def _moved(slot: Slot, origin: Origin | None, at_end: bool) -> dict[int, Slot] | None:
    """The slot in front of the activations, one part for each call; None if some channel comes from no activation."""
    if origin is None:
        return None
    if at_end and origin.direct is not None:  # the positions of the last axis are those of the activation
        return {origin.direct: slot}
    if slot.inputs.max() >= len(origin.call):
        return None
    call, channel = origin.call[slot.inputs], origin.channel[slot.inputs]  # [n, m] each
    if (call < 0).any() or (call != call[:, :1]).any() or (channel != channel[:, :1]).any():
        return None
    parts = {}
    for number in np.unique(call[:, 0]):
        mine = call[:, 0] == number
        parts[int(number)] = Slot(slot.unit, slot.channels[mine], channel[mine, :1], slot.readers)
    return parts
