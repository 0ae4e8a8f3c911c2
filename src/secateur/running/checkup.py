"""A dry run: what of a network can be pruned, how far, what a run would take, and what looks wrong."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import Batches, device_of, labels_to
from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.units import Streams
from secateur.deciding.candidates import candidates
from secateur.deciding.costs import cost_function
from secateur.deciding.costs.latency import table_cost
from secateur.deciding.reach import lowest_cost
from secateur.errors import DecideError
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.layer_timing.measure import latency_table
from secateur.measuring.quality_sums import unpack_for
from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.measuring.tasks import Task, task_of
from secateur.running.data_problems import (
    NEEDED,
    batch_norm_problems,
    label_problems,
    pixel_problems,
    quality_problems,
)
from secateur.running.run_estimate import RoundEstimate, Speed, estimate, measure_speed
from secateur.zoo.data import ImageData

PARTS = ("train", "holdout", "test")
LOOKED_AT = 256  # training images
EVALUATED, SECONDS = 2000, 15.0  # held-out images at most, and about the time for them


@dataclass(frozen=True)
class TimedIn:
    """Where the layers of a network are timed."""

    engine: str
    batch: int = 64
    threads: int | None = None  # None: PyTorch's choice


@dataclass(frozen=True)
class SpeedReach:
    """How fast pruning can make a network, by the times of its layers."""

    engine: str
    batch: int
    threads: int
    whole: float  # seconds per batch of the network as it is
    fastest: float  # speed-up


@dataclass(frozen=True)
class Checkup:
    """What a dry run found."""

    shape: tuple[int, ...]  # channels, height, width of an image; of several inputs, of the first one
    inputs: str  # the shapes of all inputs, as text
    macs: int
    params: int
    layers: int  # that could be pruned at all: depthwise ones follow others
    prunable: int
    units: Mapping[str, int]  # kind -> number
    frozen: Mapping[str, tuple[str, ...]]  # reason -> names
    reach: Mapping[str, float]  # cost -> the largest fraction that can be removed
    speed: Speed
    speedup: SpeedReach | None = None  # if an engine was named
    images: Mapping[str, int] = field(default_factory=dict)  # part -> number
    classes: int = 0  # or labels; 0 if they are not known
    accuracy: Accuracy | None = None  # or the quality of another task
    quality: QualityWords = ACCURACY
    round: RoundEstimate | None = None
    problems: tuple[str, ...] = ()  # a run would fail or be pointless
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # that the check took

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class CheckedData(Protocol):
    """Images of a data set by name, or of the user's own."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    def count(self, part: Any) -> int: ...

    def loader(self, part: Any, batch_size: int, /, *, limit: int | None = None) -> Batches: ...


def checkup(
    model: nn.Module,
    example: Any,
    data: CheckedData | None,
    *,
    trained: bool,
    task: Task | str | None = None,
    streams: Streams = "select",
    timed_in: TimedIn | None = None,
) -> Checkup:
    """Look at a network, and at its images if there are some.

    example: an input of the network, one image. trained: whether it has weights. If not, its quality is not measured.
    timed_in: time the layers there, unless they are in the user's cache, and tell the fastest speed-up.
    """
    started = time.perf_counter()
    device, chosen = device_of(model), task_of(task)
    graph = trace(model, labels_to(example, device), streams)
    parts: dict[str, int] = {} if data is None else {part: data.count(part) for part in PARTS if data.count(part)}
    images = labels_to(_some_images(data, example, chosen), device)
    problems, notes = ([], []) if data is None else (_data_problems(data, parts, images), [])
    if not graph.units:
        problems.append("nothing can be pruned: see what is frozen and why")
    if not trained:
        notes.append("the network is untrained (no --weights); pruning starts from a trained one")
    elif data is not None and not (isinstance(data, ImageData) and pixel_problems(images)):
        problems += batch_norm_problems(model, images)
    speed = measure_speed(model, images, chosen)
    accuracy = None
    if data is not None and trained and parts.get("holdout"):
        most = int(min(EVALUATED, max(len(data.classes), SECONDS / speed.forward)))
        held_out = data.loader("holdout", 128, limit=min(most, parts["holdout"]))
        accuracy, wrong, more = quality_problems(model, held_out, chosen, len(data.classes), parts["holdout"])
        problems, notes = problems + wrong, notes + more
    whole = data is not None and parts.get("train") and parts.get("holdout")
    return Checkup(
        shape=tuple(_tensors(example)[0].shape[1:]),
        inputs=shapes_of(example),
        macs=graph.macs,
        params=graph.params,
        layers=sum(not layer.depthwise for layer in graph.layers.values()),
        prunable=len(graph.prunable),
        units={kind: sum(u.kind == kind for u in graph.units.values()) for kind in ("private", "stream")},
        frozen=frozen_by_reason(graph),
        reach={cost: reach_of(graph, cost) for cost in ("macs", "params")},
        speed=speed,
        speedup=speed_reach(graph, timed_in) if timed_in is not None and graph.units else None,
        images=parts,
        classes=0 if data is None else len(data.classes),
        accuracy=accuracy,
        quality=QualityWords.of(chosen),
        round=estimate(speed, parts["train"], parts["holdout"], len(graph.units)) if whole else None,
        problems=tuple(problems),
        notes=tuple(notes),
        seconds=time.perf_counter() - started,
    )


def frozen_by_reason(graph: ChannelGraph) -> dict[str, tuple[str, ...]]:
    """reason -> the names that it holds for."""
    reasons: dict[str, list[str]] = {}
    for name, reason in graph.frozen.items():
        reasons.setdefault(reason, []).append(name)
    return {reason: tuple(names) for reason, names in reasons.items()}


def reach_of(graph: ChannelGraph, cost: str) -> float:
    """The largest fraction of a cost that can be removed: every unit at its floor."""
    try:
        names = candidates(graph, ())
    except DecideError:  # nothing can be pruned
        return 0.0
    cost_of = cost_function(graph, cost)
    return 1 - lowest_cost(graph, names, cost_of) / cost_of({})


def speed_reach(graph: ChannelGraph, timed_in: TimedIn) -> SpeedReach:
    """The fastest that `--speedup` can ask for: every unit at the width at which its layers take the least time."""
    table = latency_table(graph, timed_in.engine, timed_in.batch, timed_in.threads)
    cost, how = table_cost(graph, table), table.measured_with
    try:
        least = lowest_cost(graph, candidates(graph), cost)
    except DecideError:  # nothing is pruned by default
        least = cost({})
    return SpeedReach(how.engine, how.batch, how.threads, table.whole, cost({}) / least)


def _data_problems(data: CheckedData, parts: Mapping[str, int], images: Any) -> list[str]:
    """What looks wrong about labels and pixels. Of data of the user's own, less is known."""
    if isinstance(data, ImageData):
        return label_problems(data) + pixel_problems(images)
    return [f"there are no {words} images, and a run needs some" for part, words in NEEDED.items() if part not in parts]


def _some_images(data: CheckedData | None, example: Any, task: Task) -> Any:
    """Some training inputs, or noise if there are none."""
    if data is None or not data.count("train"):
        draw = torch.Generator().manual_seed(0)
        return tree_map(
            lambda x: torch.randn(LOOKED_AT, *x.shape[1:], generator=draw) if isinstance(x, Tensor) else x, example
        )
    with generators_kept():
        batch = next(iter(data.loader("train", LOOKED_AT, limit=LOOKED_AT)))
    return unpack_for(task, batch, 0, labelled=False)[0]


def shapes_of(example: Any) -> str:
    """The shape of an image, 3 x 32 x 32, or of each of several inputs."""
    return " and ".join(" x ".join(str(side) for side in x.shape[1:]) for x in _tensors(example))


def _tensors(example: Any) -> list[Tensor]:
    return [x for x in tree_leaves(example) if isinstance(x, Tensor)]
