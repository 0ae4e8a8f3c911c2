"""What all rounds of a run share: settings, network, data, folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from prunus.deciding.goal import Budget
from prunus.errors import DataError, RunError
from prunus.graph.channel_graph import ChannelGraph, trace
from prunus.graph.plan import Plan
from prunus.graph.units import Streams
from prunus.run.folder import SPEED, RunFolder
from prunus.run.settings import Settings
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, QualitySums, each_answer, unpack_for
from prunus.tasks.paired import ByImage, ImageValues
from prunus.tasks.quality import QualityText
from prunus.timing.engines import PreparedModel
from prunus.timing.latency import prepare, ready_to_time
from prunus.timing.latency_table import LatencyTable
from prunus.train.trackers import Log
from prunus.util.batches import Batches, length_of
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
class ImageQuality:
    """The quality of a network, and of each image where the task's quality is a mean over images."""

    evaluation: Evaluation
    values: ImageValues | None = None

    def drop_to(self, other: ImageQuality) -> tuple[float, float | None]:
        """How much lower the other's quality is, and the standard error of that; None if it is not known.

        Images on which both networks are equally good say nothing about the difference, so it is that of pairs if both
        were measured on the same images in the same order.
        """
        drop = self.evaluation.quality - other.evaluation.quality
        if self.values is None or other.values is None:
            return drop, None
        here, there = (each.values.double().numpy() for each in (self.values, other.values))
        if min(len(here), len(there)) < 2:
            return drop, None
        if self.values.labels == other.values.labels:
            return drop, float(np.std(here - there, ddof=1) / math.sqrt(len(here)))
        return drop, math.sqrt(sum(np.var(each, ddof=1) / len(each) for each in (here, there)))


@dataclass
class SharedNetwork:
    """The unpruned network and what is known of it whatever the goal is; runs for several goals share it."""

    original: nn.Module  # unpruned
    example: Any  # an input of it
    # Folders of runs of the same network, images and settings for other goals: what they measured is read there.
    earlier: tuple[Path, ...] = ()
    base: ImageQuality | None = None  # of the unpruned network on the held-out images
    tests: dict[str, Any] = field(default_factory=dict)  # what the test images say of the unpruned network
    _graphs: dict[str, ChannelGraph] = field(default_factory=dict)
    _prepared: dict[Any, PreparedModel] = field(default_factory=dict)

    def graph(self, streams: Streams, settings: Settings) -> ChannelGraph:
        if streams not in self._graphs:
            self._graphs[streams] = trace(
                self.original, self.example, streams, norms=settings.norms, attention=settings.attention
            )
        return self._graphs[streams]

    def find(self, name: str) -> Path | None:
        """A file of an earlier run; None if no earlier run has it."""
        return next((folder / name for folder in self.earlier if (folder / name).exists()), None)

    def prepared(self, engine: str, batch: int, threads: int) -> PreparedModel:
        """The unpruned network in an engine. It is timed beside every plan, and exported once."""
        key = engine, batch, threads
        if key not in self._prepared:
            with ready_to_time([self.original], threads):
                self._prepared[key] = prepare(self.original, engine, self.example, (batch,))
        return self._prepared[key]


@dataclass(frozen=True)
class RunContext:
    """A run: its folder, the original network, the budget and the settings."""

    folder: RunFolder
    graph: ChannelGraph  # of the original network
    budget: Budget
    settings: Settings
    data: RunData
    progress: PhaseProgress
    track: Log  # sends figures to the tracker, if there is one
    table: LatencyTable | None  # times of the original network's layers
    shared: SharedNetwork

    @property
    def original(self) -> nn.Module:
        return self.graph.model

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """unit -> number of channels in the original network."""
        return {name: unit.width for name, unit in self.graph.units.items()}

    def with_streams(self, streams: Streams) -> RunContext:
        """The same run with the residual streams treated in another way."""
        graph = self.shared.graph(streams, self.settings)
        return replace(self, graph=graph, settings=replace(self.settings, streams=streams))

    @cached_property
    def task(self) -> Task:
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
        if self.settings.searches:  # one round, whatever was found
            return True
        timed = self.folder.has(self.folder.in_round(number, SPEED))
        return timed or self.budget.met(self.budget.of(self.graph)(plan.keep))

    def say(self, phase: str, done: int, total: int | None, note: str = "") -> None:
        self.progress(phase, done, total, note)
        self.folder.note_progress(phase, done, total, note)

    def evaluate(self, model: nn.Module, loader: Batches, phase: str | None = None) -> Evaluation:
        """The quality and loss by a user-provided function or the task's. phase: what it is called while it runs."""
        return self.evaluate_images(model, loader, phase).evaluation

    def base(self) -> ImageQuality:
        """The original network on the held-out images; they are read once for all runs of one `SharedNetwork`."""
        if self.shared.base is None:
            self.shared.base = self.evaluate_images(self.original, self.data.holdout, "evaluate")
        return self.shared.base

    def evaluate_images(self, model: nn.Module, loader: Batches, phase: str | None = None) -> ImageQuality:
        """The same, with the quality of each image where that can be known."""

        def tell(done: int, total: int | None) -> None:
            if phase is not None:
                self.say(phase, done, total)

        total = length_of(loader)
        tell(0, total)
        if self.settings.evaluate is not None:
            provided = ImageQuality(_checked(self.settings.evaluate(model, loader)))
            tell(total or 0, total)
            return provided
        sums, images = QualitySums(self.task), ByImage(self.task)

        def see(outputs: Any, labels: Any, count: int) -> None:
            sums.add(outputs, labels, count)
            if self.task.measured.is_mean:
                images.add(outputs, labels, count)

        each_answer(model, loader, self.task, see, tell)
        return ImageQuality(_checked(sums.evaluation()), images.result())


def _checked(evaluation: Any) -> Evaluation:
    """What an evaluation gave, if decisions can be based on it."""
    if not isinstance(evaluation, Evaluation):
        raise RunError(
            "your evaluate function must return a prunus.Evaluation(quality, loss, num_images), whose quality may "
            f"be any figure where higher is better; it returned {type(evaluation).__name__}"
        )
    if math.isnan(evaluation.quality):
        raise RunError("the evaluation returned NaN, and decisions cannot be based on it: check your function")
    return evaluation


# -- which layer feeds which, for drawings of the network

INPUT, LAYER, JOIN, OUTPUT = "input", "layer", "join", "output"


@dataclass(frozen=True)
class Node:
    """A layer, or a place where values meet."""

    kind: str
    name: str
    sources: tuple[int, ...]  # places of the nodes that it reads


@dataclass(frozen=True)
class NetworkShape:
    nodes: tuple[Node, ...]  # in the order of execution


def network_shape(graph: ChannelGraph) -> NetworkShape:
    """The layers of a network, and where their values meet."""
    traced = graph.analysis.traced
    nodes: list[Node] = []
    origin: dict[fx.Node, int] = {}  # call -> the node that its value comes from
    for call in traced.graph.nodes:
        sources = tuple(dict.fromkeys(origin[each] for each in call.all_input_nodes if each in origin))
        layer = traced.layer_of(call)
        if call.op == "placeholder":
            kind, name = INPUT, call.name
        elif call.op == "output":
            kind, name = OUTPUT, "output"
        elif layer in graph.layers:
            kind, name = LAYER, str(layer)
        elif len(sources) > 1:  # add, cat, mul: the name of a function or method; the last part of a module's name
            target = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", str(call.target))
            name = target.rpartition(".")[2].strip("_")
            kind, name = JOIN, {"iadd": "add", "imul": "mul", "concat": "cat"}.get(name, name)
        else:  # a call that only passes a value on
            if sources:
                origin[call] = sources[0]
            continue
        origin[call] = len(nodes)
        nodes.append(Node(kind, name, sources))
    return NetworkShape(tuple(nodes))
