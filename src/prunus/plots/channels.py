"""The weakest and the strongest channel on images, and the mean response of the strongest by several metrics.

These are the paper's Figs. 3 and 7. `channels_picture` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from prunus.errors import DataError
from prunus.graph.channel_graph import ChannelGraph
from prunus.plots.choices import (
    ChannelsFigureSettings,
    Normalisation,
    as_pixels,
    feature_maps,
    find_unit,
    images_of,
    not_silent,
    scores_of_unit,
    silent_channels,
)
from prunus.plots.style import PAGE, figure, metric_name, show_image, show_map, styled, without_axes
from prunus.score.evidence import scales
from prunus.util.batches import Batches
from prunus.util.options import replaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FloatMaps = npt.NDArray[np.float32]  # [N, height, width]


@dataclass(frozen=True, eq=False)
class ChannelsFigure:
    """Channels of one unit on some images."""

    unit: str
    by: str  # the metric that finds the weakest and the strongest channel
    images: npt.NDArray[np.uint8]  # [N, height, width, 1 or 3]
    labels: tuple[int, ...]
    weak: int
    strong: int
    weak_maps: FloatMaps
    strong_maps: FloatMaps
    strongest: Mapping[str, tuple[int, ...]]  # metric -> its strongest channels, strongest first
    averages: Mapping[str, FloatMaps]  # metric -> mean over those channels
    scores: Mapping[str, tuple[float, ...]]  # metric -> score of every channel
    silent: tuple[int, ...]  # channels that cannot be the weakest because they respond alike to every image shown
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
    normalised: Normalisation | None = None,
    settings: ChannelsFigureSettings | None = None,
    **changes: Any,
) -> ChannelsFigure:
    """The weakest and the strongest channel by one metric, and the mean map of the strongest by each of several.

    score_on: labelled images to score on. show: labelled images to draw, one of each of `classes`.
    normalised: how the images were normalised, to draw them in their own colours.
    settings, changes: `ChannelsFigureSettings`, or its fields by name (layer=, by=, metrics=, top=, skip=, ...).
    Channels with one value everywhere on the images shown cannot be the weakest or the strongest.
    """
    chosen: ChannelsFigureSettings = replaced(settings or ChannelsFigureSettings(), changes, DataError)
    chosen.check()
    unit = find_unit(graph, chosen.layer)
    found = scores_of_unit(graph, unit, score_on, [*chosen.metrics, chosen.by], chosen.num_images, chosen.seed)
    order = {metric: [int(c) for c in scores.order(unit)] for metric, scores in found.items()}
    strongest = {metric: tuple(order[metric][::-1][: chosen.top]) for metric in chosen.metrics}
    pixels = _one_of_each(show, classes, chosen.skip)
    maps = feature_maps(graph, pixels, {unit: range(graph.units[unit].width)})[unit].numpy()  # [N, width, h, w]
    silent = silent_channels(graph, pixels, unit)
    alive = not_silent(order[chosen.by], silent)
    weak, strong = alive[0], alive[-1]
    return ChannelsFigure(
        unit=unit,
        by=chosen.by,
        images=as_pixels(pixels, normalised),
        labels=tuple(classes),
        weak=weak,
        strong=strong,
        weak_maps=maps[:, weak],
        strong_maps=maps[:, strong],
        strongest=strongest,
        averages={metric: maps[:, list(channels)].mean(1) for metric, channels in strongest.items()},
        scores={metric: tuple(map(float, scores.values[unit])) for metric, scores in found.items()},
        silent=silent,
        notes=tuple(_notes(graph, unit, chosen)),
    )


def _one_of_each(show: Batches, classes: Sequence[int], skip: int) -> Tensor:
    """One image of each class, after skipping `skip` images of it (the last one of a class that has fewer)."""
    pixels, labels = images_of(show, classes, skip + 1)
    numbers = labels.tolist()
    return pixels[[len(numbers) - 1 - numbers[::-1].index(label) for label in classes]]


def _notes(graph: ChannelGraph, unit: str, settings: ChannelsFigureSettings) -> list[str]:
    notes, width = [], graph.units[unit].width
    if "bn_scale" in settings.metrics and scales(graph, graph.units[unit]) is None:
        notes.append("These channels pass through no batch norm of their own: the filters' L2 norm is used instead.")
    if settings.top >= width:
        notes.append(f"The unit has {width} channels, so each average is over all of them.")
    return notes


# Figs. 3 and 7 as a picture: one row per image, with channels and mean responses side by side.


def draw_channels(found: ChannelsFigure, names: Sequence[str] | None = None) -> Figure:
    """One row per image. The two single channels share one colour scale; each mean response has its own.

    names: of all classes; without it, classes are shown by number.
    """
    columns = 3 + len(found.averages)
    rows, ratio = len(found.labels), found.images.shape[1] / found.images.shape[2]
    fig, axes = figure(PAGE, rows * (PAGE - 0.3) / columns * ratio + 0.62, rows, columns, squeeze=False)
    with styled():
        for row, label in enumerate(found.labels):
            _row(axes[row], found, row)
            axes[row, 0].set_ylabel(str(label) if names is None else names[label], fontsize=8)
        for one, words in zip(axes[0], _titles(found), strict=True):
            one.set_title(words, fontsize=7.5)
        spacing: Any = fig.get_layout_engine()
        spacing.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    return fig


def _row(axes: Sequence[Any], found: ChannelsFigure, row: int) -> None:
    low = float(min(found.weak_maps.min(), found.strong_maps.min()))
    high = float(max(found.weak_maps.max(), found.strong_maps.max()))
    show_image(axes[0], found.images[row])
    show_map(axes[1], found.weak_maps[row], low, high)
    show_map(axes[2], found.strong_maps[row], low, high)
    for one, maps in zip(axes[3:], found.averages.values(), strict=True):
        show_map(one, maps[row], float(maps[row].min()), float(maps[row].max()))
    for one in axes:
        without_axes(one)


def _titles(found: ChannelsFigure) -> list[str]:
    by = metric_name(found.by)
    titles = ["image", f"weakest\nby {by}\n(channel {found.weak})", f"strongest\nby {by}\n(channel {found.strong})"]
    for metric, channels in found.strongest.items():
        titles.append(f"mean of the\n{len(channels)} strongest\nby {metric_name(metric)}")
    return titles
