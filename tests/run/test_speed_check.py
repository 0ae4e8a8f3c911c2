"""A latency target, with layers and networks whose time the test decides."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.deciding.costs import table_cost
from prunus.deciding.goal import Budget
from prunus.deciding.splits import SplitInputs, least_error, lowest_cost
from prunus.deciding.widths import candidates
from prunus.errors import DecideError, RunError
from prunus.report.run_page import write_report
from prunus.run import speed_check, summary
from prunus.run.final_timing import EngineSpeed
from prunus.scoring.scores import Scores
from prunus.timing.latency import Speedup, Timing
from prunus.timing.latency_table import LatencyTable, LayerTimes, MeasuredWith, kinds_of, machine_of
from prunus.timing.layer_timing import latency_table
from tests.run.toys import TRAIN, run, trained

TICK = 1e-6  # seconds for each pair of an input and an output of a layer
OVERHEAD = 500 * TICK  # of a whole network, which the table does not know
QUICK: dict[str, Any] = {"repair": "solve", "epochs": 0, "engine": "eager", "batch": 8, "threads": 1}


def table(graph: pr.ChannelGraph, machine: str | None = None) -> LatencyTable:
    """Layers that take TICK for each pair of an input and an output, timed at all even widths."""
    here, instructions = machine_of(torch.device("cpu"))
    how = MeasuredWith("eager", "1", "2", machine or here, instructions, 1, 8)
    times = {}
    for name, layer in graph.layers.items():
        inputs, outputs = (tuple(sorted({*range(2, n, 2), n})) for n in (layer.inputs, layer.outputs))
        seconds = tuple(tuple(TICK * i * o for o in outputs) for i in inputs)
        times[name] = LayerTimes(kinds_of(graph)[name], inputs, outputs, seconds, tuple(TICK for _ in inputs))
    whole = sum(TICK * layer.inputs * layer.outputs for layer in graph.layers.values())
    return LatencyTable(how, whole, 0.0, times)


def pairs(model: nn.Module) -> int:
    """Pairs of an input and an output, counted on the weights."""
    return sum(m.weight.shape[0] * m.weight.shape[1] for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))


class Stopwatch:
    """Stands in for `latency`: the time is that of the pairs, and the overhead."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, models: Mapping[str, nn.Module], example: Any, **how: Any) -> list[Timing]:
        assert (how["engine"], how["batch_sizes"], how["threads"]) == ("eager", (8,), 1)
        self.calls += 1
        assert not isinstance(models["before"], nn.Module)  # prepared once for all plans
        found = {"before": OVERHEAD + TICK * pairs(trained()), "after": OVERHEAD + TICK * pairs(models["after"])}
        return [Timing(name, 8, s, (s, s), 9, (s,) * 9) for name, s in found.items()]


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    found = Stopwatch()
    monkeypatch.setattr(speed_check, "latency", found)
    monkeypatch.setattr(speed_check, "latency_table", lambda graph, *how: table(graph))
    monkeypatch.setattr(summary, "time_in_engines", final_time)
    return found


def final_time(
    before: nn.Module, after: nn.Module, example: Any, **how: Any
) -> tuple[tuple[EngineSpeed, ...], tuple[str, ...]]:
    """Stands in for the final timing, by the same clock."""
    seconds = [OVERHEAD + TICK * pairs(each) for each in (before, after)]
    ratio = seconds[0] / seconds[1]
    place = how["engine"], how["batch"], how["threads"]
    return (EngineSpeed(*place, *seconds, ratio, ratio, ratio, "processor"),), ()


def test_the_measured_speed_counts_not_the_predicted_one(stopwatch: Stopwatch, tmp_path: Path) -> None:
    """The overhead makes the first split too slow, so the budget is tightened; the result is as fast as asked."""
    done = run(tmp_path / "run", speedup=1.5, **QUICK)
    before, after = OVERHEAD + TICK * pairs(trained()), OVERHEAD + TICK * pairs(done.model)
    time = done.summary["time"]
    assert before / after >= 1.5 and done.speedup == pytest.approx(before / after)
    assert done.reached and time["asked"] == 1.5
    assert before / after in [pytest.approx(check["again"]["ratio"]) for check in time["checks"] if check["again"]]
    assert time["predicted"] == pytest.approx(pairs(trained()) / pairs(done.model), rel=0.02)  # selections count
    first = time["checks"][0]
    assert first["measured"]["ratio"] < 1.5 <= first["predicted"]
    assert done.summary["settings"]["split"] == "least_error" and done.summary["settings"]["metric"] == "rebuilt"
    assert sum(b for b, _ in time["layers"].values()) == pytest.approx(TICK * pairs(trained()))
    assert "1.5x" in done.summary["goal"]["text"]
    page = write_report(tmp_path / "run").read_text()
    assert "Time of each layer" in page
    assert done.summary["goal"]["text"].startswith("Goal reached") and done.summary["goal"]["text"] in page


def test_the_result_says_that_no_split_is_fast_enough_and_nothing_else_warns(
    stopwatch: Stopwatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two ways to treat streams one may be too slow, which a warning must not say of the result. By the table 9x is
    possible; the overhead makes it less."""
    done = run(speedup=9.0, **QUICK)
    assert not done.reached and "no split that was tried is faster" in done.summary["goal"]["text"]
    assert not [each for each in caplog.records if each.name == speed_check.__name__ and each.levelname == "WARNING"]


def test_a_table_that_is_wrong_about_one_width_does_not_lead_too_far() -> None:
    """Between a plan that is too slow and one that is much too fast, budgets are halved until another plan is found."""
    plans = {name: SimpleNamespace(keep=name) for name in ("slow", "right", "fast")}
    measured = {"slow": (0.20, 1.0), "right": (0.11, 1.52), "fast": (0.05, 3.2)}  # predicted seconds of 0.3, speed-up
    timed = []

    def split(budget: Budget, aligned: int) -> Any:
        left = budget.left or 0.0
        return plans["slow" if left >= 0.115 else "right" if left >= 0.105 else "fast"]

    def measure(plan: Any, left: float, aligned: int) -> speed_check.Check:
        timed.append(plan.keep)
        spent, ratio = measured[plan.keep]
        return speed_check.Check(left, spent, aligned, 0.0, 0.3 / spent, Speedup(ratio, ratio, ratio))

    speed_check._search(Budget("latency", 0.2, 0.3), 1, 6, split, measure, 1.5)
    assert timed == ["slow", "fast", "right"]


def test_a_killed_run_makes_the_same_plan_without_timing_again(stopwatch: Stopwatch, tmp_path: Path) -> None:
    whole = run(tmp_path / "run", speedup=1.4, **QUICK)
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    for path in (tmp_path / "killed").glob("round-01/**/*"):
        if path.is_file() and path.name not in ("scores.json", "scores.safetensors", "speed.json"):
            path.unlink()
    for name in ("summary.json", "model.safetensors", "plan.json"):
        (tmp_path / "killed" / name).unlink()
    before = stopwatch.calls
    again = run(tmp_path / "killed", speedup=1.4, **QUICK)
    assert again.plan == whole.plan
    assert stopwatch.calls == before


def test_rounds_go_even_parts_of_the_way_and_the_last_one_is_timed(stopwatch: Stopwatch, tmp_path: Path) -> None:
    done = run(tmp_path / "run", speedup=1.4, rounds=2, **QUICK)
    assert len(done.rounds) == 2 and done.speedup is not None and done.speedup >= 1.4
    assert not (tmp_path / "run" / "round-01" / "speed.json").exists()
    half = pr.Plan.load(tmp_path / "run" / "round-01" / "plan.json")
    graph = pr.trace(trained(), TRAIN[0][0][:1])
    spent = table(graph).predict(graph, half) / table(graph).whole
    assert (1 + 1 / 1.4) / 2 - 0.05 < spent <= (1 + 1 / 1.4) / 2  # half of the way; a step of widths is up to 4%


@pytest.mark.parametrize(
    "changes",
    [{"split": "algorithm1", "rounds": 1}, {"split": "uniform", "streams": "coupled"}, {"epochs": 1, "rounds": 2}],
)
def test_other_splits_coupled_streams_and_retraining(stopwatch: Stopwatch, changes: dict[str, Any]) -> None:
    done = run(speedup=1.3, **{**QUICK, **changes})
    assert done.speedup is not None and done.speedup >= 1.3
    assert all(len(each.retraining) == changes.get("epochs", 0) for each in done.rounds)


def test_out_of_reach_names_the_fastest_before_anything_long(stopwatch: Stopwatch, tmp_path: Path) -> None:
    """Of the 24 channels between two layers with 8, at least 10% stay: 4 of those that were timed. Or all go, with
    the branch that they are in."""
    only = {"only": ("conv1:out",)}
    for blocks, gone in ((False, 20), (True, 24)):
        fastest = pairs(trained()) / (pairs(trained()) - 2 * 8 * gone)
        with pytest.raises(DecideError, match=rf"50\.00x is out of reach: .* the network is {fastest:.2f}x\."):
            run(tmp_path / "run", speedup=50.0, blocks=blocks, **only, **QUICK)
    assert stopwatch.calls == 0 and not (tmp_path / "run").exists()


def test_a_table_of_another_machine_is_used_and_the_speed_not_measured(stopwatch: Stopwatch, tmp_path: Path) -> None:
    graph = pr.trace(trained(), TRAIN[0][0][:1])
    table(graph, "a small board").save(tmp_path / "table.json")
    words = {"repair": "solve", "epochs": 0, "latency_table": str(tmp_path / "table.json")}
    done = run(speedup=1.5, **words)
    assert stopwatch.calls == 0 and not done.summary["time"]["here"]
    assert 1.5 <= done.summary["time"]["predicted"] < 1.7
    assert "on another machine (a small board)" in done.summary["goal"]["text"]
    assert done.summary["settings"]["batch"] == 8  # of the table
    with pytest.raises(DecideError, match=r"table.json is of the engine eager, not onnxruntime"):
        run(speedup=1.5, engine="onnxruntime", **words)


def test_an_engine_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunus.timing.engines.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"pip install onnx onnxscript onnxruntime"):
        run(speedup=1.5, engine="onnxruntime")


@pytest.mark.timing
def test_depthwise_layers_with_times_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget in the middle between the least time and that of all channels is kept, whatever the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    layers = [nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()
    graph = pr.trace(model, torch.zeros(1, 3, 16, 16))
    times = latency_table(graph, "onnxruntime", batch=2, threads=1, progress=False)
    assert graph.layers["2"].depthwise and len(times.layers["2"].inputs) > 4 and times.layers["2"].outputs == (16,)
    whole = times.predict(graph, pr.Plan.of(graph, {}))
    left = (lowest_cost(graph, candidates(graph), table_cost(graph, times)) + whole) / 2
    errors = {name: np.arange(1.0, unit.width + 1) for name, unit in graph.units.items()}
    plan = least_error(SplitInputs(graph, Scores("order", errors, 0), Budget("latency", left, whole, times)))
    assert any(plan.removed().values()) and times.predict(graph, plan) <= left
    small = pr.prune(graph, plan)
    assert small[0].out_channels == small[2].groups == small[4].in_channels
    assert pairs(small) < pairs(model)
