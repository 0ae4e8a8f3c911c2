"""Every model in every engine: ratios, notes on what does not run, and the table."""

from __future__ import annotations

import importlib
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunus.errors import PrunusError, RunError
from prunus.ship.bench import Benched, BenchRow, ModelProfile, bench
from prunus.timing.latency import Timing
from tests.clock import Clock
from tests.ship.nets import network, pictures, pruned

PROFILE = ModelProfile(1000, 0)


class Sleepy(nn.Module):
    """A layer that sleeps."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x


def test_ratios_of_known_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(tick=1e-9)
    for module in ("prunus.timing.latency", __name__):
        monkeypatch.setattr(importlib.import_module(module), "time", clock)
    slow, quick = nn.Sequential(Sleepy(0.04)), nn.Sequential(Sleepy(0.02))
    found = bench({"slow": slow, "quick": quick}, pictures(1), (1, 2), ("eager",), rounds=5)
    rows = [(r.model, r.engine, r.timing.batch_size) for r in found.rows]
    assert rows == [(name, "eager", size) for size in (1, 2) for name in ("slow", "quick")]
    assert found.rows[0].speedup == 1.0
    assert found.rows[1].speedup == pytest.approx(2.0, rel=1e-3)
    assert found.best("quick", 2).timing.median == pytest.approx(0.02, rel=1e-3)


def test_a_pruned_network_beside_its_original() -> None:
    original, (small, _) = network(), pruned()
    hooks = [len(m._forward_pre_hooks) for m in small.modules()]
    engines = ("eager", "onnxruntime")
    found = bench({"original": original, "pruned": small}, pictures(1), (1, 3), engines, rounds=2, cpu_time=True)
    assert [(r.model, r.engine) for r in found.rows] == 2 * [
        (name, engine) for name in ("original", "pruned") for engine in engines
    ]
    assert found.notes == ()
    # 64 positions: 6x3x9 + 8x6x9 + 6x8x9 and 4x6; pruned: 6x3x9 + 4x4x9 + 6x4x9 and 4x6
    assert found.profiles["original"].macs == 64 * (162 + 432 + 432) + 24
    assert found.profiles["pruned"].macs == 64 * (162 + 144 + 216) + 24
    assert (found.profiles["original"].selections, found.profiles["pruned"].selections) == (0, 1)
    assert [len(m._forward_pre_hooks) for m in small.modules()] == hooks
    assert not any(m._forward_hooks for m in small.modules())


class Branching(nn.Module):
    """Neither torch.fx nor torch.export can follow it."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def test_what_cannot_run_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench({"branching": Branching()}, pictures(1), (1,), ("eager", "onnxruntime"), rounds=1)
    assert [r.engine for r in found.rows] == ["eager"]
    assert found.notes[0].startswith("branching does not run in onnxruntime: torch.export cannot follow Branching")
    assert found.profiles["branching"].macs is None
    with pytest.raises(RunError, match="no model runs"):
        bench({"branching": Branching()}, pictures(1), (1,), ("onnxruntime",), rounds=1)
    for models, example, engines in (
        ({}, pictures(1), ("eager",)),
        ({"a": network()}, pictures(1), ("tensorrt",)),
        ({"a": network()}, torch.zeros(3), ("eager",)),
    ):
        with pytest.raises(PrunusError, match=r"expected at least one model|a batch of at|no engine called"):
            bench(models, example, (1,), engines)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="not measured"):
        found.best("branching", 64)

    def no_compiler(*_: Any, **__: Any) -> Any:
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found")

    monkeypatch.setattr(torch, "compile", lambda model, **_: no_compiler)
    (note,) = bench({"a": network()}, pictures(1), (1,), ("eager", "compile"), rounds=1).notes
    assert note.startswith("a does not run in compile: torch.compile failed: Inv") and "Install g++" in note


def test_repr_is_a_short_table() -> None:
    def row(model: str, engine: str, batch: int, seconds: float, speedup: float) -> BenchRow:
        interval = (speedup - 0.25, speedup + 0.25)
        return BenchRow(model, engine, Timing(model, batch, seconds, (seconds, seconds), 1), speedup, interval)

    rows = row("original", "eager", 64, 0.0125, 1.0), row("small", "onnxruntime", 1, 0.00025, 2.5)
    found = Benched(rows, {"original": PROFILE, "small": PROFILE}, 2, ("small does not run in compile: no compiler",))
    assert repr(found).splitlines() == [
        "Benched 2 models on 2 threads",
        "  model     engine       batch  ms      speed",
        "  original  eager        64     12.500  no measurable difference",
        "  small     onnxruntime  1      0.250   2.50x (2.25 to 2.75)",
        "small does not run in compile: no compiler",
    ]
