"""Feature maps of chosen channels on a few images, for pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import call, device_of, move
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.registry import unknown
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Reader
from secateur.errors import ScoreError
from secateur.scoring.tap_hooks import Slot, channels_first, gather


def feature_maps(graph: ChannelGraph, images: Any, wanted: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """unit -> maps [N, channels, height, width] of its wanted channels, in that order, float32 on the CPU.

    images: the model's input, in one forward pass. The maps are the tensors that metrics score: those that enter the
    unit's readers. If a flatten precedes a linear reader, the pixels are arranged as a square if possible. The model,
    its mode, its hooks and the random generators are left unchanged, also after an error.
    """
    for name, channels in wanted.items():
        if name not in graph.units:
            raise ScoreError(unknown("unit", name, list(graph.units)))
        wrong = [c for c in channels if not 0 <= c < graph.units[name].width]
        if wrong:
            raise ScoreError(f"unit {name} has channels 0 to {graph.units[name].width - 1}, but not {wrong[0]}")
    found: dict[str, dict[int, Tensor]] = {name: {} for name in wanted}  # unit -> channel -> [N, height, width]
    with evaluating(graph.model), generators_kept(), torch.no_grad(), _watched(graph, wanted, found):
        call(graph.model, move(images, device_of(graph.model)))
    return {name: _stacked([found[name][c] for c in channels]) for name, channels in wanted.items()}


@contextmanager
def _watched(
    graph: ChannelGraph, wanted: Mapping[str, Sequence[int]], found: dict[str, dict[int, Tensor]]
) -> Iterator[None]:
    """Hooks on the readers of the wanted units, called after the hooks that select channels, and removed at the end."""
    handles = []

    def look(unit: str, reader: Reader, layer: nn.Module, args: tuple[Any, ...]) -> None:
        fresh = [i for i, c in enumerate(reader.channels) if c in wanted[unit] and int(c) not in found[unit]]
        if not fresh:
            return
        slot = Slot(unit, reader.channels[fresh], reader.inputs[fresh], (reader,))
        maps = _as_maps(channels_first(args[0], layer), slot)
        found[unit] |= {int(c): maps[:, i] for i, c in enumerate(slot.channels)}

    try:
        for unit in wanted:
            for reader in graph.units[unit].readers:
                layer = graph.model.get_submodule(reader.module)
                handles.append(layer.register_forward_pre_hook(partial(look, unit, reader)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _as_maps(x: Tensor, slot: Slot) -> Tensor:
    """The slot's channels of x [N, F, ...] as [N, n, height, width]."""
    flat = gather(x, slot).detach().float().cpu()  # [N, n, pixels]
    pixels = flat.shape[2]
    if slot.inputs.shape[1] == 1 and x.ndim == 4:
        height = x.shape[2]
    else:
        side = math.isqrt(pixels)
        height = side if side * side == pixels else 1
    return flat.reshape(*flat.shape[:2], height, pixels // height).clone()


def _stacked(maps: Sequence[Tensor]) -> Tensor:
    """Maps as [N, channels, height, width]. Maps of other sizes, from other readers, are resized to the first one's."""
    size = maps[0].shape[1:]
    same = [m if m.shape[1:] == size else F.interpolate(m[:, None], size, mode="area")[:, 0] for m in maps]
    return torch.stack(same, 1)
