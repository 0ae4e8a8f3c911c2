"""Feature maps of chosen channels on a handful of images: what pictures are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import call, device_of, move
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Reader
from secateur.errors import ScoreError
from secateur.scoring.tap_hooks import Slot, channels_first, gather


def feature_maps(graph: ChannelGraph, images: Any, wanted: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Unit -> maps [N, channels, height, width] of its wanted channels, in that order, float32 on the CPU.

    images: what the model takes, all of it in one forward pass. The maps are what is scored: the tensor that enters
    the unit's readers. Where a flatten comes before a linear reader, its pixels are put back into a square if they
    fill one. The model, its mode and hooks and the random generators are as they were, on errors too.
    """
    for name, channels in wanted.items():
        if name not in graph.units:
            raise ScoreError(f"no unit is called {name!r}; `secateur inspect` lists them")
        wrong = [c for c in channels if not 0 <= c < graph.units[name].width]
        if wrong:
            raise ScoreError(f"unit {name} has channels 0 to {graph.units[name].width - 1}, and no channel {wrong[0]}")
    found: dict[str, dict[int, Tensor]] = {name: {} for name in wanted}  # unit -> channel -> [N, height, width]
    with evaluating(graph.model), generators_kept(), torch.no_grad(), _watched(graph, wanted, found):
        call(graph.model, move(images, device_of(graph.model)))
    return {name: _stacked([found[name][c] for c in channels]) for name, channels in wanted.items()}


@contextmanager
def _watched(
    graph: ChannelGraph, wanted: Mapping[str, Sequence[int]], found: dict[str, dict[int, Tensor]]
) -> Iterator[None]:
    """Hooks on the readers of the wanted units. They come after a selection of channels, and are taken off again."""
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
    """[N, channels, height, width]; a map that another reader saw at another size gets the first one's."""
    size = maps[0].shape[1:]
    same = [m if m.shape[1:] == size else F.interpolate(m[:, None], size, mode="area")[:, 0] for m in maps]
    return torch.stack(same, 1)


def as_pixels(images: Tensor, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> Any:
    """Images [N, C, H, W] as uint8 [N, H, W, 1 or 3].

    mean, std: what the images were normalised with, to undo it exactly. Without them each image is stretched from its
    darkest to its brightest value. Of images with other numbers of channels the first is taken.
    """
    images = images.detach().float().cpu()
    if mean is not None and std is not None:
        images = images * torch.tensor(std).view(1, -1, 1, 1) + torch.tensor(mean).view(1, -1, 1, 1)
    images = images if images.shape[1] in (1, 3) else images[:, :1]
    if mean is None or std is None:
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        images = (images - low) / (high - low).clamp(min=1e-12)
    pixels: Any = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pixels)
