"""Turns: functions are timed in one run, one after the other, so that other load affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from prunus.timing.engines import Engine
from prunus.timing.layer_blocks import Block, Run, open_run

Clock = Callable[[], float]
LARGEST_KEPT = 2**25 - 2**16  # bytes, just below the largest block that glibc keeps when it is freed (32 MiB)


def processor_time(device: torch.device, threads: int) -> bool:
    """Whether to measure processor time: on one thread it is what a quiet machine would take, whatever else runs."""
    return device.type == "cpu" and threads == 1


def take_turns(
    runs: Sequence[Callable[[], Any]],
    devices: Sequence[torch.device],
    *,
    warmup: int,
    rounds: int,
    repeats: int = 0,
    cpu_time: bool = False,
) -> list[list[float]]:
    """Seconds of each run in each round. Every second round is in reverse order.

    repeats: in each turn, run once without timing, and then time this number of calls, all of which count. So a run
        finds in the processor's caches what its last call left there. By default a turn is one call.
    cpu_time: processor time, summed over threads, instead of wall-clock time.
    """
    keep_freed_memory()
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(-warmup, rounds):
        order = range(len(runs)) if turn % 2 == 0 else range(len(runs) - 1, -1, -1)
        for place in order:
            if repeats:
                runs[place]()
            spent = [timed(runs[place], devices[place], cpu_time) for _ in range(repeats or 1)]
            if turn >= 0:
                seconds[place] += spent
    return seconds


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next call, as it does in a program that has run for a while.

    glibc returns large blocks to the system until it has seen one of that size freed, or one on top of the heap. Each
    call then waits for the system to clear the same memory again, and a narrower network, with smaller blocks, may not.
    One large block, freed at once, settles it for all.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8)


def timed(run: Callable[[], Any], device: torch.device, cpu_time: bool = False) -> float:
    """Seconds of one call. A GPU is asked by its own events; its calls return before the work is done."""
    if device.type == "cuda":
        return _timed_by_events(run, device)
    clock: Clock = time.process_time if cpu_time else time.perf_counter
    _wait_for(device)
    start = clock()
    run()
    _wait_for(device)
    return clock() - start


def _timed_by_events(run: Callable[[], Any], device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


# A stopwatch for a machine whose speed changes: times are relative to a reference that runs in between.

IMAGES, WIDTH, SIDE = 8, 64, 14
USUAL_ROUNDS = 15
LEAST = 1e-9  # seconds

Call = Callable[[], Any]


@dataclass(eq=False)
class Stopwatch:
    """Times calls in an engine. `known` holds the usual time of the reference, or will."""

    engine: Engine
    device: torch.device
    threads: int
    cpu_time: bool
    known: dict[str, float]

    def seconds(self, calls: Sequence[Call], rounds: int, repeats: int) -> list[float]:
        """Seconds of each call. In each round a call runs once untimed, and then `repeats` times."""
        took = self._turns([self._reference, *calls], rounds, repeats)
        pace = [max(LEAST, min(took[0][n * repeats : (n + 1) * repeats])) for n in range(rounds)]
        usual = self._usual
        return [usual * statistics.median(t / pace[n // repeats] for n, t in enumerate(times)) for times in took[1:]]

    def trial(self, call: Call) -> float:
        """About how long a call takes."""
        return max(LEAST, min(self._turns([call], 1, 2)[0]))

    def _turns(self, calls: Sequence[Call], rounds: int, repeats: int) -> list[list[float]]:
        devices = [self.device] * len(calls)
        return take_turns(calls, devices, warmup=0, rounds=rounds, repeats=repeats, cpu_time=self.cpu_time)

    @property
    def _usual(self) -> float:
        if "seconds" not in self.known:
            self.known["seconds"] = max(LEAST, statistics.median(self._turns([self._reference], USUAL_ROUNDS, 1)[0]))
        return self.known["seconds"]

    @cached_property
    def _reference(self) -> Call:
        layer = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1)).eval()
        shape = torch.Size((1, WIDTH, SIDE, SIDE))
        block = Block("reference", "reference", layer.to(self.device), shape, shape, first=True, last=None)
        return open_run(self.engine, block, Run("block", WIDTH, WIDTH), IMAGES, self.device, self.threads)
