"""The final timing: paired, in processor time, in every quick engine, and within its time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prunus.run import final_timing
from prunus.run.final_timing import FEWEST_TURNS, EngineSpeed, how_timed, time_in_engines
from prunus.timing.engines import ENGINES
from prunus.timing.latency import NO_DIFFERENCE

EXAMPLE = torch.zeros(1, 2)


class Busy(nn.Module):
    """Uses the processor for some seconds of its own time, whatever else the machine does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds, self.calls = nn.Linear(2, 2), seconds, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return self.linear(x)


def timed(before: float, after: float, **how: Any) -> EngineSpeed:
    words = {"engine": "eager", "others": False, **how}
    ((row,), missing) = time_in_engines(Busy(before), Busy(after), EXAMPLE, **words)
    assert missing == ()
    return row


@pytest.mark.timing
def test_a_network_of_half_the_time_is_twice_as_fast_in_processor_time() -> None:
    row = timed(0.006, 0.003)
    assert row.ratio == pytest.approx(2, abs=0.15) and row.low <= row.ratio <= row.high
    assert row.before == pytest.approx(0.006, rel=0.15) and row.after == pytest.approx(0.003, rel=0.15)
    assert (row.engine, row.batch, row.threads, row.clock) == ("eager", 1, 1, "processor")
    assert str(row) == f"{row.ratio:.2f}x as fast in eager at batch 1 ({row.low:.2f} to {row.high:.2f})"
    slow = timed(0.003, 0.006)
    assert slow.ratio == pytest.approx(0.5, abs=0.05)
    assert str(slow).startswith(f"slower in eager at batch 1: {slow.ratio:.2f}x (")
    assert slow.change.endswith("), slower") and slow.verdict == f"slower ({slow.ratio:.2f}x)"


def test_what_cannot_be_told_apart_is_said_so() -> None:
    row = EngineSpeed("onnxruntime", 8, 2, 0.1, 0.1, 1.01, 0.97, 1.04, "wall")
    assert str(row) == f"{NO_DIFFERENCE} in onnxruntime at batch 8 on 2 threads (0.97 to 1.04)"
    assert row.verdict == NO_DIFFERENCE and row.change == "not measurable (0.97 to 1.04)"
    assert "wall-clock time" in how_timed([row]) and how_timed([]) == ""


def test_several_threads_are_timed_by_the_clock_on_the_wall() -> None:
    row = timed(0.001, 0.001, threads=2, batch=4)
    assert (row.clock, row.threads, row.place) == ("wall", 2, "eager at batch 4 on 2 threads")


def test_the_asked_engine_and_batch_come_first_and_every_quick_engine_follows() -> None:
    quick = [name for name in ENGINES if ENGINES[name].is_ready]
    assert "eager" in quick and "onnxruntime" in quick and "compile" not in quick
    steps: list[tuple[int, int | None]] = []
    rows, missing = time_in_engines(
        nn.Linear(2, 2),
        nn.Linear(2, 2),
        EXAMPLE,
        engine="onnxruntime",
        batch=4,
        progress=lambda done, total: steps.append((done, total)),
        seconds=600.0,  # so that no engine is left out on a busy machine
    )
    places = [(row.engine, row.batch) for row in rows]
    assert missing == () and places[:2] == [("onnxruntime", 4), ("onnxruntime", 1)]
    assert sorted(places) == sorted((name, size) for name in quick for size in (4, 1))
    assert steps == [(done, len(places)) for done in range(len(places) + 1)]


def test_the_first_row_is_always_measured_and_others_only_while_there_is_time() -> None:
    before, after = Busy(0.001), Busy(0.001)
    rows, missing = time_in_engines(before, after, EXAMPLE, engine="eager", batch=2, seconds=0)
    assert [(row.engine, row.batch) for row in rows] == [("eager", 2)]
    assert before.calls == after.calls and before.calls < 3 * FEWEST_TURNS
    (said,) = missing
    assert said.startswith("Not timed, because the final timing may take 0 seconds: eager at batch 1, ")


def test_a_row_ends_in_time_if_the_machine_becomes_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_timing, "ROW_SECONDS", 0.2)

    class Slower(Busy):
        def forward(self, x: Tensor) -> Tensor:
            if self.calls > 4:  # after what the number of turns could be foretold from
                time.sleep(0.02)
            return super().forward(x)

    before, after = Slower(0), Slower(0)
    time_in_engines(before, after, EXAMPLE, engine="eager", others=False)
    assert before.calls <= 5 + 2 * FEWEST_TURNS  # 6 turns of both take 0.24 s


def test_an_engine_that_fails_is_told_and_the_others_are_timed() -> None:
    class Fails(Busy):
        def forward(self, x: Tensor) -> Tensor:
            if len(x) > 1:
                raise ValueError("one image only")
            return super().forward(x)

    rows, missing = time_in_engines(Fails(0), Fails(0), EXAMPLE, engine="eager", batch=2, others=False)
    assert rows == () and len(missing) == 1
    assert missing[0].startswith("Not timed in eager: ") and "one image only" in missing[0]
