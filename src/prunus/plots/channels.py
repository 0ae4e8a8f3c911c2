"""The paper's pictures of channels.

`channels_shown` (Figs. 3 and 7): the weakest and the strongest channel, and the mean response of the strongest by some
metrics. `separation` (Fig. 1): how well a weak and a strong channel separate classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from prunus.errors import DataError
from prunus.graph.channel_graph import ChannelGraph
from prunus.plots.choices import (
    Normalised,
    as_pixels,
    feature_maps,
    find_unit,
    images_of,
    scores_of_unit,
    without_silent,
)
from prunus.plots.settings import ChannelsFigureSettings, SeparationSettings
from prunus.plots.style import MARKERS, PAGE, figure, metric_name, show_image, show_map, styled
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
    normalised: Normalised | None = None,
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
        normalised: Mean and standard deviation that the images were normalised with, to draw them in their own colours.
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

    names: of all classes; without it, classes are shown by number.
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


# -- a weak and a strong channel of a layer: their maps by class, and the maps in two dimensions (Fig. 1)

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
BATCH = 128  # images in a forward pass
TINY = 1e-7  # directions whose spread is below this fraction of the largest are rounding noise


Project = Callable[[Array], Array]  # [N, d] -> [N, count]


def principal_axes(x: Array, count: int = 2) -> Project:
    """Projection on the directions of the largest variance of x [N, d]; zeros where x varies in fewer directions."""
    if not np.any(x - x[0]):  # scikit-learn would divide 0 by 0
        return lambda points: np.zeros((len(points), count))
    fitted = PCA(min(count, *x.shape), svd_solver="full").fit(x)
    real = int((fitted.singular_values_ > TINY * fitted.singular_values_[0]).sum())
    return lambda points: np.pad(fitted.transform(points)[:, :real], ((0, 0), (0, count - real)))


def discriminant_axes(x: Array, labels: Labels) -> Project:
    """Projection on Fisher's first two directions: class means are farthest apart along them, relative to the spread
    within classes.

    They maximise w^T S_B w / w^T S_W w, with w^T S_W w = 1. Maps with many pixels are first reduced to (N - K) / 4
    principal components (N images of K classes), because N points in more than N dimensions can always be separated.
    """
    classes = np.unique(labels)
    reduced = principal_axes(x, min(max(2, (len(x) - len(classes)) // 4), *x.shape))
    z = reduced(x)  # [N, r]
    real = z.any(0)
    if not any(np.ptp(z[labels == c], axis=0).any() for c in classes):  # no spread within classes to compare with
        return lambda points: np.zeros((len(points), 2))
    fitted = LinearDiscriminantAnalysis(solver="svd", tol=TINY).fit(z[:, real], labels)

    def project(points: Array) -> Array:
        found = fitted.transform(reduced(points)[:, real])[:, :2]
        return np.pad(found, ((0, 0), (0, 2 - found.shape[1])))

    return project


def nearest_to_own_class(fitted: Array, its_labels: Labels, drawn: Array, labels: Labels) -> float:
    """Fraction of the `drawn` points that are nearest to the mean of their own class among the `fitted` points."""
    classes = np.unique(its_labels)
    means = np.stack([fitted[its_labels == c].mean(0) for c in classes])  # [K, 2]
    distances = ((drawn[:, None] - means) ** 2).sum(2)  # [M, K]
    return float((classes[distances.argmin(1)] == labels).mean())


class Projection(NamedTuple):
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
        data: dict[str, Any] = {name: to_data(getattr(self, name)) for name in ("unit", "metric", "classes", "silent")}
        data["points"] = len(self.labels)
        for name, seen in (("weak", self.weak), ("strong", self.strong)):
            own_class = {kind: projection.own_class for kind, projection in seen.projections.items()}
            data[name] = {"channel": seen.channel, "score": seen.score, "nearest_to_own_class": own_class}
        return data


def separation(
    graph: ChannelGraph,
    score_on: Batches,
    show: Batches,
    classes: Sequence[int],
    *,
    normalised: Normalised | None = None,
    settings: SeparationSettings | None = None,
    **changes: Any,
) -> Separation:
    """How well a weak and a strong channel of a unit separate classes (Fig. 1 of the paper).

    Channels with one value everywhere on the images shown are not chosen as weak or strong. Both projections are fitted
    on every other image and drawn for the rest. Otherwise LDA would seem to separate maps with many pixels, whatever
    they show.

    Args:
        graph: The traced network.
        score_on: Labelled images to score on.
        show: Labelled images to draw: of each class, the first `each` as maps and the first `points` in two dimensions.
        classes: The classes to show.
        normalised: Mean and standard deviation that the images were normalised with, to draw them in their own colours.
        settings: Which channels and images; see `SeparationSettings`.
        changes: Its fields by name (layer=, metric=, weak=, each=, points=, ...).
    """
    chosen: SeparationSettings = replaced(settings or SeparationSettings(), changes, DataError)
    chosen.check()
    unit = find_unit(graph, chosen.layer)
    scores = scores_of_unit(graph, unit, score_on, [chosen.metric], chosen.num_images, chosen.seed)[chosen.metric]
    pixels, labels = images_of(show, classes, chosen.points)
    places = [torch.nonzero(labels == label)[: chosen.each, 0] for label in classes]
    for label, few in zip(classes, places, strict=True):
        if len(few) < chosen.each:
            raise DataError(f"class {label} has {len(few)} of the {chosen.each} images to show; use more images")
    first = torch.stack(places)  # [classes, each]
    every = {unit: range(graph.units[unit].width)}
    order, silent = without_silent(scores.order(unit), feature_maps(graph, pixels[first.flatten()], every)[unit])
    channels = [order[0] if chosen.weak is None else chosen.weak, order[-1] if chosen.strong is None else chosen.strong]
    unique = list(dict.fromkeys(channels))  # the same channel may be wanted twice
    parts = [feature_maps(graph, few, {unit: unique})[unit] for few in torch.split(pixels, BATCH)]
    maps = torch.cat(parts)[:, [unique.index(channel) for channel in channels]]  # [M, 2, height, width]
    drawn, numbers = as_pixels(pixels[first.flatten()], normalised), labels.numpy()
    fit_labels, drawn_labels = numbers[::2], numbers[1::2]
    seen = []
    for i, channel in enumerate(channels):
        x = maps[:, i].flatten(1).double().numpy()  # [M, pixels]
        kinds = {"PCA": principal_axes(x[::2])}
        if len(np.unique(fit_labels)) > 2:  # K classes have K - 1 discriminants
            kinds["LDA"] = discriminant_axes(x[::2], fit_labels)
        projections = {}
        for name, axes in kinds.items():
            points = axes(x[1::2])
            near = nearest_to_own_class(axes(x[::2]), fit_labels, points, drawn_labels)
            projections[name] = Projection(points, near)
        seen.append(SeenChannel(channel, float(scores.values[unit][channel]), maps[first, i].numpy(), projections))
    shape = (len(classes), chosen.each, *drawn.shape[1:])
    return Separation(unit, chosen.metric, tuple(classes), drawn.reshape(shape), drawn_labels, seen[0], seen[1], silent)


# -- the picture

GAP = 0.12  # between tiles, as a fraction of a tile
# Ten of Paul Tol's colours, which colour-blind readers can distinguish (his palest one is black here). Each class also
# has its own marker.
POINTS = ["#332288", "#88CCEE", "#117733", "#CC6677", "#DDCC77", "#AA4499", "#44AA99", "#882255", "#999933", "#000000"]
PASSES = 6  # each draws some points of every class, so that no class covers the others
LONG = 3  # letters of a class name that fit above a tile, with ten classes


def draw_separation(shown: Separation, names: Sequence[str] | None = None) -> Figure:
    """Top: the images. Below, for the weak and the strong channel: maps of those images, and projections.

    The maps of both channels share one colour scale. names: of all classes; without it, they are shown by number.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels = [str(c) if names is None else names[c] for c in shown.classes]
    long = max(map(len, labels)) > LONG
    kinds = list(shown.weak.projections)
    both = np.concatenate([shown.weak.maps.ravel(), shown.strong.maps.ravel()])
    show = partial(show_map, low=float(both.min()), high=float(both.max()))
    with styled():
        fig = Figure(figsize=(PAGE, 1.45 + 2 * 1.95 + (0.35 if long else 0)), layout="constrained")
        grid = fig.add_gridspec(3, 1 + len(kinds), width_ratios=[2.2, *[1.25] * len(kinds)], height_ratios=[0.82, 1, 1])
        top = fig.add_subplot(grid[0, 0])
        _tiles(top, shown.images, show_image)
        rotation = {"rotation": 40, "ha": "left"} if long else {"ha": "center"}
        for column, label in enumerate(labels):
            top.text(column * (1 + GAP) + 0.4, -0.08, label, va="bottom", fontsize=7.5, **rotation)
        key = fig.add_subplot(grid[0, 1:])
        key.set_axis_off()
        handles = [
            Line2D([], [], linestyle="none", markersize=5, label=label, **_marker(number))
            for number, label in enumerate(labels)
        ]
        columns = 3 if long else 5
        key.legend(handles=handles, loc="center", ncols=columns, title="class", handletextpad=0.2, columnspacing=1.0)
        for row, (word, seen) in enumerate((("weak", shown.weak), ("strong", shown.strong)), start=1):
            axes = fig.add_subplot(grid[row, 0])
            _tiles(axes, seen.maps, show)
            title = f"{word}: channel {seen.channel}\n{metric_name(shown.metric)} {seen.score:.3g}"
            axes.set_title(title, fontsize=8.5, loc="left")
            for column, kind in enumerate(kinds, start=1):
                cloud: Any = fig.add_subplot(grid[row, column])
                projection = seen.projections[kind]
                for part in range(PASSES):
                    for number, of_class in enumerate(shown.classes):
                        points = projection.points[shown.labels == of_class][part::PASSES]
                        cloud.scatter(*points.T, s=8, linewidths=0, alpha=0.8, **_marker(number))
                cloud.set_title(f"{kind}: {100 * projection.own_class:.0f}% nearest to own class", fontsize=8)
                cloud.set(xticks=[], yticks=[])
                cloud.grid(False)
                cloud.set_xlabel(f"{kind} 1", fontsize=8)
                cloud.set_ylabel(f"{kind} 2", fontsize=8)
    return fig


def _tiles(axes: Any, tiles: Any, show: Callable[..., None]) -> None:
    """Tiles [classes, each, height, width(, colours)]: classes side by side, images of a class below each other."""
    classes, each, height, width = tiles.shape[:4]
    for column in range(classes):
        for row in range(each):
            left, top = column * (1 + GAP), row * (1 + GAP) * height / width
            show(axes, tiles[column, row], extent=(left, left + 1, top + height / width, top))
    axes.set_xlim(0, classes * (1 + GAP) - GAP)
    axes.set_ylim((each * (1 + GAP) - GAP) * height / width, 0)
    axes.set_axis_off()
    axes.set_anchor("NW")


def _marker(number: int) -> dict[str, Any]:
    return {"color": POINTS[number % len(POINTS)], "marker": MARKERS[number % len(MARKERS)]}
