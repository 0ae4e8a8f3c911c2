"""Figs. 3 and 7 as a picture: one row per image, with channels and mean responses side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from secateur.pictures.channels_figure import ChannelsFigure
from secateur.pictures.drawing import PAGE, figure, show_image, show_map, styled, without_axes
from secateur.pictures.metric_names import metric_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
