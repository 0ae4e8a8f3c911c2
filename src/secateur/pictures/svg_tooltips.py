"""Tooltips in SVG figures: the numbers of points and bars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
