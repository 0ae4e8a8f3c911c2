"""Two channels of a layer, a weak and a strong one: their maps by class, and the maps in two dimensions (Fig. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError
from secateur.pictures.feature_maps import as_pixels, feature_maps
from secateur.pictures.projections import Array, Axes, Labels, discriminant_axes, principal_axes, told_apart
from secateur.pictures.unit_and_images import find_unit, images_of, scores_of_unit, silent_channels, speaking

BATCH = 128  # images in a forward pass


@dataclass(frozen=True, eq=False)
class Projection:
    """A channel's flattened maps in two dimensions."""

    points: Array  # [M, 2]
    told_apart: float  # share of them that lie nearest to the mean of their own class


@dataclass(frozen=True, eq=False)
class Seen:
    """One channel."""

    channel: int
    score: float
    maps: npt.NDArray[np.float32]  # [classes, each, height, width]
    projections: Mapping[str, Projection]  # "PCA", and "LDA" where there are three classes or more


@dataclass(frozen=True, eq=False)
class Separation:
    """A weak and a strong channel of a unit."""

    unit: str
    metric: str
    classes: tuple[int, ...]
    images: npt.NDArray[np.uint8]  # [classes, each, height, width, 1 or 3]
    labels: Labels  # [M] of the points
    weak: Seen
    strong: Seen
    silent: tuple[int, ...]  # channels passed over because they answer every image shown alike

    def numbers(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "unit": self.unit,
            "metric": self.metric,
            "classes": list(self.classes),
            "points": len(self.labels),
            "silent": list(self.silent),
            **{name: _numbers(seen) for name, seen in (("weak", self.weak), ("strong", self.strong))},
        }


def separation(
    graph: ChannelGraph,
    score_on: Batches,
    show: Batches,
    classes: Sequence[int],
    *,
    unit: str | None = None,
    metric: str = "gsd",
    weak: int | None = None,
    strong: int | None = None,
    each: int = 4,
    points: int = 100,
    images: int | None = 2000,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> Separation:
    """How well a weak and a strong channel of a unit tell classes apart (Fig. 1 of the paper).

    score_on: labelled images to score on, `images` of them. show: labelled images to draw; of each of the `classes`
        the first `each` as maps, the first `points` in two dimensions.
    unit: name of a unit or layer (`find_unit`). weak, strong: channels by number; by default the weakest and the
        strongest. Channels that are one value everywhere on the images shown are passed over.
    mean, std: what the images were normalised with, so that they are drawn in their own colours.
    The directions of both projections are fitted on every other image, and the rest is drawn: otherwise LDA would seem
    to separate maps of many pixels whatever they show.
    """
    if each < 1 or points < max(2, each):
        raise DataError(f"each should be at least 1 and points at least {max(2, each)}, not {each} and {points}")
    name = find_unit(graph, unit)
    scores = scores_of_unit(graph, name, score_on, [metric], images, seed=seed)[metric]
    pixels, labels = images_of(show, classes, points)
    first = _first_of_each(labels, classes, each)  # [classes, each]
    silent = silent_channels(graph, pixels[first.flatten()], name)
    order = speaking(scores.order(name), silent)
    chosen = [order[0] if weak is None else weak, order[-1] if strong is None else strong]
    maps = _maps(graph, pixels, name, chosen)  # [M, 2, height, width]
    drawn, numbers = as_pixels(pixels[first.flatten()], mean, std), labels.numpy()
    seen = [
        Seen(
            channel,
            float(scores.values[name][channel]),
            maps[first, i].numpy(),
            _projections(maps[:, i].flatten(1).double().numpy(), numbers),
        )
        for i, channel in enumerate(chosen)
    ]
    shape = (len(classes), each, *drawn.shape[1:])
    return Separation(name, metric, tuple(classes), drawn.reshape(shape), numbers[1::2], seen[0], seen[1], silent)


def _maps(graph: ChannelGraph, images: Tensor, unit: str, channels: list[int]) -> Tensor:
    # A channel may be asked for twice, and each is looked at once.
    unique = list(dict.fromkeys(channels))
    parts = [feature_maps(graph, few, {unit: unique})[unit] for few in torch.split(images, BATCH)]
    return torch.cat(parts)[:, [unique.index(channel) for channel in channels]]


def _first_of_each(labels: Tensor, classes: Sequence[int], each: int) -> Tensor:
    """[classes, each] places of the first images of every class."""
    rows = []
    for label in classes:
        places = torch.nonzero(labels == label)[:each, 0]
        if len(places) < each:
            raise DataError(f"class {label} has {len(places)} of the {each} images to show; take more images")
        rows.append(places)
    return torch.stack(rows)


def _projections(x: Array, labels: Labels) -> dict[str, Projection]:
    """Fitted on the images 0, 2, 4, ..., drawn for the others; x [M, pixels]."""
    fit, its_labels, drawn, rest = x[::2], labels[::2], x[1::2], labels[1::2]
    kinds: dict[str, Axes] = {"PCA": principal_axes(fit)}
    if len(np.unique(its_labels)) > 2:  # K classes have K - 1 discriminants
        kinds["LDA"] = discriminant_axes(fit, its_labels)
    return {
        name: Projection(axes(drawn), told_apart(axes(fit), its_labels, axes(drawn), rest))
        for name, axes in kinds.items()
    }


def _numbers(seen: Seen) -> dict[str, Any]:
    told = {name: projection.told_apart for name, projection in seen.projections.items()}
    return {"channel": seen.channel, "score": seen.score, "told_apart": told}
