"""The documentation in a real browser, opened from its folder: search, formulas and drawings work without a server."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_browser import FLAGS
from tests.test_site import LOOKED_AT

LOOK = """<script>
setTimeout(() => {
  const box = (each) => each.getBoundingClientRect();
  const formulas = [...document.querySelectorAll("div.arithmatex")];
  const seen = {
    across: [document.documentElement.scrollWidth, document.documentElement.clientWidth],
    formulas: formulas.map((each) => each.querySelector("svg")).map((svg) => svg && [box(svg).width, box(svg).height]),
    drawings: [...document.querySelectorAll("svg.sketch")].map((svg) => [box(svg).width, box(svg).height]),
    ink: [...document.querySelectorAll("svg.sketch")].map((svg) => getComputedStyle(svg).color),
    pictures: [...document.querySelectorAll("article img")].map((each) => [each.naturalWidth, box(each).width]),
    found: document.querySelector(".md-search-result__meta")?.textContent.trim(),
    results: [...document.querySelectorAll(".md-search-result__link")].map((each) => each.getAttribute("href")),
    paper: getComputedStyle(document.body).backgroundColor,
  };
  const note = document.createElement("pre");
  note.id = "seen"; note.textContent = JSON.stringify(seen); document.body.append(note);
}, 6000);
</script></body>"""


def look(site: Path, page: str, tmp_path: Path, *flags: str, query: str = "") -> dict[str, Any]:
    """What a browser shows on a page. The console must stay silent."""
    original = site / page
    copy = original.with_name(f"{LOOKED_AT}{original.stem}-{tmp_path.name}.html")
    copy.write_text(original.read_text(encoding="utf-8").replace("</body>", LOOK), encoding="utf-8")
    known = FLAGS.replace("--virtual-time-budget=2000", "--virtual-time-budget=8000")
    command = ["chromium", *known.split(), f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom"]
    try:
        done = subprocess.run(
            [*command, copy.as_uri() + query], capture_output=True, text=True, timeout=120, check=True
        )
    finally:
        copy.unlink()
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert found, done.stderr
    return dict(json.loads(html.unescape(found[1])))


def test_home_with_its_picture_and_a_search(site: Path, tmp_path: Path) -> None:
    seen = look(site, "index.html", tmp_path, "--window-size=1280,900", query="?q=racing")
    assert re.fullmatch(r"\d+ matching documents", seen["found"])
    assert any("deciding.html" in link for link in seen["results"])
    assert len(seen["pictures"]) == 1 and all(natural > 100 < wide for natural, wide in seen["pictures"])
    assert seen["paper"] == "rgb(255, 255, 255)"


@pytest.mark.parametrize("flags", [("--window-size=1280,900",), ("--window-size=500,900",)], ids=["desk", "phone"])
def test_formulas_are_set(site: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    seen = look(site, "explanation/formulas.html", tmp_path, *flags)
    assert len(seen["formulas"]) >= 10
    assert all(size is not None and size[0] > 40 and size[1] > 10 for size in seen["formulas"])
    assert seen["across"][0] <= seen["across"][1]  # wide formulas scroll inside their own box


def test_drawings_take_the_colours_of_a_dark_page(site: Path, tmp_path: Path) -> None:
    dark = ("--window-size=500,900", "--blink-settings=preferredColorScheme=0")
    seen = look(site, "explanation/graph.html", tmp_path, *dark)
    assert len(seen["drawings"]) == 4
    assert all(wide > 300 and high > 50 for wide, high in seen["drawings"])
    assert seen["paper"] != "rgb(255, 255, 255)"
    assert all(min(map(int, re.findall(r"\d+", ink)[:3])) > 150 for ink in seen["ink"])  # light ink
    assert seen["across"][0] <= seen["across"][1]


@pytest.mark.parametrize("page", ["zoo.html", "comparison.html", "reference/command-line.html"])
def test_wide_tables_do_not_widen_the_page(site: Path, tmp_path: Path, page: str) -> None:
    seen = look(site, page, tmp_path, "--window-size=500,900")
    assert seen["across"][0] <= seen["across"][1]
