"""What all rounds of a run share: what was asked, of which network, with which data and functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from secateur.base.batches import Batches
from secateur.channels.graph import ChannelGraph
from secateur.errors import RunError
from secateur.measuring.accuracy import Accuracy
from secateur.running.folder import RunFolder
from secateur.running.settings import Goal, Settings

Phase = Callable[[str, int, int, str], None]  # phase, done, of, note


@dataclass(frozen=True)
class Tools:
    """Data and functions that a run works with."""

    train: Batches
    score_on: Batches
    holdout: Batches
    metric: Any
    fit: Callable[[nn.Module, Batches, Batches], nn.Module] | None
    judge: Callable[[nn.Module, Batches], Accuracy]
    progress: Phase | None

    def say(self, phase: str, done: int, total: int, note: str = "") -> None:
        """Tell whoever listens how far a phase is."""
        if self.progress is not None:
            self.progress(phase, done, total, note)

    def evaluate(self, model: nn.Module, loader: Batches) -> Accuracy:
        """What `judge` finds, once it is sure that it is an Accuracy."""
        found = self.judge(model, loader)
        if not isinstance(found, Accuracy):
            raise RunError(
                "your evaluate function should return a secateur.Accuracy(top1, top5, loss, num_images), whose top1 "
                f"may be any figure where higher is better; it returned {type(found).__name__}"
            )
        return found


@dataclass(frozen=True)
class Job:
    """A run: its folder, the original network, the goal, and how to get there."""

    run: RunFolder
    original: nn.Module
    graph: ChannelGraph  # of the original
    goal: Goal
    settings: Settings
    tools: Tools

    @property
    def retrains(self) -> bool:
        """Whether rounds before the last one train, with secateur's loop or the user's own."""
        return self.tools.fit is not None or self.settings.epochs != 0

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """unit -> channels it has in the original network."""
        return {name: unit.width for name, unit in self.graph.units.items()}


class Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        self.seconds[phase] = round(time.perf_counter() - start, 3)
        return result
