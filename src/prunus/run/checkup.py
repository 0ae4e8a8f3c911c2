"""A dry run: what of a network can be pruned, how far, what a run would take, and what looks wrong."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from prunus.deciding.costs import CostOf, cost_function, table_cost
from prunus.deciding.settings import TimeSettings
from prunus.deciding.splits import lowest_cost
from prunus.deciding.widths import candidates
from prunus.errors import DataError, DecideError
from prunus.graph.channel_graph import ChannelGraph, trace
from prunus.graph.units import Streams
from prunus.run.final_timing import SECONDS as TIMING
from prunus.run.settings import MANY_IMAGES, SMALL, SOME_IMAGES
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, evaluate, tensors_of, too_good, unpack_for
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.timing.engines import default_engine
from prunus.timing.latency import repeated, timed
from prunus.timing.layer_timing import latency_table
from prunus.util.batches import Batches, call, count_images, device_of, move, order_channels_last, to_device
from prunus.util.progress import PhaseProgress, phases, shown
from prunus.util.state import evaluating, generators_kept
from prunus.zoo.data import ImageData
from prunus.zoo.images import FileImages
from prunus.zoo.names import PARTS, Part

NEEDED = {"train": "training", "holdout": "held-out"}  # part -> its name in messages
LOOKED_AT = 256  # training images
EVALUATED, SECONDS = 2000, 5.0  # held-out images at most, and about the time for them


@dataclass(frozen=True)
class Speed:
    """Measured on this machine, with the number of threads that torch uses now."""

    forward: float  # seconds for an image, in eval mode
    train: float  # seconds for an image: forward, backward and the step of the optimizer
    batch_size: int  # of both measurements


@dataclass(frozen=True)
class SpeedReach:
    """How fast pruning can make a network, by the times of its layers."""

    engine: str
    batch: int
    threads: int
    whole: float  # seconds per batch of the network as it is
    fastest: float  # speed-up


@dataclass(frozen=True)
class RunEstimate:
    """Seconds of the parts of a run by default: it repairs, and does not retrain."""

    score: float  # all training images
    repair: float
    evaluate: float  # held-out and test images, before and after
    timing: float  # at most
    epoch: float  # of retraining, if that is asked for

    @property
    def whole(self) -> float:
        """Seconds of a run without retraining, for a goal in MACs or weights."""
        return self.score + self.repair + self.evaluate + self.timing


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
    accuracy: Evaluation | None = None  # or the quality of another task
    quality: QualityText = ACCURACY
    run: RunEstimate | None = None
    problems: tuple[str, ...] = ()  # a run would fail or be pointless
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # that the check took

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class CheckedData(Protocol):
    """Images of a data set by name, or user-provided ones."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def labelled(self) -> bool: ...

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
    timed_in: TimeSettings | None = None,
    progress: PhaseProgress | bool | None = None,
) -> Checkup:
    """Look at a network, and at its images if there are some.

    Args:
        example: One image.
        trained: Whether the network has weights. If not, its quality is not measured.
        timed_in: Time the layers there, unless they are in the user's cache, and tell the fastest speed-up.
    """
    started, device, task = time.perf_counter(), device_of(model), task_of(task)
    on_device = to_device(example, device)
    with shown(progress, phases) as show:
        show("structure", 0, 1, "")
        graph = trace(model, on_device, streams)
        show("structure", 1, 1, "")
        images, parts, problems, notes = _look_at_images(model, example, data, trained, task)
        if not graph.units:
            problems.append("nothing can be pruned: see what is frozen and why")
        show("speed", 0, 1, "")
        speed = measure_speed(model, images)
        show("speed", 1, 1, "")
        accuracy = None
        if data is not None and trained and data.labelled and "holdout" in parts:
            count = parts["holdout"]
            most = int(min(EVALUATED, max(len(data.classes), SECONDS / speed.forward)))
            try:
                accuracy = evaluate(
                    model,
                    some(data, "holdout", min(most, count), task),
                    task=task,
                    progress=lambda done, total: show("held-out images", done, total or done, ""),
                )
                problems += quality_doubts(accuracy, model, on_device, task)
                if task.chance is not None and count < FEW_IMAGES:
                    notes.append(f"with {count} held-out images, accuracy moves in steps of {100 / count:.2g} points")
            except DataError as error:
                problems.append(str(error))
    speedup = None
    if timed_in is not None and graph.units:
        table = latency_table(graph, timed_in.engine or default_engine(), timed_in.batch, timed_in.threads)
        how, fastest = table.measured_with, 1 / least_share(graph, table_cost(graph, table))
        speedup = SpeedReach(how.engine, how.batch, how.threads, table.whole, fastest)
    whole = data is not None and parts.get("train") and parts.get("holdout")
    frozen: dict[str, tuple[str, ...]] = {}
    for name, reason in graph.frozen.items():
        frozen[reason] = (*frozen.get(reason, ()), name)
    return Checkup(
        shape=tuple(_tensors(example)[0].shape[1:]),
        inputs=shapes_of(example),
        macs=graph.macs,
        params=graph.params,
        layers=len(graph.weighted),
        prunable=len(graph.prunable),
        units={kind: sum(u.kind == kind for u in graph.units.values()) for kind in ("private", "stream")},
        frozen=frozen,
        reach={cost: 1 - least_share(graph, cost_function(graph, cost)) for cost in ("macs", "params")},
        speed=speed,
        speedup=speedup,
        images=parts,
        classes=0 if data is None else len(data.classes),
        accuracy=accuracy,
        quality=QualityText.of(task),
        run=estimate(speed, parts, math.prod(_tensors(example)[0].shape[2:4])) if whole else None,
        problems=tuple(problems),
        notes=tuple(notes),
        seconds=time.perf_counter() - started,
    )


def _look_at_images(
    model: nn.Module, example: Any, data: CheckedData | None, trained: bool, task: Task
) -> tuple[Any, dict[str, int], list[str], list[str]]:
    """A batch of training images, or of noise; the number of images in each part; problems, and notes."""
    parts: dict[str, int] = {} if data is None else {part: number for part in PARTS if (number := data.count(part))}
    if data is not None and "train" in parts:
        with generators_kept():
            batch = next(iter(some(data, "train", LOOKED_AT, task)))
        images = unpack_for(task, batch, 0, labelled=False)[0]
    else:
        draw = torch.Generator().manual_seed(0)
        images = tree_map(
            lambda x: torch.randn(LOOKED_AT, *x.shape[1:], generator=draw) if isinstance(x, Tensor) else x, example
        )
    images = to_device(images, device_of(model))
    untrained = [] if trained else ["the network is untrained (no --weights); pruning starts from a trained one"]
    if data is None:
        return images, parts, [], untrained
    problems = [f"there are no {name} images, and a run needs some" for p, name in NEEDED.items() if p not in parts]
    notes: list[str] = []
    odd_pixels: list[str] = []
    if isinstance(data, ImageData):  # of user-provided data less is known
        odd_pixels, notes = pixel_problems(images), label_notes(data)
    if not data.labelled:
        notes.append("the images have no labels: quality will be agreement with the original network")
    if trained and not odd_pixels:
        odd_pixels = batch_norm_problems(model, images)
    return images, parts, [*problems, *odd_pixels], [*notes, *untrained]


def least_share(graph: ChannelGraph, cost: CostOf) -> float:
    """The smallest fraction of a cost that pruning can leave: every unit at its floor, or where it costs the least."""
    try:
        names = candidates(graph)
    except DecideError:  # nothing is pruned by default
        return 1.0
    return lowest_cost(graph, names, cost) / cost({})


def shapes_of(example: Any) -> str:
    """The shape of an image, 3 x 32 x 32, or of each of several inputs."""
    return " and ".join(" x ".join(str(side) for side in x.shape[1:]) for x in _tensors(example))


def some(data: CheckedData, part: str, count: int, task: Task) -> Batches:
    """About `count` images: a sample of a data set by name; of others, which are read in order, the first batches."""
    if isinstance(data, ImageData):
        return data.loader(cast("Part", part), min(count, BATCH) if part == "holdout" else count, limit=count)
    batches, read = [], 0
    for number, batch in enumerate(data.loader(part, BATCH)):
        batches.append(batch)
        read += count_images(unpack_for(task, batch, number, labelled=False)[0])
        if read >= count:
            break
    return batches


def _tensors(example: Any) -> list[Tensor]:
    return [x for x in tree_leaves(example) if isinstance(x, Tensor)]


# -- what looks wrong about a network and its images, on a few batches

NAMED = 5  # classes that are named in a message
FEW_IMAGES = 500  # held-out images; with fewer, accuracy moves in steps of more than 0.2 points
SHIFT, SPREAD = 0.5, 2.5  # how far the input of the first batch norm may be from what it saw in training
MEAN, DEVIATIONS = 1.5, (0.2, 5.0)  # of all pixels, after normalisation
CHANCE = 1.5  # a quality below this many times that of guessing: the network has nothing to lose


def label_notes(data: ImageData) -> list[str]:
    """Classes without images, from the labels alone; masks are not read. They matter where something is trained."""
    notes = []
    for part, name in NEEDED.items():
        images = data.parts.get(cast("Part", part))
        if images is None or (isinstance(images, FileImages) and images.masks):
            continue
        single = images.labels.ndim == 1
        there = np.unique(images.labels) if single else np.flatnonzero(images.labels.any(0))
        missing = [each for number, each in enumerate(data.classes) if number not in there]
        if missing:
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            advice = "; retraining would forget them" if part == "train" else ""
            notes.append(
                f"{len(missing)} of {len(data.classes)} {'classes' if single else 'labels'} have no {name} images: "
                f"{', '.join(missing[:NAMED])}{more}{advice}"
            )
    return notes


def pixel_problems(images: Tensor) -> list[str]:
    """Pixels that no usual normalisation gives. images: [N, C, H, W], as the network gets them."""
    if not images.isfinite().all():
        return ["some images have values that are NaN or infinite: check --mean and --std"]
    mean, deviation = float(images.mean()), float(images.std())
    if abs(mean) <= MEAN and DEVIATIONS[0] <= deviation <= DEVIATIONS[1]:
        return []
    return [
        f"the images have mean {mean:.3g} and standard deviation {deviation:.3g} after normalisation, and usual ones "
        "have about 0 and 1: check --mean and --std"
    ]


@torch.no_grad()
def batch_norm_problems(model: nn.Module, images: Any) -> list[str]:
    """Whether the first batch norm gets what it got in training; it does not if images are normalised differently."""
    seen: list[tuple[_BatchNorm, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not seen:
            seen.append((cast("_BatchNorm", module), inputs[0]))

    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        with evaluating(model):
            call(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        return []
    norm, got = seen[0]
    assert norm.running_mean is not None and norm.running_var is not None
    values = got.transpose(0, 1).flatten(1)  # [C, N * pixels]
    variance = norm.running_var + norm.eps
    shift = float(((values.mean(1) - norm.running_mean).abs() / variance.sqrt()).median())
    spread = float(((values.var(1) + norm.eps) / variance).median())
    if shift <= SHIFT and 1 / SPREAD <= spread <= SPREAD:
        return []
    return [
        f"the normalisation of the images does not seem to be that of the training: at the first batch norm, channels "
        f"are {shift:.2g} standard deviations off and have {spread:.2g} times the variance. Check --mean and --std"
    ]


def quality_doubts(evaluation: Evaluation, model: nn.Module, example: Any, task: Task) -> list[str]:
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


# -- what a run would take, from a few batches

BATCH = 128  # images of a training step
SECONDS_RUN_ESTIMATE = 2.0  # about what each measurement may take
TURNS = 5  # at most
SCORED, REPAIRED = 3, 4  # forward passes that an image takes: with what its channels share, and with two networks


def estimate(speed: Speed, images: Mapping[str, int], pixels: int) -> RunEstimate:
    """Time of a run, from the speed, the number of images in each part, and the pixels of an image."""
    train, held_out = images["train"], images["holdout"]
    repaired = min(train, MANY_IMAGES if pixels <= SMALL else SOME_IMAGES)
    return RunEstimate(
        score=SCORED * speed.forward * train,
        repair=REPAIRED * speed.forward * repaired,
        evaluate=2 * speed.forward * (held_out + images.get("test", 0)),
        timing=TIMING,
        epoch=(speed.train + speed.forward) * train + speed.forward * held_out,  # the unpruned network teaches
    )


def measure_speed(model: nn.Module, images: Any) -> Speed:
    """Time a forward pass and a training step on copies of the model. `images` are repeated to fill a batch."""
    device = device_of(model)

    def forward(batch: Any) -> None:
        with evaluating(model), torch.no_grad():
            call(model, batch)

    few = repeated(images, 2)
    per_image = _seconds(lambda: forward(few), device) / 2
    # A training step is 3 to 4 forward passes.
    size = int(min(BATCH, max(2, SECONDS_RUN_ESTIMATE / TURNS / (4 * per_image))))
    batch = repeated(images, size)
    seconds = _seconds(lambda: forward(batch), device) / size
    train = _seconds(_training_step(model, batch), device) / size
    return Speed(seconds, train, size)


def _training_step(model: nn.Module, batch: Any) -> Callable[[], None]:
    """One step of a copy of the model, as `fit` trains, with a loss of any outputs: it hardly changes the time."""
    copied = order_channels_last(copy.deepcopy(model)).train().requires_grad_(True)
    optimizer = torch.optim.SGD(copied.parameters(), lr=1e-9, momentum=0.9, nesterov=True)
    batch = move(batch, device_of(model), channels_last=True)

    def step() -> None:
        optimizer.zero_grad()
        loss = torch.stack([x.float().square().mean() for x in tensors_of(call(copied, batch))]).sum()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Seconds of the fastest call but the first: processor time divided by the threads, which other programs hardly
    change; of a GPU, its own time."""
    seconds: list[float] = []
    started = time.perf_counter()
    with generators_kept():
        work()
        while not seconds or (len(seconds) < TURNS and time.perf_counter() - started < SECONDS_RUN_ESTIMATE):
            seconds.append(timed(work, device, cpu_time=True))
    return min(seconds) / (torch.get_num_threads() if device.type == "cpu" else 1)
