"""What all rounds of a run share: settings, network, data, folder."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.deciding.goal import Budget
from prunus.errors import DataError, RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.run.folder import SPEED, RunFolder
from prunus.run.settings import Settings
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, evaluate, unpack_for
from prunus.tasks.quality import QualityText
from prunus.timing.engines import PreparedModel
from prunus.timing.latency import prepare, ready_to_time
from prunus.timing.latency_table import LatencyTable
from prunus.train.trackers import Log, nowhere
from prunus.util.batches import Batches
from prunus.util.progress import PhaseProgress


@dataclass(frozen=True)
class RunData:
    """The images of a run."""

    train: Batches  # to retrain on
    score_on: Batches  # to score on: the training images, as a rule without augmentation
    holdout: Batches  # all decisions read these
    test: Batches | None = None  # read once at the end, for the report only


def first_image(loader: Batches, device: torch.device, task: Task | None = None) -> Any:
    """The first image of a loader, as a batch of one; of several inputs, the first row of each."""
    for number, batch in enumerate(loader):
        images, _ = unpack_for(task_of(task), batch, number, labelled=False)
        return tree_map(lambda part: part[:1].to(device) if isinstance(part, Tensor) else part, images)
    raise DataError("the loader gave no images")


def class_names(loader: Batches, count: int) -> tuple[str, ...] | None:
    """The loader's names of classes, if it has that many."""
    names = getattr(loader, "classes", None)
    return tuple(map(str, names)) if isinstance(names, tuple | list) and len(names) >= count else None


@dataclass(frozen=True)
class Baseline:
    """The original network, as in base.json."""

    holdout: Evaluation
    quality: QualityText
    macs: int


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
        timed = self.folder.has(self.folder.in_round(number, SPEED))
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
