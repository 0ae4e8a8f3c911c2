"""The final timing of a run: the original and the pruned network in every installed engine, in turns, for seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import nn

from prunus.errors import PrunusError
from prunus.timing.engines import ENGINES, PreparedModel
from prunus.timing.latency import (
    NO_DIFFERENCE,
    Speedup,
    prepare,
    processor_time,
    ready_to_time,
    repeated,
    speedup,
    take_turns,
)
from prunus.timing.onnx_export import exported
from prunus.util.batches import to_device
from prunus.util.progress import Progress
from prunus.util.user_code import failure

SECONDS = 20.0  # for all rows together
ROW_SECONDS = 3.0  # for the turns of one row
MOST_TURNS, FEWEST_TURNS = 60, 6  # of each network; fewer give no interval
WARMUP = 2


@dataclass(frozen=True)
class EngineSpeed:
    """The speed of the pruned network beside the original, in one engine at one batch size."""

    engine: str
    batch: int
    threads: int
    before: float  # seconds of a batch in the original network, the median over turns
    after: float
    ratio: float  # how many times as fast the pruned network is: the median over pairs of turns
    low: float  # ends of the ratio's 95% confidence interval
    high: float
    clock: str  # "processor" time, which other programs on the machine hardly change, or "wall" time

    @property
    def gain(self) -> Speedup:
        return Speedup(self.ratio, self.low, self.high)

    @property
    def place(self) -> str:
        """Where it was measured, as in onnxruntime at batch 1."""
        return f"{self.engine} at batch {self.batch}" + (f" on {self.threads} threads" if self.threads > 1 else "")

    @property
    def interval(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"

    @property
    def verdict(self) -> str:
        """1.52x as fast, slower (0.65x), or no measurable difference."""
        if not self.gain.measurable:
            return NO_DIFFERENCE
        return f"slower ({self.ratio:.2f}x)" if self.ratio < 1 else f"{self.ratio:.2f}x as fast"

    @property
    def change(self) -> str:
        """1.52x (1.49 to 1.55), 0.65x (0.60 to 0.70), slower, or not measurable (0.97 to 1.02): for tables."""
        if not self.gain.measurable:
            return f"not measurable ({self.interval})"
        return f"{self.ratio:.2f}x ({self.interval})" + (", slower" if self.ratio < 1 else "")

    def __str__(self) -> str:
        if self.gain.measurable and self.ratio < 1:
            return f"slower in {self.place}: {self.ratio:.2f}x ({self.interval})"
        return f"{self.verdict} in {self.place} ({self.interval})"


def how_timed(speeds: Sequence[EngineSpeed]) -> str:
    """What the times of a table are; empty if there are none."""
    if not speeds:
        return ""
    clock = "processor time on one thread" if speeds[0].clock == "processor" else "wall-clock time"
    return f"Times are medians of {clock}; speed-ups are medians over pairs of alternating turns, with 95% intervals."


def time_in_engines(
    before: nn.Module,
    after: nn.Module,
    example: Any,
    *,
    engine: str,
    batch: int = 1,
    threads: int = 1,
    others: bool = True,
    ready: Mapping[str, tuple[PreparedModel, PreparedModel]] | None = None,
    seconds: float = SECONDS,
    progress: Progress = lambda done, total: None,
) -> tuple[tuple[EngineSpeed, ...], tuple[str, ...]]:
    """Time two networks in turns: in `engine` at `batch`; if `others`, at batch 1 and in other installed engines too.

    The first row is always measured, with six turns at least. Other rows are left out when the time is over. Engines
    that take long to prepare a network are used only if they are asked for. On one thread, processor time is measured.
    `ready` has the two networks of an engine where they are prepared already.

    Returns:
        The rows, and sentences about those that are missing.
    """
    places = [(engine, batch)]
    if others:
        quick = [name for name in ENGINES if ENGINES[name].is_ready]
        places += [(name, size) for name in dict.fromkeys((engine, *quick)) for size in (batch, 1)]
        places = list(dict.fromkeys(places))
    models = (before, after)
    onnx = cache(lambda which, form: exported(models[which], example, form))
    start, rows, broken, late = time.monotonic(), list[EngineSpeed](), dict[str, str](), list[str]()

    @cache
    def prepared(name: str, which: int) -> PreparedModel:
        if ready and name in ready:
            return ready[name][which]
        engine = ENGINES.find(name)
        if engine.open_onnx is None:
            return prepare(models[which], name, example, sorted({batch, 1}) if others else [batch])
        engine.check_installed()
        return engine.open(onnx(which, engine.selection), threads)

    with ready_to_time(models, threads):
        for done, (name, size) in enumerate(places):
            progress(done, len(places))
            if name in broken:
                continue
            left = seconds - (time.monotonic() - start)
            try:
                row = None
                if not done or left > 0:
                    pair = [prepared(name, which) for which in (0, 1)]
                    left = seconds - (time.monotonic() - start)
                    row = _timed(pair, example, name, size, threads, left / (len(places) - done), must=not done)
                if row is None:
                    late.append(f"{name} at batch {size}")
                else:
                    rows.append(row)
            except Exception as error:  # noqa: BLE001  (engines and networks raise anything, and the run is done)
                broken[name] = f"Not timed in {name}: {error if isinstance(error, PrunusError) else failure(error)}"
        progress(len(places), len(places))
    if late:
        broken[""] = f"Not timed, because the final timing may take {seconds:g} seconds: {', '.join(late)}."
    return tuple(rows), tuple(broken.values())


def _timed(
    pair: list[PreparedModel], example: Any, name: str, size: int, threads: int, left: float, must: bool
) -> EngineSpeed | None:
    """One row; None if the fewest turns would take too long, unless it must be."""
    batch, devices = repeated(example, size), [model.device for model in pair]
    runs = [partial(model.run, to_device(batch, model.device)) for model in pair]
    by_processor = all(processor_time(device, threads) for device in devices)
    take_turns(runs, devices, warmup=1, rounds=0)
    start = time.monotonic()
    take_turns(runs, devices, warmup=WARMUP, rounds=0)
    turns = int(min(left, ROW_SECONDS) * WARMUP / max(time.monotonic() - start, 1e-6))
    if turns < FEWEST_TURNS and not must:
        return None
    before: list[float] = []
    after: list[float] = []
    end = time.monotonic() + min(left, ROW_SECONDS)
    while not before or (len(before) < MOST_TURNS and time.monotonic() < end):  # a busy machine may become slower
        some = take_turns(runs, devices, warmup=0, rounds=FEWEST_TURNS, cpu_time=by_processor)
        before += some[0]
        after += some[1]
    gain = speedup(before, after)
    clock = "processor" if by_processor else "wall"
    medians = statistics.median(before), statistics.median(after)
    return EngineSpeed(name, size, threads, *medians, gain.ratio, gain.low, gain.high, clock)
