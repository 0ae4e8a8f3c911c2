"""Weak and strong channels on images, and the average response of the strongest by several metrics (Figs. 3 and 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError
from secateur.pictures.feature_maps import as_pixels, feature_maps
from secateur.pictures.unit_and_images import find_unit, images_of, scores_of_unit, silent_channels, speaking
from secateur.scoring.weights import scales

METRICS = ("l1", "bn_scale", "fpgm", "di", "gsd")  # the columns of the paper's Fig. 3
Maps = npt.NDArray[np.float32]  # [N, height, width]


@dataclass(frozen=True, eq=False)
class ChannelsShown:
    """Channels of one unit on some images."""

    unit: str
    by: str  # the metric that says which channel is weak
    images: npt.NDArray[np.uint8]  # [N, height, width, 1 or 3]
    labels: tuple[int, ...]
    weak: int
    strong: int
    weak_maps: Maps
    strong_maps: Maps
    strongest: Mapping[str, tuple[int, ...]]  # metric -> its strongest channels, the strongest first
    averages: Mapping[str, Maps]  # metric -> mean over those channels
    scores: Mapping[str, tuple[float, ...]]  # metric -> score of every channel
    silent: tuple[int, ...]  # channels passed over as the weakest because they answer every image shown alike
    notes: tuple[str, ...]

    def numbers(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "unit": self.unit,
            "by": self.by,
            "labels": list(self.labels),
            "weak": self.weak,
            "strong": self.strong,
            "strongest": {metric: list(channels) for metric, channels in self.strongest.items()},
            "scores": {metric: list(values) for metric, values in self.scores.items()},
            "silent": list(self.silent),
            "notes": list(self.notes),
        }


def channels_shown(
    graph: ChannelGraph,
    score_on: Batches,
    show: Batches,
    classes: Sequence[int],
    *,
    unit: str | None = None,
    by: str = "gsd",
    metrics: Sequence[str] = METRICS,
    top: int = 10,
    skip: int = 0,
    images: int | None = 2000,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    seed: int = 0,
) -> ChannelsShown:
    """The weakest and the strongest channel by `by`, and the mean map of the `top` strongest by each of `metrics`.

    score_on: labelled images to score on, `images` of them. show: labelled images to draw, one of each of `classes`;
        `skip` passes over so many of each class first, for further pictures.
    unit: name of a unit or layer (`find_unit`). mean, std: what the images were normalised with.
    Channels that are one value everywhere on the images shown are passed over as the weakest.
    """
    if top < 1 or skip < 0:
        raise DataError(f"top should be at least 1 and skip not negative, not {top} and {skip}")
    name = find_unit(graph, unit)
    found = scores_of_unit(graph, name, score_on, [*metrics, by], images, seed=seed)
    order = {metric: [int(c) for c in scores.order(name)] for metric, scores in found.items()}
    strongest = {metric: tuple(order[metric][::-1][:top]) for metric in metrics}
    pixels, labels = _one_of_each(show, classes, skip)
    maps = feature_maps(graph, pixels, {name: range(graph.units[name].width)})[name].numpy()  # [N, width, h, w]
    silent = silent_channels(graph, pixels, name)
    alive = speaking(order[by], silent)
    weak, strong = alive[0], alive[-1]
    return ChannelsShown(
        unit=name,
        by=by,
        images=as_pixels(pixels, mean, std),
        labels=labels,
        weak=weak,
        strong=strong,
        weak_maps=maps[:, weak],
        strong_maps=maps[:, strong],
        strongest=strongest,
        averages={metric: maps[:, list(channels)].mean(1) for metric, channels in strongest.items()},
        scores={metric: tuple(map(float, scores.values[name])) for metric, scores in found.items()},
        silent=silent,
        notes=tuple(_notes(graph, name, metrics, top)),
    )


def _one_of_each(show: Batches, classes: Sequence[int], skip: int) -> tuple[Tensor, tuple[int, ...]]:
    pixels, labels = images_of(show, classes, skip + 1)
    numbers = labels.tolist()
    last = [len(numbers) - 1 - numbers[::-1].index(label) for label in classes]
    return pixels[last], tuple(classes)


def _notes(graph: ChannelGraph, unit: str, metrics: Sequence[str], top: int) -> list[str]:
    notes = []
    if "bn_scale" in metrics and scales(graph, graph.units[unit]) is None:
        notes.append("These channels go through no batch norm of their own: the filters' L2 norm stands in for it.")
    if top >= graph.units[unit].width:
        notes.append(f"The unit has {graph.units[unit].width} channels, so each average is over all of them.")
    return notes
