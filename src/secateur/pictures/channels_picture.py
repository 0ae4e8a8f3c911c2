"""Figs. 3 and 7 as a picture: one row per image, with channels and mean responses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from secateur.pictures.channels_figure import ChannelsFigure
from secateur.pictures.drawing import PAGE, figure, styled
from secateur.pictures.metric_names import metric_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_channels(found: ChannelsFigure, names: Sequence[str] | None = None) -> Figure:
    """One row per image. The two single channels share one colour scale; each mean response has its own.

    names: of all classes; without it, classes are shown by number.
    """
    columns = 3 + len(found.averages)
    rows, ratio = len(found.labels), found.images.shape[1] / found.images.shape[2]
    height = rows * (PAGE - 0.3) / columns * ratio + 0.62
    fig, axes = figure(PAGE, height, rows, columns, squeeze=False)
    low = float(min(found.weak_maps.min(), found.strong_maps.min()))
    high = float(max(found.weak_maps.max(), found.strong_maps.max()))
    with styled():
        for row, label in enumerate(found.labels):
            _image(axes[row, 0], found.images[row])
            for column, maps in ((1, found.weak_maps), (2, found.strong_maps)):
                _map(axes[row, column], maps[row], low, high)
            for column, maps in enumerate(found.averages.values(), start=3):
                _map(axes[row, column], maps[row], float(maps[row].min()), float(maps[row].max()))
            axes[row, 0].set_ylabel(str(label) if names is None else names[label], fontsize=8)
        for one, words in zip(axes[0], _titles(found), strict=True):
            one.set_title(words, fontsize=7.5)
        spacing: Any = fig.get_layout_engine()
        spacing.set(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    return fig


def _titles(found: ChannelsFigure) -> list[str]:
    by = metric_name(found.by)
    titles = ["image", f"weakest\nby {by}\n(channel {found.weak})", f"strongest\nby {by}\n(channel {found.strong})"]
    for metric, channels in found.strongest.items():
        titles.append(f"mean of the\n{len(channels)} strongest\nby {metric_name(metric)}")
    return titles


def _image(axes: Any, pixels: Any) -> None:
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if pixels.shape[-1] == 1 else {}
    axes.imshow(pixels.squeeze(-1) if grey else pixels, interpolation="nearest", **grey)
    _bare(axes)


def _map(axes: Any, pixels: Any, low: float, high: float) -> None:
    axes.imshow(pixels, interpolation="nearest", cmap="viridis", vmin=low, vmax=high)
    _bare(axes)


def _bare(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for edge in axes.spines.values():
        edge.set_visible(False)
