"""Style of all figures: sizes that fit a paper, one palette, PNG and SVG files, and tooltips in the SVG.

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
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prunus.util.files import atomic, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLUMN, PAGE = 3.5, 7.0  # width in inches: one column of a paper, and both
DPI = 200
INK, RULE = "#222222", "#d9d9d9"

# Okabe and Ito's colours, which colour-blind readers can distinguish, without yellow, which is too faint for lines.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")
BLUE, ORANGE, GREEN, GREY = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[7]
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":")

_STYLE: Any = {
    "font.family": "sans-serif",
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 9.0),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 8.0),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    "grid.color": RULE,
    "grid.linewidth": 0.6,
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


def axis_scale(most: float) -> tuple[float, str]:
    """What the numbers of an axis up to `most` are divided by, and its sign: 63e6 -> 1e6, M."""
    units = (1e9, "G"), (1e6, "M"), (1e3, "K")
    return next((unit for unit in units if most >= unit[0]), (1.0, ""))


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


def save(fig: Figure, folder: str | Path, name: str) -> str:
    """Write NAME.png and NAME.svg atomically. Returns the name of the SVG, for `StudyFolder.finish`.

    In the SVG, bars and labelled lines with markers have tooltips with their numbers.
    """
    import matplotlib

    with atomic(Path(folder) / f"{name}.png") as spare, matplotlib.rc_context(_STYLE):
        fig.savefig(spare, format="png", dpi=DPI, facecolor="white")
    write_atomically(Path(folder) / f"{name}.svg", as_svg(fig, name).encode())
    return f"{name}.svg"


def data_uri(content: bytes, kind: str = "png") -> str:
    """The content of a picture as an address, for a page that loads nothing from elsewhere."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


# -- tooltips: the numbers of points and bars


def as_svg(fig: Figure, name: str) -> str:
    """The figure as SVG with tooltips. Ids in it depend on `name`: two figures in one page need different names."""
    import matplotlib

    titles: dict[str, Sequence[str]] = {}
    for number, (artist, texts) in enumerate(_marks(fig)):
        artist.set_gid(f"points-{number}")
        titles[f"points-{number}"] = texts
    file = io.StringIO()
    # With the salt and without a date, the same figure gives the same bytes.
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        fig.savefig(file, format="svg", metadata={"Date": None}, facecolor="white")
    return _with_titles(file.getvalue(), titles)


def tooltips(artist: Any, texts: Sequence[str]) -> None:
    """Texts for the marks of a line, instead of the usual ones."""
    artist.tooltips = list(texts)


def _marks(fig: Figure) -> Iterator[tuple[Any, Sequence[str]]]:
    """Lines with markers, bars, and lines that were given tooltips, with the texts of their marks."""
    from matplotlib.container import BarContainer, ErrorbarContainer

    for axes in fig.axes:
        names = {id(line): str(line.get_label()) for line in axes.lines}
        for container in axes.containers:
            label = str(container.get_label())
            if isinstance(container, ErrorbarContainer):
                names[id(container.lines[0])] = label
            elif isinstance(container, BarContainer):  # horizontal ones
                for bar in container.patches:
                    y, x = bar.get_y() + bar.get_height() / 2, bar.get_width()
                    yield bar, [f"{label}: {_value(axes.yaxis, y)}; {_value(axes.xaxis, x)}"]
        for line in axes.lines:
            start = names[id(line)]
            if hasattr(line, "tooltips"):
                yield line, line.tooltips
            elif not start.startswith("_") and line.get_marker() not in ("", "None", None):
                points = [(x, y) for x, y in np.asarray(line.get_xydata(), float) if np.isfinite(x) and np.isfinite(y)]
                yield line, [f"{start}: {_value(axes.xaxis, x)}; {_value(axes.yaxis, y)}" for x, y in points]


def _value(axis: Any, value: float) -> str:
    """A value on an axis: the name of its tick if it has one, or the axis label and the number."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    if isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter)):  # the ticks have names
        for tick, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False):
            if abs(tick - value) < 1e-6 and label.get_text():
                return str(label.get_text())
    return f"{axis.get_label().get_text()} {value:.4g}".strip()


def _with_titles(svg: str, titles: Mapping[str, Sequence[str]]) -> str:
    """The SVG with a <title> in each mark. A group whose number of marks differs from its titles is not changed."""
    for key, texts in titles.items():
        start = svg.find(f'<g id="{key}">')
        if start < 0:
            continue
        end = svg.find("<g id=", start + 1)
        group = svg[start : end if end >= 0 else len(svg)]
        kind = "use" if "<use " in group else "path"
        marks = list(re.finditer(rf"<{kind} ([^>]*)/>", group))
        if len(marks) != len(texts):
            continue
        for mark, text in reversed(list(zip(marks, texts, strict=True))):
            whole = f"<{kind} {mark[1]}><title>{escape(text)}</title></{kind}>"
            group = group[: mark.start()] + whole + group[mark.end() :]
        svg = svg[:start] + group + (svg[end:] if end >= 0 else "")
    return svg


# -- names of metrics in pictures, as in the paper

NAMES = {name: name.upper() for name in ("di", "mmd", "fpgm", "cp", "nisp", "dcp", "chip")}
NAMES |= {"gsd": "G-SD", "fdr": "G-FDR", "abs_snr": "G-AbsSNR", "ttest": "G-T-test", "thinet": "ThiNet"}
NAMES |= {"l1": "L1 norm", "l2": "L2 norm", "bn_scale": "BN scale", "hrank": "HRank"}


def metric_name(metric: str) -> str:
    """The name of a metric in pictures, and its options, if there are any."""
    name, _, options = metric.partition(":")
    shown = NAMES.get(name, name.replace("_", " "))
    return f"{shown}, {options.replace(':', ', ')}" if options else shown
