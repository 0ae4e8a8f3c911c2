"""The sentences of the report, against sentences written by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prunus.report import text as sentences
from prunus.report.read import FinishedRun, read_run
from prunus.run.final_timing import EngineSpeed
from prunus.run.summary import NetworkFigures, UnitFigures
from prunus.tasks.evaluate import Evaluation


@pytest.fixture
def told(compressed: Any) -> FinishedRun:
    """A run with figures that can be worked out by hand."""
    units = {
        "a:out": UnitFigures("private", 16, 6),
        "b:in": UnitFigures("stream", 8, 8),
        "c:out": UnitFigures("private", 64, 9),
    }
    held, tested = Evaluation(0.96, 0.1, 50), Evaluation(0.95, 0.2, 200)
    was = NetworkFigures(held, tested, 1000, 400, 2000)
    held, tested = Evaluation(0.94, 0.1, 50), Evaluation(0.93, 0.2, 200)
    now = NetworkFigures(held, tested, 500, 100, 600)
    removed = {"macs": 0.5, "params": 0.75}
    return changed(
        read_run(compressed.folder),
        units=units,
        before=was,
        after=now,
        speeds=(timed(3.0, 2.5, 3.25),),
        removed=removed,
    )


def timed(ratio: float, low: float, high: float, engine: str = "onnxruntime") -> EngineSpeed:
    """A row of the final timing: 30 ms before."""
    return EngineSpeed(engine, 1, 1, 0.03, 0.03 / ratio, ratio, low, high, "processor")


def changed(run: FinishedRun, **summary: Any) -> FinishedRun:
    """The run with another summary."""
    return replace(run, summary=replace(run.summary, **summary))


def side(run: FinishedRun, name: str, **figures: Any) -> FinishedRun:
    """The run with other figures before or after."""
    return changed(run, **{name: replace(getattr(run.summary, name), **figures)})


QUALITY = "95.00% → 93.00% test accuracy."
HELD_OUT = "On the 50 held-out images, which decisions used, it changed from 96.00% to 94.00%."
WORK = (
    "One image needs 500 multiply-adds instead of 1.00 K (−50.0%), the network has 100 weights instead of 400 "
    "(−75.0%), and its tensors take 600B instead of 2.00 KB."
)


def test_points() -> None:
    assert [sentences.points(x) for x in (-0.00836, 0.01, -0.00001)] == ["−0.84 points", "+1.00 points", "0.00 points"]


@pytest.mark.parametrize(
    ("speeds", "verdict", "title"),
    [
        ((3.0, 2.5, 3.25), "3.00x as fast in onnxruntime at batch 1 (2.50 to 3.25), ", "3.00x as fast, "),
        ((0.65, 0.6, 0.7), "Slower in onnxruntime at batch 1: 0.65x (0.60 to 0.70), ", "slower (0.65x), "),
        ((1.02, 0.97, 1.08), "No measurable difference in onnxruntime at batch 1 (0.97 to 1.08), ", None),
        ((), "50.0% of the MACs removed, speed not measured, ", ""),
    ],
)
def test_the_verdict_is_about_speed(told: FinishedRun, speeds: Any, verdict: str, title: str | None) -> None:
    run = changed(told, speeds=(timed(*speeds), timed(3.0, 2.5, 3.25, "eager")) if speeds else ())
    assert sentences.verdict(run) == f"{verdict}{QUALITY}"
    if title is not None:
        assert sentences.title(run) == f"resnet8 on folder:pictures, pruned: {title}50.0% of the MACs removed"


def test_the_verdict_without_test_images_and_without_a_cut(told: FinishedRun) -> None:
    untested = side(told, "before", test=None)
    assert sentences.verdict(untested).endswith(", 96.00% → 94.00% held-out accuracy.")
    whole = changed(told, units={name: replace(u, kept=u.width) for name, u in told.summary.units.items()})
    assert sentences.verdict(whole).startswith("Nothing was removed: the network is as it was, 95.00% → ")
    assert sentences.title(whole) == "resnet8 on folder:pictures: nothing was removed"
    assert sentences.what_was_removed(whole) == "No channels were removed."


def test_what_was_removed(told: FinishedRun) -> None:
    assert sentences.what_was_removed(told) == (
        "65 of 88 channels in 2 rounds, from c:out (from 64 channels to 9) and a:out (from 16 channels to 6). "
        "1 of 3 units kept all channels."
    )
    many = {f"u{i}": UnitFigures("private", 10, 9 - i) for i in range(5)}
    assert sentences.what_was_removed(changed(told, units=many)) == (
        "15 of 50 channels in 2 rounds, most of them from u4 (from 10 channels to 5), u3 (from 10 channels to 6) and "
        "u2 (from 10 channels to 7); the others from 2 other units."
    )


def test_what_was_lost(told: FinishedRun) -> None:
    assert sentences.what_was_lost(told) == (
        "The test accuracy changed from 95.00% to 93.00% (−2.00 points): 4 more mistakes on 200 images that were not "
        f"used for any decision. {HELD_OUT}"
    )
    untested = side(side(told, "before", test=None), "after", test=None)
    assert sentences.what_was_lost(untested) == (
        "The held-out accuracy changed from 96.00% to 94.00% (−2.00 points): 1 more mistake on 50 images. "
        "These images were also used for decisions."
    )
    same = side(told, "after", test=told.summary.before.test)
    assert sentences.what_was_lost(same) == (
        "The test accuracy is still 95.00%: the same number of mistakes on 200 images that were not used for any "
        f"decision. {HELD_OUT}"
    )
    steady = side(told, "after", holdout=told.summary.before.holdout)
    assert sentences.what_was_lost(steady).endswith("which decisions used, it is still 96.00%.")
    better = changed(told, before=told.summary.after, after=told.summary.before)
    assert "(+2.00 points): 4 fewer mistakes on 200 images" in sentences.what_was_lost(better)


def test_what_was_gained(told: FinishedRun) -> None:
    assert sentences.what_was_gained(told) == (
        "On the machine of the run: 3.00x as fast in onnxruntime at batch 1 (2.50 to 3.25); a batch takes 10 ms "
        f"instead of 30 ms. {WORK}"
    )
    assert sentences.what_was_gained(changed(told, speeds=())) == WORK


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ({"target": 0.5}, "Remove 50.0% of the MACs."),
        ({"params": 100.0}, "Keep 100 of 400 weights."),
        ({"macs": 400.0}, "Keep 400 of 1.00 K MACs."),
        ({"ratio": 0.3}, "Remove 30% of the channels of every unit in one round."),
        ({"max_drop": 0.5}, "Remove as much as possible and lose at most 0.5 points of held-out accuracy."),
        (
            {"speedup": 1.5, "engine": "eager", "batch": 8, "threads": 2},
            "Make it 1.5 times as fast in eager at batch 8, on 2 threads.",
        ),
    ],
)
def test_goals(told: FinishedRun, goal: dict[str, Any], expected: str) -> None:
    settings = replace(told.settings, **{"target": None, **goal})
    assert sentences.goal(replace(told, settings=settings)) == expected
