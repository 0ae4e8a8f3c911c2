"""Numbers and sentences, against what is written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from secateur.measuring.accuracy import Accuracy
from secateur.report import words
from secateur.report.reading import Run, Side, UnitWidth, read_run
from secateur.report.svg import Scale, ticks


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (words.big(11_944_576), "11.94 M"),
        (words.big(4.09e9), "4.09 G"),
        (words.big(640), "640"),
        (words.percent(0.50152), "50.2%"),
        (words.points(-0.00836), "−0.84 points"),
        (words.points(0.01), "+1.00 points"),
        (words.points(-0.00001), "0.00 points"),
        (words.change(200, 66), "−67.0%"),
        (words.change(0, 1), "–"),
        (words.milliseconds(0.0297), "29.7 ms"),
        (words.milliseconds(1.5), "1.5 s"),
        (words.duration(0.01), "under 0.1 s"),
        (words.duration(51.61), "51.6 s"),
        (words.duration(75), "1 min 15 s"),
        (words.duration(3 * 3600 + 120), "3 h 2 min"),
        (words.count(1, "round"), "1 round"),
        (words.count(1200, "image"), "1,200 images"),
    ],
)
def test_numbers(found: str, expected: str) -> None:
    assert found == expected


@pytest.fixture
def told(run: Path) -> Run:
    """A run with figures that can be worked out by hand."""
    units = {
        "a:out": UnitWidth("private", 16, 6),
        "b:in": UnitWidth("stream", 8, 8),
        "c:out": UnitWidth("private", 64, 9),
    }
    was = Side(Accuracy(0.96, None, 0.1, 50), Accuracy(0.95, None, 0.2, 200), 1000, 400, 2000, {"1": 0.002, "64": 0.03})
    now = Side(Accuracy(0.94, None, 0.1, 50), Accuracy(0.93, None, 0.2, 200), 500, 100, 600, {"1": 0.004, "64": 0.01})
    return replace(read_run(run), units=units, before=was, after=now)


def test_the_verdict(told: Run) -> None:
    work = "50.0% less work for each image and 70.0% fewer bytes"
    assert words.verdict(told) == f"{work}, for 2.00 points of test accuracy, now 93.00%."
    same = replace(told, after=replace(told.after, test=told.before.test))
    assert words.verdict(same) == f"{work}, at the same test accuracy of 95.00%."
    better = replace(told, after=replace(told.after, test=Accuracy(0.96, None, 0.2, 200)))
    assert words.verdict(better) == f"{work}, with test accuracy 1.00 points higher, at 96.00%."
    untested = replace(told, before=replace(told.before, test=None))
    assert words.verdict(untested) == f"{work}, for 2.00 points of held-out accuracy, now 94.00%."
    whole = replace(told, after=replace(told.after, macs=told.before.macs))
    assert words.verdict(whole) == "Nothing was removed: the network is as it was."


def test_what_was_removed(told: Run) -> None:
    assert words.what_was_removed(told) == (
        "65 of 88 channels, in 2 rounds: most of them from c:out (from 64 channels to 9) and a:out (from 16 channels "
        "to 6). 1 of 3 units kept all their channels."
    )
    whole = {name: replace(unit, kept=unit.width) for name, unit in told.units.items()}
    assert words.what_was_removed(replace(told, units=whole)) == "Nothing: every channel is still there."
    many = {f"u{i}": UnitWidth("private", 10, 9 - i) for i in range(5)}
    assert words.what_was_removed(replace(told, units=many)) == (
        "15 of 50 channels, in 2 rounds: most of them from u4 (from 10 channels to 5), u3 (from 10 channels to 6) and "
        "u2 (from 10 channels to 7), the rest from 2 more units."
    )


def test_what_it_cost(told: Run) -> None:
    held = "On the 50 held-out images, which decisions were made on: from"
    assert words.what_it_cost(told) == (
        "Accuracy on the test images went from 95.00% to 93.00% (−2.00 points): 4 more mistakes on 200 images that no "
        f"decision looked at. {held} 96.00% to 94.00%."
    )
    untested = replace(told, before=replace(told.before, test=None), after=replace(told.after, test=None))
    assert words.what_it_cost(untested) == (
        "Accuracy on the held-out images went from 96.00% to 94.00% (−2.00 points): 1 more mistake on 50 images. "
        "Decisions looked at these images too."
    )
    same = replace(told, after=replace(told.after, test=told.before.test))
    assert words.what_it_cost(same) == (
        "Accuracy on the test images is 95.00%: as many mistakes as before on 200 images that no decision looked at. "
        f"{held} 96.00% to 94.00%."
    )
    better = replace(told, before=told.after, after=told.before)
    assert "(+2.00 points): 4 fewer mistakes on 200 images" in words.what_it_cost(better)


def test_what_was_gained(told: Run) -> None:
    work = (
        "An image takes 500 multiply-adds instead of 1.00 K (−50.0%), the network has 100 weights instead of 400 "
        "(−75.0%), and its tensors take 600B instead of 2.00 KB."
    )
    assert words.what_was_gained(told) == (
        f"{work} On the machine of the run it is slower on one image (2 ms before, 4 ms now) and 3.00 times as fast on "
        "64 images at a time (30 ms before, 10 ms now)."
    )
    untimed = replace(told, before=replace(told.before, latency={}))
    assert words.what_was_gained(untimed) == work


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ({"target": 0.5}, "Remove 50.0% of the MACs. Reached: 50.0% removed."),
        ({"target": 0.6}, "Remove 60.0% of the MACs. Not reached: 50.0% removed."),
        ({"params": 100.0}, "Leave 100 weights of 400. Reached: 75.0% removed."),
        ({"macs": 400.0}, "Leave 400 MACs of 1.00 K. Not reached: 50.0% removed."),
        ({"ratio": 0.3}, "Remove 30% of the channels of every unit, in one go."),
        ({"max_drop": 0.005}, "Remove as much as can go, losing at most 0.5 points of held-out accuracy."),
    ],
)
def test_goals(told: Run, goal: dict[str, float], expected: str) -> None:
    settings = replace(told.settings, **{"target": None, **goal})  # type: ignore[arg-type]
    assert words.goal(replace(told, settings=settings)) == expected


def test_ticks_are_round_numbers_within() -> None:
    assert ticks(0, 50) == [0, 10, 20, 30, 40, 50]
    assert ticks(0.93, 1.0, 4) == [0.94, 0.96, 0.98, 1.0]
    assert ticks(-3, 8, 4) == [0, 5]
    assert ticks(2, 2) == [2]


def test_a_scale_is_linear() -> None:
    assert [Scale(10, 20, 0, 100)(v) for v in (10, 15, 20)] == [0, 50, 100]
    assert [Scale(0, 1, 50, 10)(v) for v in (0, 0.25, 1)] == [50, 40, 10]
    assert Scale(3, 3, 5, 9)(3) == 5
