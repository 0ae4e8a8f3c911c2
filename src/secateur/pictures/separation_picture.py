"""Fig. 1 as a picture: images, maps and projections of a weak and a strong channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from secateur.pictures.drawing import INK, MARKERS, PAGE, show_image, show_map, styled
from secateur.pictures.metric_names import metric_name
from secateur.pictures.separation_figure import SeenChannel, Separation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.12  # between tiles, as a fraction of a tile
# Ten of Paul Tol's colours, which colour-blind readers can distinguish (his palest one is black here). Each class also
# has its own marker.
POINTS = ["#332288", "#88CCEE", "#117733", "#CC6677", "#DDCC77", "#AA4499", "#44AA99", "#882255", "#999933", "#000000"]
PASSES = 6  # each draws some points of every class, so that no class covers the others
LONG = 3  # letters of a class name that fit above a tile, with ten classes


def draw_separation(found: Separation, names: Sequence[str] | None = None) -> Figure:
    """Top: the images. Below, for the weak and the strong channel: maps of those images, and projections.

    names: of all classes; without it, classes are shown by number. The maps of both channels share one colour scale.
    """
    from matplotlib.figure import Figure

    labels = [str(c) if names is None else names[c] for c in found.classes]
    kinds = list(found.weak.projections)
    both = np.concatenate([found.weak.maps.ravel(), found.strong.maps.ravel()])
    show = partial(show_map, low=float(both.min()), high=float(both.max()))
    with styled():
        height = 1.45 + 2 * 1.95 + (0.35 if max(map(len, labels)) > LONG else 0)
        fig = Figure(figsize=(PAGE, height), layout="constrained")
        grid = fig.add_gridspec(3, 1 + len(kinds), width_ratios=[2.2, *[1.25] * len(kinds)], height_ratios=[0.82, 1, 1])
        top = fig.add_subplot(grid[0, 0])
        _tiles(top, found.images, show_image)
        _class_names(top, labels)
        _legend(fig.add_subplot(grid[0, 1:]), labels)
        for row, (word, seen) in enumerate((("weak", found.weak), ("strong", found.strong)), start=1):
            axes = fig.add_subplot(grid[row, 0])
            _tiles(axes, seen.maps, show)
            axes.set_title(_title(word, seen, found.metric), fontsize=8.5, loc="left")
            for column, kind in enumerate(kinds, start=1):
                _scatter(fig.add_subplot(grid[row, column]), found, seen, kind)
    return fig


def _title(word: str, seen: SeenChannel, metric: str) -> str:
    return f"{word}: channel {seen.channel}\n{metric_name(metric)} {seen.score:.3g}"


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


def _class_names(axes: Any, labels: Sequence[str]) -> None:
    """The names of the classes above their tiles."""
    rotation = {"rotation": 40, "ha": "left"} if max(map(len, labels)) > LONG else {"ha": "center"}
    for column, words in enumerate(labels):
        axes.text(column * (1 + GAP) + 0.4, -0.08, words, va="bottom", fontsize=7.5, **rotation)


def _scatter(axes: Any, found: Separation, seen: SeenChannel, kind: str) -> None:
    projection = seen.projections[kind]
    for part in range(PASSES):
        for number, label in enumerate(found.classes):
            mine = projection.points[found.labels == label][part::PASSES]
            axes.scatter(*mine.T, s=8, linewidths=0, alpha=0.8, **_marker(number))
    axes.set_title(f"{kind}: {100 * projection.own_class:.0f}% nearest to own class", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.set_xlabel(f"{kind} 1", fontsize=8)
    axes.set_ylabel(f"{kind} 2", fontsize=8)


def _marker(number: int) -> dict[str, Any]:
    return {"color": POINTS[number % len(POINTS)], "marker": MARKERS[number % len(MARKERS)]}


def _legend(axes: Any, labels: Sequence[str]) -> None:
    """Colour and marker of each class, next to the images."""
    from matplotlib.lines import Line2D

    axes.set_axis_off()
    handles = [
        Line2D([], [], linestyle="none", markersize=5, label=words, **_marker(number))
        for number, words in enumerate(labels)
    ]
    columns = 5 if max(map(len, labels)) <= LONG else 3
    axes.legend(handles=handles, loc="center", ncols=columns, title="class", handletextpad=0.2, columnspacing=1.0)
    axes.get_legend().get_title().set_color(INK)
