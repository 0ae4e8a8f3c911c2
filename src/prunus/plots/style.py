"""Style of all figures: sizes that fit a paper, one palette, and files as PNG and SVG.

fig, axes = figure(COLUMN, 3.0)
axes.plot(x, y, label="gsd", **line(0))
legend(fig, axes)
name = save(fig, folder, "accuracy")            # accuracy.svg and accuracy.png
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prunus.util.files import atomic

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


# Tooltips in SVG figures: the numbers of points and bars.

Titles = Mapping[str, Sequence[str]]  # id of a group in the SVG -> tooltips of its marks, in their order


def mark_points(fig: Figure) -> dict[str, list[str]]:
    """Give every labelled line and bar of a figure an id in its SVG. Returns the tooltips by id."""
    titles: dict[str, list[str]] = {}
    for number, (artist, said) in enumerate(_marks(fig)):
        key = f"points-{number}"
        artist.set_gid(key)
        titles[key] = said
    return titles


def with_titles(svg: str, titles: Titles) -> str:
    """The SVG with a <title> in each mark. A group whose number of marks differs from its titles is not changed."""
    for key, said in titles.items():
        start = svg.find(f'<g id="{key}">')
        if start < 0:
            continue
        end = svg.find("<g id=", start + 1)
        group = svg[start : end if end >= 0 else len(svg)]
        kind = "use" if "<use " in group else "path"
        marks = list(re.finditer(rf"<{kind} ([^>]*)/>", group))
        if len(marks) != len(said):
            continue
        for mark, words in reversed(list(zip(marks, said, strict=True))):
            whole = f"<{kind} {mark[1]}><title>{escape(words)}</title></{kind}>"
            group = group[: mark.start()] + whole + group[mark.end() :]
        svg = svg[:start] + group + (svg[end:] if end >= 0 else "")
    return svg


def _marks(fig: Figure) -> Iterator[tuple[Any, list[str]]]:
    """Lines with markers, and bars, with the tooltips of their marks."""
    from matplotlib.container import BarContainer, ErrorbarContainer

    for axes in fig.axes:
        named = {id(line): line.get_label() for line in axes.lines}
        for container in axes.containers:
            label = str(container.get_label())
            if isinstance(container, ErrorbarContainer):
                named[id(container.lines[0])] = label
            elif isinstance(container, BarContainer):
                for bar in container.patches:
                    yield bar, [_bar(axes, bar, label, container.orientation == "horizontal")]
        for line in axes.lines:
            label = str(named[id(line)])
            if not label.startswith("_") and line.get_marker() not in ("", "None", None):
                points = [_point(axes, label, x, y) for x, y in np.asarray(line.get_xydata(), float)
                          if np.isfinite(x) and np.isfinite(y)]  # fmt: skip
                yield line, points


def _point(axes: Any, label: str, x: float, y: float) -> str:
    return f"{label}: {_value(axes.xaxis, x)}; {_value(axes.yaxis, y)}"


def _bar(axes: Any, bar: Any, label: str, horizontal: bool) -> str:
    if horizontal:
        place, size = (axes.yaxis, bar.get_y() + bar.get_height() / 2), (axes.xaxis, bar.get_width())
    else:
        place, size = (axes.xaxis, bar.get_x() + bar.get_width() / 2), (axes.yaxis, bar.get_height())
    return f"{label}: {_value(*place)}; {_value(*size)}"


def _value(axis: Any, value: float) -> str:
    """A value on an axis in words: the name of its tick if it has one, or the axis label and the number."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    if isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter)):  # the ticks have names
        for tick, words in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False):
            if abs(tick - value) < 1e-6 and words.get_text():
                return str(words.get_text())
    name = axis.get_label().get_text()
    return f"{name} {value:.4g}".strip()


# Names of metrics in pictures, as in the paper.

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "gsd": "G-SD",
        "fdr": "G-FDR",
        "abs_snr": "G-AbsSNR",
        "ttest": "G-T-test",
        "di": "DI",
        "mmd": "MMD",
        "l1": "L1 norm",
        "l2": "L2 norm",
        "bn_scale": "BN scale",
        "fpgm": "FPGM",
        "thinet": "ThiNet",
        "cp": "CP",
        "nisp": "NISP",
        "dcp": "DCP",
        "hrank": "HRank",
        "chip": "CHIP",
    }
)


def metric_name(metric: str) -> str:
    """The name of a metric in pictures, and its options, if there are any."""
    name, _, options = metric.partition(":")
    shown = NAMES.get(name, name.replace("_", " "))
    return f"{shown}, {options.replace(':', ', ')}" if options else shown


# Small PNGs for a page: maps and images side by side, as data URIs.

Bytes = npt.NDArray[np.uint8]
CELL = 64  # smallest size of a cell in pixels, so that browsers do not enlarge it much
GAP = 16  # a cell is this many times as wide as a gap
CLEAR = 255  # index of the transparent colour


@cache
def ramp() -> Bytes:
    """[256, 3] the colours of a map's bytes, from dark blue to yellow (viridis): brightness grows evenly."""
    from matplotlib import colormaps

    colours = colormaps["viridis"](np.linspace(0, 1, CLEAR))[:, :3]
    return np.concatenate([np.rint(255 * colours), [[0, 0, 0]]]).astype(np.uint8)


def map_strip(maps: Bytes) -> str:
    """Maps [N, height, width] side by side as a data URI. A byte is an index of `ramp`; 254 and 255 are one colour."""
    from PIL import Image

    cells = [np.minimum(_enlarged(each), CLEAR - 1) for each in maps]
    picture = Image.fromarray(_side_by_side(cells, CLEAR), "P")
    picture.putpalette(ramp().tobytes())
    return _uri(picture, transparency=CLEAR)


def image_strip(images: Bytes) -> str:
    """Images [N, height, width, 1 or 3] side by side as a data URI."""
    from PIL import Image

    cells = []
    for image in images:
        colours = np.broadcast_to(image, (*image.shape[:2], 3))
        opaque = np.full((*image.shape[:2], 1), 255, np.uint8)
        cells.append(_enlarged(np.concatenate([colours, opaque], 2)))
    return _uri(Image.fromarray(_side_by_side(cells, 0), "RGBA"))


def _enlarged(cell: Bytes) -> Bytes:
    """The cell with each pixel repeated, so that it is at least CELL pixels high or wide."""
    times = -(-CELL // max(cell.shape[:2]))
    return cell.repeat(times, 0).repeat(times, 1)


def _side_by_side(cells: Sequence[Bytes], between: int) -> Bytes:
    gap = max(1, round(cells[0].shape[1] / GAP))
    space = np.full((cells[0].shape[0], gap, *cells[0].shape[2:]), between, np.uint8)
    parts = [part for cell in cells for part in (cell, space)][:-1]
    return np.concatenate(parts, 1)


def _uri(picture: Any, **options: Any) -> str:
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True, **options)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
