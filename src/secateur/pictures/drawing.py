"""Style of all figures: sizes that fit a paper, one palette, and files as PNG and SVG.

fig, axes = figure(COLUMN, 3.0)
axes.plot(x, y, label="gsd", **line(0))
legend(fig, axes)
name = save(fig, folder, "accuracy")            # accuracy.svg and accuracy.png
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.base.atomic_files import atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.5, 7.0  # width in inches: one column of a paper, and both
DPI = 200
INK, RULE = "#222222", "#d9d9d9"

# Okabe and Ito's colours, which colour-blind readers can distinguish, without yellow, which is too faint for lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text, so that it can be searched and selected
}


@contextmanager
def styled() -> Iterator[None]:
    """Inside the block matplotlib uses this style. Its settings are restored afterwards."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def figure(width: float = PAGE, height: float = 3.6, rows: int = 1, columns: int = 1, **how: Any) -> tuple[Figure, Any]:
    """A figure of this size in inches, and its axes (one, or an array). `how` is passed to matplotlib's `subplots`."""
    from matplotlib.figure import Figure

    with styled():
        made = Figure(figsize=(width, height), layout="constrained")
        axes = made.subplots(rows, columns, **how)
        for one in made.axes:
            one.tick_params(labelsize=_STYLE["xtick.labelsize"], color=INK, labelcolor=INK)
    return made, axes


def line(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of the n-th line: 24 styles that can be distinguished, also without colours."""
    place, again = number % len(COLOURS), number // len(COLOURS)
    return {
        "color": COLOURS[place],
        "marker": MARKERS[(place + again) % len(MARKERS)],
        "linestyle": DASHES[again % len(DASHES)],
        "linewidth": _STYLE["lines.linewidth"],
        "markersize": _STYLE["lines.markersize"],
    }


def legend(fig: Figure, axes: Any, *, where: str = "right", columns: int = 1) -> None:
    """One legend to the right of the axes (`right`) or below them (`below`), never over the lines."""
    place: Any = {"right": "outside right center", "below": "outside lower center"}[where]
    handles, labels = axes.get_legend_handles_labels()
    with styled():
        fig.legend(handles, labels, loc=place, ncols=columns, handlelength=2.6)


def show_image(axes: Any, pixels: Any, **place: Any) -> None:
    """An image [height, width, 1 or 3] of bytes. `place` is passed to matplotlib's `imshow`."""
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if pixels.shape[-1] == 1 else {}
    axes.imshow(pixels.squeeze(-1) if grey else pixels, interpolation="nearest", **grey, **place)


def show_map(axes: Any, pixels: Any, low: float, high: float, **place: Any) -> None:
    """A feature map [height, width], with colours from `low` (dark blue) to `high` (yellow)."""
    axes.imshow(pixels, interpolation="nearest", cmap="viridis", vmin=low, vmax=high, **place)


def without_axes(axes: Any) -> None:
    """Remove ticks, grid and frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for edge in axes.spines.values():
        edge.set_visible(False)


def save(fig: Figure, folder: str | Path, name: str) -> str:
    """Write NAME.png and NAME.svg atomically. Returns the name of the SVG, for `StudyFolder.finish`.

    In the SVG, bars and labelled lines with markers have tooltips with their numbers.
    """
    import matplotlib

    from secateur.pictures.svg_tooltips import mark_points, with_titles

    titles = mark_points(fig)
    # The same figure gives the same bytes, and two figures in one page have different ids.
    settings: Any = {**_STYLE, "svg.hashsalt": name}
    for ending in ("png", "svg"):
        with atomic(Path(folder) / f"{name}.{ending}") as spare, matplotlib.rc_context(settings):
            quiet = {"Date": None} if ending == "svg" else {}
            fig.savefig(spare, format=ending, dpi=DPI, metadata=quiet, facecolor="white")
            if ending == "svg":
                spare.write_text(with_titles(spare.read_text(encoding="utf-8"), titles), encoding="utf-8")
    return f"{name}.svg"
