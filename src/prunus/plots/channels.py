"""The weakest and the strongest channel on images, and the mean response of the strongest by several metrics.

These are the paper's Figs. 3 and 7: `channels_shown` computes them, `draw_channels` draws them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prunus.errors import DataError
from prunus.graph.channel_graph import ChannelGraph
from prunus.plots.choices import (
    Normalisation,
    as_pixels,
    feature_maps,
    find_unit,
    images_of,
    scores_of_unit,
    without_silent,
)
from prunus.plots.settings import ChannelsFigureSettings
from prunus.plots.style import PAGE, figure, metric_name, show_image, show_map, styled
from prunus.scoring.evidence import scales
from prunus.util.batches import Batches
from prunus.util.options import replaced
from prunus.util.typed_json import to_data

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
        names = ("unit", "by", "labels", "weak", "strong", "strongest", "scores", "silent", "notes")
        return {name: to_data(getattr(self, name)) for name in names}


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

    Channels with one value everywhere on the images shown cannot be the weakest or the strongest.

    Args:
        graph: The traced network.
        score_on: Labelled images to score on.
        show: Labelled images to draw, one of each of `classes`.
        classes: The classes to show.
        normalised: How the images were normalised, to draw them in their own colours.
        settings: Which channels and images; see `ChannelsFigureSettings`.
        changes: Its fields by name (layer=, by=, metrics=, top=, skip=, ...).
    """
    chosen: ChannelsFigureSettings = replaced(settings or ChannelsFigureSettings(), changes, DataError)
    chosen.check()
    unit = find_unit(graph, chosen.layer)
    width = graph.units[unit].width
    scores = scores_of_unit(graph, unit, score_on, [*chosen.metrics, chosen.by], chosen.num_images, chosen.seed)
    order = {metric: [int(c) for c in of_metric.order(unit)] for metric, of_metric in scores.items()}
    strongest = {metric: tuple(order[metric][::-1][: chosen.top]) for metric in chosen.metrics}
    # One image of each class, after skipping some of it; the last one of a class that has fewer.
    pixels, labels = images_of(show, classes, chosen.skip + 1)
    last = {label: place for place, label in enumerate(labels.tolist())}
    pixels = pixels[[last[label] for label in classes]]
    all_maps = feature_maps(graph, pixels, {unit: range(width)})[unit]  # [N, width, h, w]
    alive, silent = without_silent(order[chosen.by], all_maps)
    maps, weak, strong = all_maps.numpy(), alive[0], alive[-1]
    notes = []
    if "bn_scale" in chosen.metrics and scales(graph, graph.units[unit]) is None:
        notes.append("These channels pass through no batch norm of their own: the filters' L2 norm is used instead.")
    if chosen.top >= width:
        notes.append(f"The unit has {width} channels, so each average is over all of them.")
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
        scores={metric: tuple(map(float, of_metric.values[unit])) for metric, of_metric in scores.items()},
        silent=silent,
        notes=tuple(notes),
    )


def draw_channels(shown: ChannelsFigure, names: Sequence[str] | None = None) -> Figure:
    """One row per image. The two single channels share one colour scale; each mean response has its own.

    Args:
        shown: What `channels_shown` computed.
        names: Of all classes; without it, classes are shown by number.
    """
    columns, rows = 3 + len(shown.averages), len(shown.labels)
    ratio = shown.images.shape[1] / shown.images.shape[2]
    by = metric_name(shown.by)
    titles = ["image", f"weakest\nby {by}\n(channel {shown.weak})", f"strongest\nby {by}\n(channel {shown.strong})"]
    for metric, channels in shown.strongest.items():
        titles.append(f"mean of the\n{len(channels)} strongest\nby {metric_name(metric)}")
    low = float(min(shown.weak_maps.min(), shown.strong_maps.min()))
    high = float(max(shown.weak_maps.max(), shown.strong_maps.max()))
    fig, axes = figure(PAGE, rows * (PAGE - 0.3) / columns * ratio + 0.62, rows, columns, squeeze=False)
    with styled():
        for row, label in enumerate(shown.labels):
            show_image(axes[row, 0], shown.images[row])
            show_map(axes[row, 1], shown.weak_maps[row], low, high)
            show_map(axes[row, 2], shown.strong_maps[row], low, high)
            for one, maps in zip(axes[row, 3:], shown.averages.values(), strict=True):
                show_map(one, maps[row], float(maps[row].min()), float(maps[row].max()))
            for one in axes[row]:
                one.set(xticks=[], yticks=[], frame_on=False)
                one.grid(False)
            axes[row, 0].set_ylabel(str(label) if names is None else names[label], fontsize=8)
        for one, title in zip(axes[0], titles, strict=True):
            one.set_title(title, fontsize=7.5)
        spacing: Any = fig.get_layout_engine()
        spacing.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    return fig
