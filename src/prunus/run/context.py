"""What all rounds of a run share: settings, network, data, folder."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import nn

from prunus.deciding.goal import Budget
from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.run.folder import SPEED, RunFolder
from prunus.run.settings import Settings
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, evaluate, too_good
from prunus.tasks.quality import QualityText
from prunus.timing.engines import PreparedModel
from prunus.timing.latency import prepare, ready_to_time
from prunus.timing.latency_table import LatencyTable
from prunus.train.trackers import Log, nowhere
from prunus.util.batches import Batches, call
from prunus.util.progress import PhaseProgress
from prunus.util.state import evaluating

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunData:
    """The images of a run."""

    train: Batches  # to retrain on
    score_on: Batches  # to score on: the training images, as a rule without augmentation
    holdout: Batches  # all decisions read these
    test: Batches | None = None  # read once at the end, for the report only


@dataclass(frozen=True)
class RunContext:
    """A run: its folder, the original network, the budget and the settings."""

    folder: RunFolder
    graph: ChannelGraph  # of the original network
    budget: Budget
    settings: Settings
    data: RunData
    progress: PhaseProgress
    track: Log = nowhere  # sends figures to the tracker, if there is one
    table: LatencyTable | None = None  # times of the original network's layers

    @property
    def original(self) -> nn.Module:
        """The original network."""
        return self.graph.model

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """unit -> number of channels in the original network."""
        return {name: unit.width for name, unit in self.graph.units.items()}

    @cached_property
    def prepared_original(self) -> PreparedModel:
        """The original network in the engine of the table. It is timed beside every plan, and exported once."""
        assert self.table is not None
        how = self.table.measured_with
        with ready_to_time([self.original], how.threads):
            return prepare(self.original, how.engine, self.graph.example, (how.batch,))

    @cached_property
    def task(self) -> Task:
        """What the network is for."""
        return task_of(self.settings.task)

    @property
    def quality(self) -> QualityText:
        """How the quality that all decisions read is called; a user-provided evaluation may measure anything."""
        if self.settings.evaluate is not None and self.settings.task is None:
            return QualityText("quality")
        return QualityText.of(self.task)

    def met(self, plan: Plan, number: int) -> bool:
        """Whether the network that a plan leads to from the original one meets the goal, after the round `number`.

        Speed is measured in the last round only, and what was measured counts, not what the table says.
        """
        timed = self.folder.has(f"{self.folder.round(number).name}/{SPEED}")
        return timed or self.budget.met(self.budget.of(self.graph)(plan.keep))

    def say(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        """Report how far a phase is."""
        self.progress(phase, done, total or done, note)
        self.folder.note_progress(phase, done, total or done, note)

    def evaluate(self, model: nn.Module, loader: Batches) -> Evaluation:
        """The quality and loss by a user-provided function or the task's."""
        evaluation = (self.settings.evaluate or functools.partial(evaluate, task=self.task))(model, loader)
        if not isinstance(evaluation, Evaluation):
            raise RunError(
                "your evaluate function must return a prunus.Evaluation(quality, loss, num_images), whose quality may "
                f"be any figure where higher is better; it returned {type(evaluation).__name__}"
            )
        if math.isnan(evaluation.quality):
            raise RunError("the evaluation returned NaN, and decisions cannot be based on it: check your function")
        return evaluation


CHANCE = 1.5  # a quality below this many times that of guessing: the network has nothing to lose


def doubts(evaluation: Evaluation, model: nn.Module, example: Any, task: Task) -> list[str]:
    """Why held-out quality may not tell good decisions from bad ones, in sentences. Only tasks with a chance level."""
    if task.chance is None:
        return []
    with evaluating(model), torch.no_grad():
        output = call(model, copy.deepcopy(example))
    chance = task.chance(output if task.outputs is None else task.outputs(output))
    sentences = [sentence for sentence in [too_good(evaluation)] if sentence]
    if evaluation.quality < CHANCE * chance:
        sentences.append(
            f"the network scores {100 * evaluation.quality:.1f}% on the held-out images, about what guessing among "
            f"{1 / chance:.0f} classes gives: check the weights, the labels and the normalisation of the images before "
            "pruning it"
        )
    return sentences


class Stopwatch:
    """Seconds spent in each phase; a phase inside another one counts for itself only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def __call__(self, phase: str, work: Callable[[], Result]) -> Result:
        """Run `work` and add its time to the phase."""
        start = time.perf_counter()
        self._inner.append(0.0)
        result = work()
        spent, inner = time.perf_counter() - start, self._inner.pop()
        self._inner[-1] += spent
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent - inner, 3)
        return result
