"""Fig. 1 as a picture: images, maps and projections of a weak and a strong channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from secateur.pictures.drawing import INK, MARKERS, PAGE, styled
from secateur.pictures.metric_names import metric_name
from secateur.pictures.separation_figure import Seen, Separation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.12  # between tiles, as a part of one
# Ten of Paul Tol's colours for points (his palest one is black here), which colour-blind readers tell apart; each class
# has a mark of its own besides.
POINTS = ["#332288", "#88CCEE", "#117733", "#CC6677", "#DDCC77", "#AA4499", "#44AA99", "#882255", "#999933", "#000000"]
PASSES = 6  # in which points are drawn, some of every class in each, so that no class covers the others
LONG = 3  # letters of a class's name that fit over a tile of ten


def draw_separation(found: Separation, names: Sequence[str] | None = None) -> Figure:
    """Above: the images. Below, for the weak and the strong channel: maps of those images, and projections.

    names: of all classes; their numbers without it. Both channels' maps share one scale of colours.
    """
    from matplotlib.figure import Figure

    said = [str(c) if names is None else names[c] for c in found.classes]
    kinds = list(found.weak.projections)
    with styled():
        height = 1.45 + 2 * 1.95 + (0.35 if max(map(len, said)) > LONG else 0)
        fig = Figure(figsize=(PAGE, height), layout="constrained")
        grid = fig.add_gridspec(3, 1 + len(kinds), width_ratios=[2.2, *[1.25] * len(kinds)], height_ratios=[0.82, 1, 1])
        _tiles(fig.add_subplot(grid[0, 0]), found.images, said)
        _legend(fig.add_subplot(grid[0, 1:]), said)
        both = np.concatenate([found.weak.maps.ravel(), found.strong.maps.ravel()])
        for row, (word, seen) in enumerate((("weak", found.weak), ("strong", found.strong)), start=1):
            axes = fig.add_subplot(grid[row, 0])
            _tiles(axes, seen.maps, None, _title(word, seen, found.metric), (float(both.min()), float(both.max())))
            for column, kind in enumerate(kinds, start=1):
                _scatter(fig.add_subplot(grid[row, column]), found, seen, kind)
    return fig


def _title(word: str, seen: Seen, metric: str) -> str:
    return f"{word}: channel {seen.channel}\n{metric_name(metric)} {seen.score:.3g}"


def _tiles(
    axes: Any,
    tiles: Any,
    said: Sequence[str] | None,
    title: str = "",
    scale: tuple[float, float] | None = None,
) -> None:
    """Tiles [classes, each, height, width(, colours)]: classes side by side, images of a class one below the other."""
    classes, each, height, width = tiles.shape[:4]
    for column in range(classes):
        for row in range(each):
            left, top = column * (1 + GAP), row * (1 + GAP) * height / width
            place = (left, left + 1, top + height / width, top)
            tile = tiles[column, row]
            if scale is None:
                grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if tile.shape[-1] == 1 else {}
                axes.imshow(tile.squeeze(-1) if grey else tile, extent=place, interpolation="nearest", **grey)
            else:
                low, high = scale
                axes.imshow(tile, extent=place, interpolation="nearest", cmap="viridis", vmin=low, vmax=high)
    axes.set_xlim(0, classes * (1 + GAP) - GAP)
    axes.set_ylim((each * (1 + GAP) - GAP) * height / width, 0)
    axes.set_axis_off()
    axes.set_anchor("NW")
    if said is not None:
        turned = {"rotation": 40, "ha": "left"} if max(map(len, said)) > LONG else {"ha": "center"}
        for column, words in enumerate(said):
            axes.text(column * (1 + GAP) + 0.4, -0.08, words, va="bottom", fontsize=7.5, **turned)
    else:
        axes.set_title(title, fontsize=8.5, loc="left")


def _scatter(axes: Any, found: Separation, seen: Seen, kind: str) -> None:
    projection = seen.projections[kind]
    for part in range(PASSES):
        for number, label in enumerate(found.classes):
            mine = projection.points[found.labels == label][part::PASSES]
            axes.scatter(*mine.T, s=8, linewidths=0, alpha=0.8, **_look(number))
    axes.set_title(f"{kind}: {100 * projection.told_apart:.0f}% nearest to own class", fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.set_xlabel(f"{kind} 1", fontsize=8)
    axes.set_ylabel(f"{kind} 2", fontsize=8)


def _look(number: int) -> dict[str, Any]:
    return {"color": POINTS[number % len(POINTS)], "marker": MARKERS[number % len(MARKERS)]}


def _legend(axes: Any, said: Sequence[str]) -> None:
    """Colour and mark of each class, beside the images and over no point."""
    from matplotlib.lines import Line2D

    axes.set_axis_off()
    handles = [
        Line2D([], [], linestyle="none", markersize=5, label=words, **_look(number))
        for number, words in enumerate(said)
    ]
    columns = 5 if max(map(len, said)) <= LONG else 3
    axes.legend(handles=handles, loc="center", ncols=columns, title="class", handletextpad=0.2, columnspacing=1.0)
    axes.get_legend().get_title().set_color(INK)
