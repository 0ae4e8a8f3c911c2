"""A curve: a run for each speed-up, with one scoring and one table of times."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import prunus as pr
from prunus.errors import DecideError
from prunus.run import round as rounds
from prunus.run import speed_check
from prunus.run.settings import Settings, goals_of
from tests.proof import same_state
from tests.run.test_search import right, speed
from tests.run.test_speed_check import QUICK, Stopwatch, stopwatch, table
from tests.run.toys import HOLDOUT, TEST, TRAIN, trained

__all__ = ["stopwatch"]  # a fixture
WORDS = {name: value for name, value in QUICK.items() if name != "epochs"}


def test_each_point_is_the_run_that_compress_makes(
    stopwatch: Stopwatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **how: Any) -> Any:
            calls[name] += 1
            return function(*args, **how)

        return call

    monkeypatch.setattr(speed_check, "latency_table", counted("table", lambda graph, *how: table(graph)))
    monkeypatch.setattr(rounds, "score", counted("score", rounds.score))
    drawn = pr.curve(trained(), TRAIN, HOLDOUT, [1.8, 1.3], test=TEST, folder=tmp_path / "curve", **WORDS)
    assert calls == {"table": 1, "score": 2}  # streams in both ways, each scored once
    assert list(drawn.results) == [1.3, 1.8] and drawn.reached and drawn.folder == tmp_path / "curve"
    alone = pr.compress(trained(), TRAIN, HOLDOUT, test=TEST, speedup=1.8, timing=False, **WORDS)
    assert same_state(alone.model, drawn.results[1.8].model)
    for point in drawn.points:
        loaded = pr.load(tmp_path / "curve" / point.folder, trained()).eval()
        assert point.quality == pytest.approx(right(loaded, TEST)) and point.ratio == pytest.approx(speed(loaded))
        assert point.change == pytest.approx(right(loaded, TEST) - right(trained(), TEST))
    record = json.loads((tmp_path / "curve" / "curve.json").read_text())
    assert [each["asked"] for each in record["points"]] == [1.3, 1.8]
    assert record["original"] == pytest.approx(right(trained(), TEST)) and record["part"] == "test"
    assert (tmp_path / "curve" / "curve.png").stat().st_size > 10_000
    assert "1.3x" in repr(drawn) and "<svg" in drawn._repr_html_()
    before = stopwatch.calls
    again = pr.curve(trained(), TRAIN, HOLDOUT, [1.3, 1.8], test=TEST, folder=tmp_path / "curve", **WORDS)
    assert stopwatch.calls == before and again.points == drawn.points  # nothing is done twice


def test_a_point_out_of_reach_is_told_and_the_others_stay(
    stopwatch: Stopwatch, caplog: pytest.LogCaptureFixture
) -> None:
    drawn = pr.curve(trained(), TRAIN, HOLDOUT, [1.3, 50], **WORDS)
    assert list(drawn.results) == [1.3] and not drawn.reached and drawn.folder is None
    assert "50.00x is out of reach" in drawn.missed[50.0] and "out of reach" in repr(drawn)
    assert caplog.text.count("out of reach") == 1
    page = drawn.results[1.3].report
    with pytest.raises(pr.PrunusError, match="folder"):
        page()
    with pytest.raises(DecideError, match=r"50\.00x is out of reach"):
        pr.curve(trained(), TRAIN, HOLDOUT, [50], **WORDS)
    assert caplog.text.count("out of reach") == 1  # an error needs no warning


@pytest.mark.parametrize(
    ("speedups", "said"),
    [([], "got none"), ([1.0], "got 1.0"), ([2, "fast"], "got 'fast'"), ([True], "got True"), ([float("inf")], "inf")],
)
def test_wrong_speedups(speedups: Any, said: str) -> None:
    with pytest.raises(DecideError, match=f"numbers above 1.*{said}"):
        goals_of(Settings(), speedups)


def test_another_goal_is_refused() -> None:
    with pytest.raises(DecideError, match="leave target out"):
        goals_of(Settings(target=0.5), [2])
    assert [goal.speedup for goal in goals_of(Settings(), 2)] == [2.0]  # type: ignore[arg-type]
