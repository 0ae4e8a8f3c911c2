"""What pictures of channels need: the unit that is meant, its scores alone, and images of some classes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.base.batches import Batches, unpack
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError, ScoreError
from secateur.pictures.feature_maps import feature_maps
from secateur.scoring.score import score_by
from secateur.scoring.scores import Scores

SECOND = 1


def find_unit(graph: ChannelGraph, name: str | None = None) -> str:
    """The unit of that name; of a layer's name, what it writes, or else what it reads.

    Without a name the second private unit: the paper looks at the second layer of LeNet-5, and of ResNet-50's first
    block.
    """
    if not graph.units:
        raise ScoreError("this network has no channels that could be removed; `secateur inspect` says why")
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
    near = get_close_matches(name, list(graph.units), n=3, cutoff=0.3) or list(graph.units)[:3]
    raise ScoreError(f"no unit or layer is called {name!r}; near it: {', '.join(near)} (`secateur inspect` lists all)")


def scores_of_unit(
    graph: ChannelGraph, unit: str, loader: Batches, metrics: Sequence[str], images: int | None, **how: Any
) -> dict[str, Scores]:
    """Scores of one unit by several metrics: the others cost nothing."""
    alone = copy.copy(graph)
    alone.units = {unit: graph.units[unit]}
    return score_by(alone, loader, list(dict.fromkeys(metrics)), images, **how)


def silent_channels(graph: ChannelGraph, images: Tensor, unit: str) -> tuple[int, ...]:
    """Channels that have one and the same value everywhere on all of these images: they have nothing to show."""
    maps = feature_maps(graph, images, {unit: range(graph.units[unit].width)})[unit]  # [N, width, h, w]
    return tuple(torch.nonzero(maps.amax((0, 2, 3)) == maps.amin((0, 2, 3)))[:, 0].tolist())


def speaking(order: Iterable[int], silent: Sequence[int]) -> list[int]:
    """The channels of `order` that are not silent; all of them where every one is."""
    everyone = [int(channel) for channel in order]
    return [channel for channel in everyone if channel not in silent] or everyone


def spread_classes(known: int, count: int) -> list[int]:
    """Up to `count` of the classes 0 .. known - 1, evenly spread."""
    if count < 1:
        raise DataError(f"at least one class should be shown, not {count}")
    places = np.linspace(0, known - 1, min(count, known)).round()
    return sorted({int(place) for place in places})


def images_of(loader: Batches, classes: Sequence[int], each: int) -> tuple[Tensor, Tensor]:
    """The first `each` images of every class [M, C, H, W] and their labels [M], class after class.

    A class that has fewer gives all it has; one that has none is an error. Reads no further than it needs.
    """
    found: dict[int, list[Tensor]] = {label: [] for label in classes}
    for index, batch in enumerate(loader):
        images, labels = unpack(batch, index)
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise DataError("pictures need batches of images [N, C, H, W]")
        for image, label in zip(images, labels.tolist(), strict=True):
            if label in found and len(found[label]) < each:
                found[label].append(image)
        if all(len(mine) >= each for mine in found.values()):
            break
    none = [label for label, mine in found.items() if not mine]
    if none:
        raise DataError(f"there is no image of class {none[0]} to show; take more images, or another part")
    counts = torch.tensor([len(found[label]) for label in classes])
    images = torch.stack([image for label in classes for image in found[label]])
    return images, torch.tensor(classes).repeat_interleave(counts)
