"""Charts of rounds, epochs and scores against the run's own files."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from prunus.report.charts import bin_edges, round_charts, score_histogram
from prunus.report.read import FinishedRun, read_run
from tests.report.runs import read, titles


@pytest.fixture(scope="module")
def run(compressed: Any) -> FinishedRun:
    return read_run(compressed.folder)


@pytest.fixture(scope="module")
def summary(compressed: Any) -> Any:
    return read(compressed.folder / "summary.json")


def test_channels_keep_their_original_numbers(run: FinishedRun, compressed: Any) -> None:
    first, second = run.rounds
    for unit, kept in read(compressed.folder / "round-01" / "plan.json")["units"].items():
        assert first.numbers[unit] == tuple(range(kept["width"])) and second.numbers[unit] == tuple(kept["keep"])
        assert len(second.scores.values[unit]) == len(kept["keep"])
    assert run.undone == 0


def drawn(run: FinishedRun) -> dict[str, str]:
    """Kind of chart -> its SVG."""
    found = {}
    for chart in round_charts(run):
        kind = re.match(r'<svg class="chart (\w+)" role="img" aria-label="[^"]{20,}"', chart.svg)
        assert kind and chart.title
        found[kind[1]] = str(chart.svg)
    return found


def places(picture: str, colour: str) -> list[tuple[float, float]]:
    """Where the markers of one colour are."""
    marks = re.findall(r'<use xlink:href="[^"]+" x="([\d.]+)" y="([\d.]+)" style="([^"]*)"', picture)
    return [(float(x), float(y)) for x, y, style in marks if f"fill: var(--{colour})" in style]


def test_rounds_are_drawn_where_they_belong(run: FinishedRun, summary: Any) -> None:
    """max_drop is in points: 0.1 points below the accuracy before pruning."""
    picture = drawn(replace(run, settings=replace(run.settings, max_drop=0.1)))["rounds"]
    gone = [0.0, *(100 * (1 - each["macs"] / summary["before"]["macs"]) for each in summary["rounds"])]
    values = [summary["before"]["holdout"]["quality"], *(each["after"]["quality"] for each in summary["rounds"])]
    held = [text for text in titles(picture) if text.startswith("held-out, ")]
    assert [float(re.findall(r": ([\d.]+)% with ([\d.]+)%", text)[0][0]) for text in held] == pytest.approx(
        [100 * value for value in values], abs=0.006
    )
    points = places(picture, "blue")
    # Linear on both axes: the same factor for all differences.
    wide, high = points[-1][0] - points[0][0], points[-1][1] - points[0][1]
    for (x, y), g, value in zip(points, gone, values, strict=True):
        assert x - points[0][0] == pytest.approx(wide * g / gone[-1], abs=0.02)
        assert y - points[0][1] == pytest.approx(high * (value - values[0]) / (values[-1] - values[0]), abs=0.02)
    assert len(places(picture, "green")) == 2 and "goal: 40.0% of the MACs removed" in titles(picture)
    assert f"lowest held-out accuracy allowed: {100 * values[0] - 0.1:.2f}%" in titles(picture)


def test_curves_go_through_every_epoch(run: FinishedRun, summary: Any) -> None:
    pictures = drawn(run)
    said = [re.fullmatch(r"round (\d), (.*?): ([\d.]+)%", text) for text in titles(pictures["epochs"])]
    expected = {}
    for number, each in enumerate(summary["rounds"], start=1):
        expected[number, "before retraining"] = 100 * each["pruned"]["quality"]
        expected[number, "epoch 1"] = 100 * each["after"]["quality"]
    assert {(int(each[1]), each[2]): float(each[3]) for each in said if each} == pytest.approx(expected, abs=0.006)
    first, second = (x for x, _ in places(pictures["epochs"], "orange"))
    end = max(x for x, _ in places(pictures["epochs"], "blue"))
    assert second - first == pytest.approx(end - second, abs=0.02)  # one epoch each
    epochs = [epoch for done in summary["rounds"] for epoch in done["retraining"]]
    losses = [re.fullmatch(r".*: (\S+) loss ([\d.e+-]+)", text) for text in titles(pictures["loss"])]
    for what, value in (("training", lambda e: e["loss"]), ("held-out", lambda e: e["holdout"]["loss"])):
        shown = [float(each[2]) for each in losses if each and each[1] == what]
        assert shown == pytest.approx([value(epoch) for epoch in epochs], rel=1e-3)
    rates = [float(text.rpartition(" ")[2]) for text in titles(pictures["lear"])]
    assert rates == pytest.approx([epoch["lr"] for epoch in epochs], rel=1e-3)
    heights = [y for _, y in places(pictures["lear"], "blue")]
    assert np.argsort(heights).tolist() == np.argsort([-rate for rate in rates]).tolist()  # a higher rate is higher up


def test_without_retraining_there_is_one_chart(run: FinishedRun) -> None:
    still = [replace(d, outcome=replace(d.outcome, retraining=(), pruned=d.outcome.after)) for d in run.rounds]
    assert list(drawn(replace(run, rounds=tuple(still)))) == ["rounds"]
    assert round_charts(replace(run, rounds=())) == []


def test_scores_count_every_channel_once_and_the_cut_parts_them(run: FinishedRun, compressed: Any) -> None:
    for done in run.rounds:
        folder = compressed.folder / f"round-{done.outcome.number:02d}"
        step, scores = read(folder / "step-plan.json")["units"], load_file(folder / "scores.safetensors")
        for unit, lost in read(folder / "round.json")["chosen"].items():
            histogram = score_histogram(done, unit)
            counts = [
                (kind, int(found[1]))
                for bars in histogram.bins
                for kind, _, title in bars
                if (found := re.search(r": (\d+) (?:removed|kept) \(channel", title))
            ]
            assert sum(n for kind, n in counts if kind == "cut") == lost
            assert sum(n for kind, n in counts if kind == "kept") == len(step[unit]["keep"])
            values = scores[f"gsd/{unit}"]
            kept = np.isin(np.arange(len(values)), step[unit]["keep"])
            assert histogram.cut is not None
            middle = (values[~kept].max() + values[kept].min()) / 2
            assert float(histogram.cut[1]) == pytest.approx(middle, rel=0.01, abs=1e-9)
            kinds = [kind for bars in histogram.bins for kind, _, _ in bars]
            assert kinds == sorted(kinds)  # all that was cut is left of all that was kept
            tallest = max(sum(size for _, size, _ in bars) for bars in histogram.bins)
            assert tallest == pytest.approx(100, abs=0.2)


def test_bins_end_at_the_cut() -> None:
    edges = bin_edges(0.0, 24.0, 9.5)
    assert np.isclose(edges, 9.5).any() and edges[0] <= 0 and edges[-1] >= 24
    assert np.diff(edges) == pytest.approx(np.ones(len(edges) - 1))
    assert bin_edges(2.0, 2.0, None).tolist() == [1.5, 2.5]
