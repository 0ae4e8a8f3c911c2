"""Files to save from a page, curves of retraining and the spread of times, against the run's own files."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prunus.report.charts import losses_chart, rates_chart
from prunus.report.html import as_json, downloads, run_files
from prunus.report.read import read_run
from prunus.report.sections import latencies
from tests.report.runs import Page, read
from tests.report.test_run_page import NASTY


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_files_have_the_figures_of_the_run(compressed: Any) -> None:
    files, summary = run_files(read_run(compressed.folder)), read(compressed.folder / "summary.json")
    assert list(files) == ["run.json", "layers.csv", "units.csv", "rounds.csv", "epochs.csv", "classes.csv"]
    whole = json.loads(files["run.json"])
    for key in ("rounds", "layers", "units", "versions", "quality"):
        assert whole[key] == summary[key]
    assert whole["after"] == summary["after"]
    head, *layers = rows(files["layers.csv"])
    assert head[:5] == ["layer", "inputs before", "inputs after", "outputs before", "outputs after"]
    assert [(row[0], [int(v) for v in row[5:7]]) for row in layers] == [
        (name, layer["macs"]) for name, layer in summary["layers"].items()
    ]
    _, *epochs = rows(files["epochs.csv"])
    wanted = [(r["number"], e["number"], e["lr"], e["loss"]) for r in summary["rounds"] for e in r["retraining"]]
    assert [(int(a), int(b), float(c), float(d)) for a, b, c, d, *_ in epochs] == wanted and wanted
    _, *classes = rows(files["classes.csv"])
    assert [float(row[3]) for row in classes] == read(compressed.folder / "classes.json")["after"]["values"]


def test_nothing_in_a_file_can_end_the_script() -> None:
    section = downloads({"a.json": as_json({"name": NASTY, "value": float("nan")})})
    assert section.count("</script>") == 1 and "<b>" not in section
    page = Page(f"<main>{section}</main>")  # well-formed
    assert ("button", {"type": "button", "class": "download", "data-file": "a.json"}) in page.tags
    inside = re.search(r'id="downloads">(.*?)</script>', section)
    assert inside and json.loads(json.loads(inside[1])["a.json"]) == {"name": NASTY, "value": None}


def test_curves_go_through_every_epoch(compressed: Any) -> None:
    run, summary = read_run(compressed.folder), read(compressed.folder / "summary.json")
    epochs = [epoch for done in summary["rounds"] for epoch in done["retraining"]]
    losses, rates = losses_chart(run), rates_chart(run)
    titles = re.findall(r"<title>[^<]*?: (\S+) loss ([\d.e+-]+)</title>", losses)
    assert [float(v) for what, v in titles if what == "training"] == pytest.approx(
        [epoch["loss"] for epoch in epochs], rel=1e-3
    )
    assert [float(v) for what, v in titles if what == "held-out"] == pytest.approx(
        [epoch["holdout"]["loss"] for epoch in epochs], rel=1e-3
    )
    found = [float(v) for v in re.findall(r"<title>[^<]*learning rate ([\d.e+-]+)</title>", rates)]
    assert found == pytest.approx([epoch["lr"] for epoch in epochs], rel=1e-3)
    assert 'class="curve"' not in losses  # one epoch in each round: no line joins two rounds
    heights = [float(y) for y in re.findall(r'<circle class="kept"[^>]*cy="([\d.]+)"', rates)]
    assert heights == sorted(heights, key=lambda y: -found[heights.index(y)])  # a higher rate is higher up


def test_times_have_their_quartiles(compressed: Any) -> None:
    run, summary = read_run(compressed.folder), read(compressed.folder / "summary.json")
    section = latencies(run)
    for side in ("before", "after"):
        for size, (low, high) in summary[side]["quartiles"].items():
            assert low <= summary[side]["latency"][size] <= high
            words = f"{size} image{'' if size == '1' else 's'}, {side}: "
            assert words in section and f"quartiles {1e3 * low:.3g} ms to {1e3 * high:.3g} ms" in section
    assert latencies(replace(run, before=replace(run.before, quartiles={}))) == ""


def test_a_goal_in_macs_says_nothing_about_engines(run: Path) -> None:
    from prunus.report.run_page import what_was_asked

    assert "engine" not in what_was_asked(read_run(run))
