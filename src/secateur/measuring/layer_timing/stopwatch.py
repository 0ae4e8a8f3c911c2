"""A stopwatch for a machine whose speed changes: times are relative to a reference that runs in between.

The speed of a machine changes by tens of per cent within minutes: other programs share its caches and memory, and
processors change their clock. A table takes minutes to measure, so its entries would not fit each other. So every round
also times a reference, a small convolution in the same engine, and a time is

    median over rounds of (seconds / seconds of the reference in this round) * usual seconds of the reference

The usual time is measured once and kept in the cache with the times that depend on it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from secateur.measuring.engines import Engine
from secateur.measuring.layer_timing.blocks import Block
from secateur.measuring.layer_timing.runs import Run, open_run
from secateur.measuring.turns import take_turns

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
