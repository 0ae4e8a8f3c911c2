"""A weak and a strong channel of a layer: their maps by class, and the maps in two dimensions (Fig. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from secateur.base.batches import Batches
from secateur.base.options import replaced
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError
from secateur.pictures.feature_maps import feature_maps
from secateur.pictures.image_choice import Normalisation, as_pixels, images_of
from secateur.pictures.projections import Array, Axes, Labels, discriminant_axes, nearest_to_own_class, principal_axes
from secateur.pictures.settings import SeparationSettings
from secateur.pictures.unit_choice import find_unit, not_silent, scores_of_unit, silent_channels

BATCH = 128  # images in a forward pass


@dataclass(frozen=True, eq=False)
class Projection:
    """A channel's flattened maps in two dimensions."""

    points: Array  # [M, 2]
    own_class: float  # fraction of them that are nearest to the mean of their own class


@dataclass(frozen=True, eq=False)
class SeenChannel:
    """One channel."""

    channel: int
    score: float
    maps: npt.NDArray[np.float32]  # [classes, each, height, width]
    projections: Mapping[str, Projection]  # "PCA", and "LDA" if there are at least three classes


@dataclass(frozen=True, eq=False)
class Separation:
    """A weak and a strong channel of a unit."""

    unit: str
    metric: str
    classes: tuple[int, ...]
    images: npt.NDArray[np.uint8]  # [classes, each, height, width, 1 or 3]
    labels: Labels  # [M] of the points
    weak: SeenChannel
    strong: SeenChannel
    silent: tuple[int, ...]  # channels that were not chosen because they respond alike to every image shown

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
    normalised: Normalisation | None = None,
    settings: SeparationSettings | None = None,
    **changes: Any,
) -> Separation:
    """How well a weak and a strong channel of a unit separate classes (Fig. 1 of the paper).

    score_on: labelled images to score on. show: labelled images to draw: of each of the `classes`, the first `each` as
        maps and the first `points` in two dimensions.
    normalised: how the images were normalised, to draw them in their own colours.
    settings, changes: `SeparationSettings`, or its fields by name (layer=, metric=, weak=, each=, points=, ...).
    Channels with one value everywhere on the images shown are not chosen as weak or strong.
    Both projections are fitted on every other image and drawn for the rest. Otherwise LDA would seem to separate maps
    with many pixels, whatever they show.
    """
    chosen: SeparationSettings = replaced(settings or SeparationSettings(), changes, DataError)
    chosen.check()
    unit = find_unit(graph, chosen.layer)
    scores = scores_of_unit(graph, unit, score_on, [chosen.metric], chosen.num_images, chosen.seed)[chosen.metric]
    pixels, labels = images_of(show, classes, chosen.points)
    first = _first_of_each(labels, classes, chosen.each)  # [classes, each]
    silent = silent_channels(graph, pixels[first.flatten()], unit)
    order = not_silent(scores.order(unit), silent)
    channels = [order[0] if chosen.weak is None else chosen.weak, order[-1] if chosen.strong is None else chosen.strong]
    maps = _maps(graph, pixels, unit, channels)  # [M, 2, height, width]
    drawn, numbers = as_pixels(pixels[first.flatten()], normalised), labels.numpy()
    weak, strong = (
        SeenChannel(
            channel,
            float(scores.values[unit][channel]),
            maps[first, i].numpy(),
            _projections(maps[:, i].flatten(1).double().numpy(), numbers),
        )
        for i, channel in enumerate(channels)
    )
    shape = (len(classes), chosen.each, *drawn.shape[1:])
    return Separation(unit, chosen.metric, tuple(classes), drawn.reshape(shape), numbers[1::2], weak, strong, silent)


def _maps(graph: ChannelGraph, images: Tensor, unit: str, channels: list[int]) -> Tensor:
    # The same channel may be wanted twice.
    unique = list(dict.fromkeys(channels))
    parts = [feature_maps(graph, few, {unit: unique})[unit] for few in torch.split(images, BATCH)]
    return torch.cat(parts)[:, [unique.index(channel) for channel in channels]]


def _first_of_each(labels: Tensor, classes: Sequence[int], each: int) -> Tensor:
    """[classes, each] positions of the first images of every class."""
    rows = []
    for label in classes:
        places = torch.nonzero(labels == label)[:each, 0]
        if len(places) < each:
            raise DataError(f"class {label} has {len(places)} of the {each} images to show; use more images")
        rows.append(places)
    return torch.stack(rows)


def _projections(x: Array, labels: Labels) -> dict[str, Projection]:
    """Fitted on the images 0, 2, 4, ... of x [M, pixels], drawn for the others."""
    fit, its_labels, drawn, rest = x[::2], labels[::2], x[1::2], labels[1::2]
    kinds: dict[str, Axes] = {"PCA": principal_axes(fit)}
    if len(np.unique(its_labels)) > 2:  # K classes have K - 1 discriminants
        kinds["LDA"] = discriminant_axes(fit, its_labels)
    return {
        name: Projection(axes(drawn), nearest_to_own_class(axes(fit), its_labels, axes(drawn), rest))
        for name, axes in kinds.items()
    }


def _numbers(seen: SeenChannel) -> dict[str, Any]:
    own_class = {name: projection.own_class for name, projection in seen.projections.items()}
    return {"channel": seen.channel, "score": seen.score, "nearest_to_own_class": own_class}
