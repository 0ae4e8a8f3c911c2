"""Several networks are tried for one goal: both ways to treat streams, and cuts that lose at most max_drop."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import prunus as pr
from prunus.run.context import ImageQuality
from prunus.run.search import Point, Search, Tries
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.paired import ImageValues
from prunus.timing.latency import Speedup
from tests.proof import same_state
from tests.run.test_speed_check import OVERHEAD, QUICK, TICK, Stopwatch, pairs, stopwatch
from tests.run.toys import HOLDOUT, TEST, TRAIN, run, trained

__all__ = ["stopwatch"]  # a fixture


def right(model: nn.Module, batches: Any = HOLDOUT) -> float:
    """The share of images whose class is right."""
    with torch.no_grad():
        hits = [model.eval()(images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(hits).double().mean())


def speed(model: nn.Module) -> float:
    """The speed-up by the clock of these tests."""
    return (OVERHEAD + TICK * pairs(trained())) / (OVERHEAD + TICK * pairs(model))


def points(folder: Path) -> dict[str, Any]:
    """What search.json says."""
    return json.loads((folder / "round-01" / "search.json").read_text())


def test_a_latency_target_tries_both_ways_and_keeps_the_better(stopwatch: Stopwatch, tmp_path: Path) -> None:
    both = run(tmp_path / "both", speedup=1.8, **QUICK)
    alone = {
        streams: run(tmp_path / streams, speedup=1.8, streams=streams, **QUICK) for streams in ("select", "coupled")
    }
    tried = points(tmp_path / "both")
    assert [point["streams"] for point in tried["points"]] == ["select", "coupled"]
    for point in tried["points"]:
        assert point["quality"]["quality"] == pytest.approx(right(alone[point["streams"]].model))
    chosen = tried["points"][tried["chosen"]]
    same = alone[chosen["streams"]]
    assert same_state(both.model, same.model)
    worst = min(alone.values(), key=lambda each: right(each.model))
    assert right(both.model) >= right(worst.model) and both.summary["settings"]["streams"] == chosen["streams"]


def test_the_fastest_network_that_loses_at_most_max_drop_also_after_a_kill(
    stopwatch: Stopwatch, tmp_path: Path
) -> None:
    base = right(trained())
    done = run(tmp_path / "run", max_drop=5.0, **QUICK)
    tried = points(tmp_path / "run")
    drops = [100 * (base - point["quality"]["quality"]) for point in tried["points"] if point["quality"]]
    assert len(drops) >= 2  # a search, not a single trial
    assert 100 * (base - right(done.model)) <= 5.0 + 1e-6
    chosen = tried["points"][tried["chosen"]]
    able = [p for p in tried["points"] if p["quality"] and 100 * (base - p["quality"]["quality"]) <= 5.0 + 1e-6]
    assert chosen["predicted"] == max(point["predicted"] for point in able)
    assert (
        done.reached and done.summary["goal"]["kind"] == "max_drop" and done.speedup == pytest.approx(speed(done.model))
    )
    assert "standard error" in done.summary["goal"]["text"]
    for path in (tmp_path / "run").glob("**/*"):
        if path.is_file() and not path.name.startswith(("scores", "config", "base", "latency", "network")):
            path.unlink()
    half = {**tried, "points": tried["points"][:2], "chosen": None, "done": False}
    (tmp_path / "run" / "round-01" / "search.json").write_text(json.dumps(half))
    again = run(tmp_path / "run", max_drop=5.0, **QUICK)
    assert again.plan == done.plan and same_state(again.model, done.model)
    assert points(tmp_path / "run")["chosen"] == tried["chosen"]


def test_without_a_goal_at_most_one_point_is_lost(stopwatch: Stopwatch) -> None:
    words = {name: value for name, value in QUICK.items() if name != "epochs"}
    done = pr.compress(trained(), TRAIN, HOLDOUT, test=TEST, timing=False, **words)
    assert done.summary["settings"]["max_drop"] == 1.0
    assert 100 * (right(trained()) - right(done.model)) <= 1.0 + 1e-6


def test_a_speedup_that_loses_too_much_gives_the_fastest_that_does_not(stopwatch: Stopwatch, tmp_path: Path) -> None:
    base = right(trained())
    done = run(tmp_path / "run", speedup=3.0, max_drop=2.0, blocks=False, streams="select", **QUICK)
    tried = points(tmp_path / "run")
    asked = [point for point in tried["points"] if point["asked"]]
    assert all(100 * (base - point["quality"]["quality"]) > 2.0 for point in asked if point["quality"])
    assert 100 * (base - right(done.model)) <= 2.0 + 1e-6
    assert 1.0 < speed(done.model) < 3.0 and not done.reached
    assert "a larger cut would lose more than 2 points" in done.summary["goal"]["text"]


def test_max_drop_that_no_cut_keeps(stopwatch: Stopwatch, tmp_path: Path) -> None:
    def worse(model: nn.Module, loader: Any) -> Evaluation:
        whole = pairs(model) == pairs(trained())
        return Evaluation(1.0 if whole else 0.0, 0.5, 10)

    done = run(tmp_path / "run", max_drop=0.1, evaluate=worse, streams="select", **QUICK)
    assert pairs(done.model) == pairs(trained()) and not done.reached and not done.rounds
    assert "nothing was removed" in done.summary["goal"]["text"]


def test_out_of_reach_names_the_better_way(stopwatch: Stopwatch) -> None:
    """The error of both is that of the way that can become faster."""
    limits = []
    for streams in ("select", "coupled", None):
        with pytest.raises(pr.DecideError, match="out of reach") as caught:
            run(speedup=500.0, streams=streams, **QUICK)
        limits.append(float(re.findall(r"the network is ([\d.]+)x", str(caught.value))[0]))
    assert limits[2] == max(limits[:2]) and limits[0] != limits[1]


def test_the_standard_error_of_a_drop_is_that_of_pairs() -> None:
    """Of 8 images 2 are lost and 1 is won: a mean of 1/8, and a standard deviation of the 8 differences."""
    before, after = [1, 1, 1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1]

    def quality(values: list[int]) -> ImageQuality:
        array = torch.tensor(values).double()
        return ImageQuality(Evaluation(float(array.mean()), 0.0, 8), ImageValues(array, "the same labels"))

    drop, error = quality(before).drop_to(quality(after))
    differences = [b - a for b, a in zip(before, after, strict=True)]
    spread = (sum((d - 0.125) ** 2 for d in differences) / 7) ** 0.5
    assert drop == 0.125 and error == pytest.approx(spread / 8**0.5)


def test_a_drop_of_exactly_max_drop_is_allowed() -> None:
    assert Search((), max_drop=1.0).allows(Point("select", 2.0, False, drop=100 * (0.79 - 0.78)))
    assert not Search((), max_drop=1.0).allows(Point("select", 2.0, False, drop=1.001))


class Scripted(Tries):
    """A search over cuts up to 4x whose drops, standard errors and speeds the test decides; one point may be lost."""

    top = 4.0

    def __init__(
        self, drop: Callable[[float, int | None], float], error: float | None, speeds: dict[int, Speedup]
    ) -> None:
        self.search, self.ways, self.candidates = Search((), 1.0), ("select",), {}
        self.contexts: Any = {"select": SimpleNamespace(settings=SimpleNamespace(round_to=1))}
        self.drop, self.error, self.speeds = drop, error, speeds

    def add(self, streams: Any, cut: float | None, step: int | None = None) -> int:
        assert cut is not None
        point = Point(streams, cut, False, cut, Evaluation(0.9, 0.1, 100), self.drop(cut, step), self.error, step=step)
        self.search = Search((*self.search.points, point), 1.0)
        return len(self.search.points) - 1

    def timed(self, place: int) -> Speedup:
        return self.speeds[self.search.points[place].step or 1]


def test_a_drop_that_is_too_large_by_chance_does_not_end_a_search() -> None:
    """The first cut is 2x. It loses 1.2 points, 0.4 too many by chance; 3.5x is the largest cut that loses one."""

    def drop(cut: float, step: int | None) -> float:
        return 1.2 if cut == 2.0 else 0.5 if cut <= 3.5 else 3.0

    search = Scripted(drop, 0.4, {})
    best = search.bisect()
    assert best is not None and 3.5 / 1.04 <= search.search.points[best].cut <= 3.5
    sure = Scripted(drop, 0.1, {})  # 1.2 is two standard errors too many
    best = sure.bisect()
    assert best is not None and 2.0 / 1.04 <= sure.search.points[best].cut < 2.0


def test_a_doubtful_cut_costs_one_more_try() -> None:
    search = Scripted(lambda cut, step: 0.7 * cut if cut < 2.5 else 9.0, 0.5, {})  # 1.43x loses one point; 2x loses 1.4
    best = search.bisect()
    cuts = [point.cut for point in search.search.points]
    assert cuts[:3] == pytest.approx([2.0, 8**0.5, 2**0.5])
    assert best is not None and 1.3 <= search.search.points[best].cut <= 1 / 0.7


def test_aligned_widths_that_are_as_fast_and_better_are_taken() -> None:
    speeds = {1: Speedup(2.00, 1.96, 2.05), 16: Speedup(2.06, 1.99, 2.20)}
    for aligned, expected in ((0.0, 16), (0.9, None)):  # points that aligned widths lose; others lose 0.8
        search = Scripted(lambda cut, step, aligned=aligned: aligned if step else 0.8, 0.4, speeds)
        chosen = search.aligned(search.add("select", 1.8))
        assert search.search.points[chosen].step == expected
