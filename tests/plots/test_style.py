"""Style of figures: files, text, colours, tooltips, and a legend that covers nothing."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

from prunus.plots.style import COLUMN, as_svg, figure, legend, line, save, tooltips


def test_png_and_svg_at_paper_size_with_text_as_text(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    fig, axes = figure(COLUMN, 2.5)
    axes.plot([0, 1], [0, 1], label="gsd", **line(0))
    axes.set_xlabel("channels removed (%)")
    legend(fig, axes)
    assert save(fig, tmp_path / "out", "picture") == "picture.svg"
    with Image.open(tmp_path / "out" / "picture.png") as image:
        assert image.size == (700, 500)  # 3.5 x 2.5 inches at 200 dpi
    svg = (tmp_path / "out" / "picture.svg").read_text()
    assert ">channels removed (%)</text>" in svg and ">gsd</text>" in svg
    save(fig, tmp_path / "again", "picture")
    assert (tmp_path / "again" / "picture.svg").read_text() == svg
    assert dict(matplotlib.rcParams) == before


def test_lines_differ_without_colours_and_the_legend_stands_beside_the_axes(tmp_path: Path) -> None:
    assert len({(style["marker"], style["linestyle"]) for style in map(line, range(24))}) == 24
    for where in ("right", "below"):
        fig, axes = figure(7.0, 3.0)
        axes.plot([0, 1], [0, 1], label="a line with a long name", **line(0))
        legend(fig, axes, where=where)
        save(fig, tmp_path, where)  # lays it out
        assert not fig.legends[0].get_window_extent().overlaps(axes.get_window_extent())


def test_marks_say_their_numbers() -> None:
    fig, (lines, bars) = figure(7.0, 3.0, columns=2)
    lines.plot([1, 2, np.nan], [3, 4.5, 5], label="a <b>", **line(0))
    lines.plot([1, 2], [3, 4], label="no marks")
    (given,) = lines.plot([1, 2], [5, 6], marker="o")
    tooltips(given, ["first", "second"])
    lines.set(xlabel="epochs", ylabel="loss")
    bars.barh([0, 1], [3.0, 4.5], label="pruned")
    bars.set_yticks([0, 1], ["conv1", "conv2"])
    bars.set_xlabel("MACs (M)")
    said = re.findall(r"<title>([^<]*)</title>", as_svg(fig, "marks"))
    assert said == [
        "a &lt;b&gt;: epochs 1; loss 3",
        "a &lt;b&gt;: epochs 2; loss 4.5",
        "first",
        "second",
        "pruned: conv1; MACs (M) 3",
        "pruned: conv2; MACs (M) 4.5",
    ]
