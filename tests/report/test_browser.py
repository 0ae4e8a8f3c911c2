"""The page in a real browser (Debian's chromium, headless): no complaints, charts that show, a table that sorts.

A copy of the page gets one more script, which presses headings as a reader would and writes down what it sees; the
browser then prints the page as it has become.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from prunus.report.compare import compare
from prunus.report.read import read_run
from prunus.report.run_page import run_files, write_report
from tests.report.runs import read
from tests.report.test_study_page import make_study

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage "
    "--enable-logging=stderr --virtual-time-budget=2000"
)
WIDE = ("--window-size=1000,900",)
NARROW = ("--window-size=500,900", "--blink-settings=preferredColorScheme=0")  # and dark
LOOK = """
const seen = {};
const table = [...document.querySelectorAll("table.sorts")].at(-1);  // of a run: the layers
const column = (i) => [...table.tBodies[0].rows].map((row) => row.cells[i].textContent);
const press = (i) => table.tHead.rows[0].cells[i].querySelector("button").click();
seen.first = column(0);
press(3); seen.most = column(0); seen.way = table.tHead.rows[0].cells[3].getAttribute("aria-sort");
press(3); seen.least = column(0); seen.other = table.tHead.rows[0].cells[3].getAttribute("aria-sort");
press(0); seen.again = column(0);
seen.sorted = document.querySelectorAll("[aria-sort]").length;
seen.charts = [...document.querySelectorAll("svg.chart")].filter((each) => each.closest("details") === null)
  .map((each) => [each.getBoundingClientRect().width, each.getBoundingClientRect().height]);
seen.bars = [...document.querySelectorAll(".widths i.kept")].map((each) => each.getBoundingClientRect().width);
seen.track = (document.querySelector(".widths .track") ?? document.body).getBoundingClientRect().width;
seen.inks = [...document.querySelectorAll("svg.chart text")].map((each) => getComputedStyle(each).fill);
seen.pictures = [...document.images].map((each) => [each.naturalWidth, each.getBoundingClientRect().width]);
const drawings = [...document.querySelectorAll(".plot svg")];
seen.drawings = drawings.map((each) => [each.getBoundingClientRect().width, each.getBoundingClientRect().height]);
seen.lettering = drawings.map((each) => getComputedStyle(each.querySelector("text")).stroke);
seen.saved = [];
URL.createObjectURL = (blob) => { seen.saved.push(blob.size); return "blob:x"; };
HTMLAnchorElement.prototype.click = function () { seen.saved.push(this.download); };
document.querySelectorAll("button.download").forEach((each) => each.click());
seen.across = [document.documentElement.scrollWidth, document.documentElement.clientWidth];
seen.paper = getComputedStyle(document.body).backgroundColor;
dispatchEvent(new Event("beforeprint"));
seen.folded = document.querySelectorAll("details:not([open])").length;
const note = document.createElement("pre");
note.id = "seen"; note.textContent = JSON.stringify(seen); document.body.append(note);
"""


def browse(page: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """The page's document after its scripts ran, and what the console said."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = ["chromium", *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", *flags, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def looked_at(page: str, folder: Path, *flags: str) -> tuple[dict[str, Any], list[str]]:
    document, said = browse(page.replace("</body>", f"<script>{LOOK}</script></body>"), folder, *flags)
    found = re.search(r'<pre id="seen">(.*?)</pre>', document, flags=re.DOTALL)
    assert found, said
    return json.loads(html.unescape(found[1])), said


def test_the_page_in_a_browser(page: str, compressed: Any, tmp_path: Path) -> None:
    seen, said = looked_at(page, tmp_path, *WIDE)
    assert said == []
    summary = read(compressed.folder / "summary.json")
    layers = summary["layers"]
    names = list(layers)
    by_macs = sorted(names, key=lambda name: (layers[name]["macs"][0], names.index(name)))  # ties: order of the network
    assert seen["first"] == seen["again"] == names
    assert seen["least"] == by_macs and seen["other"] == "ascending"
    assert seen["most"] == by_macs[::-1] and seen["way"] == "descending"
    assert seen["sorted"] == 1
    assert len(seen["charts"]) >= 3
    assert all(width > 380 and height > 150 for width, height in seen["charts"])
    kept = [unit["kept"] for unit in summary["units"].values()]
    widest = max(unit["width"] for unit in summary["units"].values())
    assert seen["bars"] == pytest.approx([0.64 * seen["track"] * k / widest for k in kept], abs=0.2)
    assert set(seen["inks"]) == {"rgb(27, 27, 27)"}
    pictures = [wide for natural, wide in seen["pictures"] if natural > 100]
    assert len(pictures) == len(seen["pictures"]) == page.count("<img ") > 5
    assert all(120 < wide <= 304 for wide in pictures)
    files = run_files(read_run(compressed.folder))
    assert seen["saved"] == [each for name, text in files.items() for each in (len(text.encode()), name)]
    assert seen["folded"] == 0  # nothing stays folded on paper
    assert seen["paper"] == "rgb(255, 255, 255)"


def test_dark_where_the_reader_likes_it_dark_and_narrow_without_scrolling(page: str, tmp_path: Path) -> None:
    seen, said = looked_at(page, tmp_path, *NARROW)
    assert said == []
    assert seen["paper"] == "rgb(21, 23, 26)"
    assert set(seen["inks"]) == {"rgb(236, 236, 236)"}  # the charts are dark too
    scrolled, shown = seen["across"]
    assert scrolled <= shown <= 500


@pytest.mark.parametrize("flags", [WIDE, NARROW])
def test_the_page_of_a_study(tmp_path: Path, flags: tuple[str, ...]) -> None:
    study = write_report(make_study(tmp_path / "study")).read_text(encoding="utf-8")
    seen, said = looked_at(study, tmp_path, *flags)
    assert said == []
    assert seen["first"] == ["gsd", "l1", "<b>&"]
    assert seen["most"] == ["gsd", "l1", "<b>&"] and seen["least"] == ["<b>&", "l1", "gsd"]  # by accuracy
    assert seen["again"] == ["<b>&", "gsd", "l1"]
    assert seen["drawings"] == [pytest.approx([336, 230], abs=1)]  # 3.5 x 2.4 inches
    assert seen["lettering"] == ["none"]  # the charts' outlined letters are not for drawings
    assert seen["across"][0] <= seen["across"][1]


@pytest.mark.parametrize("flags", [WIDE, NARROW])
def test_the_page_of_a_comparison(compressed: Any, tmp_path: Path, flags: tuple[str, ...]) -> None:
    compared = compare([compressed.folder]).write(tmp_path / "compared").read_text(encoding="utf-8")
    seen, said = looked_at(compared, tmp_path, *flags)
    assert said == []
    values = read(compressed.folder / "classes.json")["after"]["values"]
    shown = [values[int(name.removeprefix("class "))] for name in seen["least"]]
    assert shown == sorted(values)
    count = 3 + len(compressed.summary["speeds"])  # MACs, weights, bytes, and speed-ups
    assert len(seen["charts"]) == count and all(width > 250 and height > 200 for width, height in seen["charts"])
    assert seen["across"][0] <= seen["across"][1]


def test_a_complaint_would_be_heard(page: str, tmp_path: Path) -> None:
    _, said = browse(page.replace("</body>", "<script>nothing.at.all</script></body>"), tmp_path)
    assert len(said) == 1 and "nothing is not defined" in said[0]
    _, said = browse(page.replace("</body>", '<img src="https://example.org/a.png"></body>'), tmp_path)
    assert said and "Content Security Policy" in said[0]  # the page itself forbids to fetch anything
