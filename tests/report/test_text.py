"""The sentences of the report, against sentences written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prunus.report import text as sentences
from prunus.report.read import FinishedRun, read_run
from prunus.run.summary import NetworkFigures, UnitFigures
from prunus.tasks.evaluate import Evaluation
from prunus.timing.latency import Speedup


@pytest.fixture
def told(compressed: Any) -> FinishedRun:
    """A run with figures that can be worked out by hand."""
    units = {
        "a:out": UnitFigures("private", 16, 6),
        "b:in": UnitFigures("stream", 8, 8),
        "c:out": UnitFigures("private", 64, 9),
    }
    held, tested = Evaluation(0.96, 0.1, 50), Evaluation(0.95, 0.2, 200)
    was = NetworkFigures(held, tested, 1000, 400, 2000, {"1": 0.002, "64": 0.03}, {})
    held, tested = Evaluation(0.94, 0.1, 50), Evaluation(0.93, 0.2, 200)
    now = NetworkFigures(held, tested, 500, 100, 600, {"1": 0.004, "64": 0.01}, {})
    speed = {"1": Speedup(0.5, 0.2, 1.1), "64": Speedup(3.0, 2.5, 3.25)}
    return changed(read_run(compressed.folder), units=units, before=was, after=now, speedup=speed)


def changed(run: FinishedRun, **summary: Any) -> FinishedRun:
    """The run with another summary."""
    return replace(run, summary=replace(run.summary, **summary))


def side(run: FinishedRun, name: str, **figures: Any) -> FinishedRun:
    """The run with other figures before or after."""
    return changed(run, **{name: replace(getattr(run.summary, name), **figures)})


@pytest.mark.parametrize(
    ("change", "expected"), [(-0.00836, "−0.84 points"), (0.01, "+1.00 points"), (-0.00001, "0.00 points")]
)
def test_points(change: float, expected: str) -> None:
    assert sentences.points(change) == expected


def test_the_verdict(told: FinishedRun) -> None:
    work = "50.0% fewer MACs and 70.0% fewer bytes"
    assert sentences.verdict(told) == f"{work}; the test accuracy is 2.00 points lower, 93.00%."
    same = side(told, "after", test=told.summary.before.test)
    assert sentences.verdict(same) == f"{work} at the same test accuracy, 95.00%."
    better = side(told, "after", test=Evaluation(0.96, 0.2, 200))
    assert sentences.verdict(better) == f"{work}; the test accuracy is 1.00 points higher, 96.00%."
    untested = side(told, "before", test=None)
    assert sentences.verdict(untested) == f"{work}; the held-out accuracy is 2.00 points lower, 94.00%."
    whole = side(told, "after", macs=told.summary.before.macs)
    assert sentences.verdict(whole) == "Nothing was removed: the network is unchanged."


def test_what_was_removed(told: FinishedRun) -> None:
    assert sentences.what_was_removed(told) == (
        "65 of 88 channels in 2 rounds, from c:out (from 64 channels to 9) and a:out (from 16 channels to 6). "
        "1 of 3 units kept all channels."
    )
    whole = {name: replace(unit, kept=unit.width) for name, unit in told.summary.units.items()}
    assert sentences.what_was_removed(changed(told, units=whole)) == "No channels were removed."
    many = {f"u{i}": UnitFigures("private", 10, 9 - i) for i in range(5)}
    assert sentences.what_was_removed(changed(told, units=many)) == (
        "15 of 50 channels in 2 rounds, most of them from u4 (from 10 channels to 5), u3 (from 10 channels to 6) and "
        "u2 (from 10 channels to 7); the others from 2 other units."
    )


def test_what_was_lost(told: FinishedRun) -> None:
    held = "On the 50 held-out images, which decisions used, it changed from"
    assert sentences.what_was_lost(told) == (
        "The test accuracy changed from 95.00% to 93.00% (−2.00 points): 4 more mistakes on 200 images that were not "
        f"used for any decision. {held} 96.00% to 94.00%."
    )
    untested = side(side(told, "before", test=None), "after", test=None)
    assert sentences.what_was_lost(untested) == (
        "The held-out accuracy changed from 96.00% to 94.00% (−2.00 points): 1 more mistake on 50 images. "
        "These images were also used for decisions."
    )
    same = side(told, "after", test=told.summary.before.test)
    assert sentences.what_was_lost(same) == (
        "The test accuracy is still 95.00%: the same number of mistakes on 200 images that were not used for any "
        f"decision. {held} 96.00% to 94.00%."
    )
    better = changed(told, before=told.summary.after, after=told.summary.before)
    assert "(+2.00 points): 4 fewer mistakes on 200 images" in sentences.what_was_lost(better)


def test_what_was_gained(told: FinishedRun) -> None:
    work = (
        "One image needs 500 multiply-adds instead of 1.00 K (−50.0%), the network has 100 weights instead of 400 "
        "(−75.0%), and its tensors take 600B instead of 2.00 KB."
    )
    assert sentences.what_was_gained(told) == (
        f"{work} On this run's machine there is no measurable difference in speed on one image (2 ms before, 4 ms "
        "after) and it is 3.00 times as fast on batches of 64 images (95% interval 2.50 to 3.25; 30 ms before, 10 ms "
        "after)."
    )
    untimed = side(told, "before", latency={})
    assert sentences.what_was_gained(untimed) == work


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ({"target": 0.5}, "Remove 50.0% of the MACs. Reached: 50.0% removed."),
        ({"target": 0.6}, "Remove 60.0% of the MACs. Not reached: 50.0% removed."),
        ({"params": 100.0}, "Keep 100 of 400 weights. Reached: 75.0% removed."),
        ({"macs": 400.0}, "Keep 400 of 1.00 K MACs. Not reached: 50.0% removed."),
        ({"ratio": 0.3}, "Remove 30% of the channels of every unit in one round."),
        ({"max_drop": 0.5}, "Remove as many channels as possible and lose at most 0.5 points of held-out accuracy."),
    ],
)
def test_goals(told: FinishedRun, goal: dict[str, float], expected: str) -> None:
    settings = replace(told.settings, **{"target": None, **goal})  # type: ignore[arg-type]
    assert sentences.goal(replace(told, settings=settings)) == expected
