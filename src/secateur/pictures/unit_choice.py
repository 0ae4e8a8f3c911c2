"""The unit that a figure shows, and the scores and silent channels of that unit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches

import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import ScoreError
from secateur.pictures.feature_maps import feature_maps
from secateur.scoring.score import score_by
from secateur.scoring.scores import Scores
from secateur.scoring.settings import ScoreSettings

SECOND = 1


def find_unit(graph: ChannelGraph, name: str | None = None) -> str:
    """The name of the unit that a user means by `name`: a unit, or a layer that writes or reads it.

    Without a name: the second private unit, because the paper shows the second layer of LeNet-5 and of the first block
    of ResNet-50.
    """
    if not graph.units:
        raise ScoreError("this network has no channels that can be removed; `secateur inspect` lists the reasons")
    if name is None:
        private = [unit for unit, found in graph.units.items() if found.kind == "private"] or list(graph.units)
        return private[min(SECOND, len(private) - 1)]
    if name in graph.units:
        return name
    for unit, found in graph.units.items():
        if found.kind == "private" and name in [writer.module for writer in found.writers]:
            return unit
    for unit, found in graph.units.items():
        if name in [reader.module for reader in found.readers]:
            return unit
    near = get_close_matches(name, [*graph.units, *graph.layers], n=3)
    guess = f": did you mean {' or '.join(near)}?" if near else ";"
    raise ScoreError(f"there is no unit or layer called {name!r}{guess} `secateur inspect` lists them")


def scores_of_unit(
    graph: ChannelGraph, unit: str, loader: Batches, metrics: Sequence[str], num_images: int | None, seed: int
) -> dict[str, Scores]:
    """Scores of one unit by several metrics. Other units are not scored.

    num_images: also of metrics that need whole feature maps; None: all, and the usual number for those metrics.
    """
    alone = copy.copy(graph)
    alone.units = {unit: graph.units[unit]}
    settings = ScoreSettings(num_images, seed=seed)
    if num_images is not None:
        settings = replace(settings, num_map_images=num_images)
    return score_by(alone, loader, metrics, settings)


def silent_channels(graph: ChannelGraph, images: Tensor, unit: str) -> tuple[int, ...]:
    """Channels with one and the same value everywhere on all of these images. A picture of them would be empty."""
    maps = feature_maps(graph, images, {unit: range(graph.units[unit].width)})[unit]  # [N, width, h, w]
    return tuple(torch.nonzero(maps.amax((0, 2, 3)) == maps.amin((0, 2, 3)))[:, 0].tolist())


def not_silent(order: Iterable[int], silent: Sequence[int]) -> list[int]:
    """The channels of `order` that are not silent; all channels if every one is silent."""
    channels = [int(channel) for channel in order]
    return [channel for channel in channels if channel not in silent] or channels
