"""The page of a study: complete in itself, its figures those of study.json, its table sorts in a browser."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from prunus.plots.style import COLUMN, figure, legend, line, save
from prunus.report.run_page import write_report
from prunus.studies.folder import Provenance, StudyFolder
from tests.report.runs import Page

KEYS = ("metric", "removed", "images", "accuracy", "retrained", "ours", "top5")
ROWS: list[dict[str, Any]] = [
    dict(zip(KEYS, ("gsd", 0.1, 2000, 93.35000001, None, False, None), strict=True)),
    dict(zip(KEYS, ("l1", 0.4, 10, 62.85, 90.5, True, None), strict=True)),
    dict(zip(KEYS, ("<b>&", 0.2, 300, -1.5, float("nan"), True, None), strict=True)),
]
ASKED = {"networks": ["resnet8=w & w.safetensors"], "ratios": [0.1, 0.4], "seed": 0, "device": None, "exact": True}
COMMAND = "prunus study effectiveness 'a <b>' --data digits"


def make_study(path: Path, pictures: bool = True) -> Path:
    """A finished study with a picture."""
    study = StudyFolder(path, "effectiveness", ASKED, Provenance(command=COMMAND))
    study.start()
    drawn = []
    if pictures:
        fig, axes = figure(COLUMN, 2.4)
        axes.plot([10, 20], [93, 62], label="gsd", **line(0))
        axes.set_xlabel("channels removed (%)")
        axes.set_ylabel("accuracy (%)")
        legend(fig, axes)
        caption = "Accuracy <i>against</i> ratio."
        drawn = [{"file": save(fig, path, "accuracy"), "alt": 'One "line" that falls', "caption": caption}]
    titles = {"metric": "metric", "accuracy": "accuracy (%)"}
    return study.finish("Which metric <works>?", ROWS, drawn, ["Nothing was <retrained>."], columns=titles)


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path / "study of metrics")


def test_complete_in_itself_and_all_is_there(study: Path) -> None:
    assert write_report(study) == study / "report.html"
    page = (study / "report.html").read_text(encoding="utf-8")
    found = Page(page)
    assert not re.search(r"https?:|//\w|url\((?!#)|@import|fetch\(|\ssrc=|href=\"(?!#)", page)
    (drawing,) = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert drawing["aria-label"] == 'One "line" that falls' and drawing["role"] == "img"
    text = found.text
    for words in ("channels removed (%)", "accuracy (%)"):  # text of the drawing is text of the page
        assert words in text
    for words in (
        "Which metric <works>?",
        "Accuracy <i>against</i> ratio.",
        "Nothing was <retrained>.",
        "networks resnet8=w & w.safetensors",
        "ratios 0.1, 0.4",
        "exact yes",
        "prunus study effectiveness 'a <b>' --data digits",
        "Study effectiveness, run with prunus",
    ):
        assert words in text
    assert "device" not in text  # what was not asked for is not listed
    write_report(study)
    assert (study / "report.html").read_text(encoding="utf-8") == page


def test_two_drawings_share_no_ids(study: Path) -> None:
    words = json.loads((study / "study.json").read_text())
    fig, axes = figure(COLUMN, 2.0)
    axes.barh([0, 1], [3.0, 4.5], label="pruned")
    axes.set_yticks([0, 1], ["conv1", "conv2"])
    axes.set_xlabel("MACs (M)")
    words["pictures"].append({"file": save(fig, study, "bars"), "alt": "Two bars", "caption": "Bars."})
    (study / "study.json").write_text(json.dumps(words))
    page = write_report(study).read_text(encoding="utf-8")
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert ids and len(ids) == len(set(ids))
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', page))
    assert used == set(ids)  # clips and markers find what they refer to


def test_a_drawing_that_holds_more_is_only_a_picture(study: Path) -> None:
    original = (study / "accuracy.svg").read_text()
    for more in ("<script>alert(1)</script>", '<image href="x.png"/>', '<g onclick="alert(1)"/>'):
        svg = original.replace("</svg>", f"{more}</svg>")
        (study / "accuracy.svg").write_text(svg)
        page = write_report(study).read_text(encoding="utf-8")
        assert more not in page and [tag for tag, _ in Page(page).tags].count("svg") == 0
        (image,) = [attributes for tag, attributes in Page(page).tags if tag == "img"]
        kind, _, data = (image["src"] or "").partition(";base64,")
        assert kind == "data:image/svg+xml" and base64.b64decode(data).decode() == svg
    (study / "accuracy.svg").unlink()  # the PNG alone will do
    assert 'src="data:image/png;base64,' in write_report(study).read_text(encoding="utf-8")


def test_the_table_has_the_figures(study: Path) -> None:
    page = write_report(study).read_text(encoding="utf-8")
    heads = re.findall(r'<button type="button">(.*?)</button>', page)
    assert heads == ["metric", "removed", "images", "accuracy (%)", "retrained", "ours"]  # top5 is empty
    rows = re.findall(r"<tr data-place.*?</tr>", page)
    cells = [
        re.findall(r'<td data-value="([^"]+)"(?: title="([^"]+)")?(?: class="words")?>(.*?)</td>', row) for row in rows
    ]
    assert page.count('class="words"') == 4  # a heading and three names of metrics
    assert [c[2] for c in cells[0]] == ["gsd", "0.1", "2,000", "93.35", "–", "no"]
    assert cells[0][3][1] == "93.35000001"  # all digits when pointed at
    assert [c[2] for c in cells[2]] == ["&lt;b&gt;&amp;", "0.2", "300", "-1.5", "–", "yes"]
    assert [float(row[3][0]) for row in cells] == [93.35000001, 62.85, -1.5]
    assert [float(row[0][0]) for row in cells] == [1, 2, 0]  # words in the order of the alphabet
    assert [float(row[4][0]) for row in cells] == [-float("inf"), 90.5, -float("inf")]
