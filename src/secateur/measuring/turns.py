"""Turns: functions are timed in one run, one after the other, so that other load affects all of them equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

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
