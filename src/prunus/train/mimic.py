"""Mimicking: a repaired network is trained for a few hundred steps to compute what the original computes. No labels."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.errors import RunError
from prunus.tasks import Quality, Task, task_of
from prunus.tasks.evaluate import Evaluation, squared_distance, tensors_of, unpack_for
from prunus.train.distillation import FeatureMaps, common_maps
from prunus.train.fit import DivergedError, fit, steps_of_epochs
from prunus.train.rate_test import best_rate, try_rates
from prunus.train.settings import Preset
from prunus.train.setup import SomeBatches, length, set_epoch
from prunus.util.batches import Batch, Batches, call, count_images, device_of, move
from prunus.util.processes import has_bf16
from prunus.util.progress import PhaseProgress
from prunus.util.progress import steps as reports_of
from prunus.util.state import evaluating, generators_kept

logger = logging.getLogger(__name__)

STEPS_PER_PART = 100  # after each part the held-out loss decides whether it is kept
TEMPERATURE = 4.0
LR = 0.02  # the highest rate of the test
MARGIN = 0.5  # of the smallest held-out loss in the test: high rates raise the loss at first and end lower
HELD_OUT_IMAGES = 1000  # for the held-out loss


@dataclass(frozen=True, repr=False)
class Mimicked:
    """The network after mimicking.

    Attributes:
        model: Of all parts the one with the smallest held-out loss; the given network if none is smaller than its loss.
        losses: Held-out loss before, and after each part of at most 100 steps.
        steps: The number of steps after which `model` was taken; 0: it is the given network.
        lr: The rate that the test chose.
        seconds: Of the training.
    """

    model: nn.Module
    losses: tuple[float, ...]
    steps: int
    lr: float
    seconds: float

    def __repr__(self) -> str:
        losses = f"held-out loss {self.losses[0]:.4g} before, {min(self.losses):.4g} after"
        return f"Mimicked({type(self.model).__name__}: {self.steps} steps at rate {self.lr:g}, {losses})"


def mimic(
    model: nn.Module,
    original: nn.Module,
    train: Batches,
    holdout: Batches,
    steps: int = 600,
    *,
    task: Task | str | None = None,
    lr: float | None = None,
    seed: int = 0,
    mixed_precision: str | None = None,
    checkpoint_dir: str | Path | None = None,
    progress: PhaseProgress | None = None,
) -> Mimicked:
    """Train a copy of `model` to compute what `original` computes; neither is changed, and labels are not read.

        small = prunus.mimic(repaired, model, train, holdout, steps=600).model

    The loss is that of distillation, for classification T^2 KL(softmax(original / T) || softmax(model / T)) with T = 4,
    plus the mean over the ends of stages of |map - original's map|^2 / |original's map|^2. The end of a stage is the
    last feature map of a size that both networks have. SGD with momentum, a rate that rises in the first steps and then
    falls as a cosine; batch norms use the statistics of each batch. By its loss on held-out images the network never
    gets worse: the best of the parts is returned, and the given network is one of them.

    Args:
        model: The pruned and repaired network.
        original: The network to mimic.
        train: Batches of images, with or without labels; with augmentation they say more.
        holdout: Images that choose the rate and the best part.
        steps: Batches to train on.
        task: What the networks are for; classification by default.
        lr: The learning rate; by default a short test chooses, 0.02 at most.
        seed: Of augmentation and order.
        mixed_precision: "no" or "bf16"; by default bf16 where the processor has it.
        checkpoint_dir: Folder for the state after each part. The same call continues a killed run.
        progress: Called with phase, steps done, steps in all and a note.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise RunError(f"steps must be a whole number of at least 1, got {steps!r}")
    likeness = Likeness(model, original, task_of(task), train)
    parts = math.ceil(steps / STEPS_PER_PART)
    part = math.ceil(steps / parts)
    schedule = Preset("mimic", epochs=parts, lr=lr or LR, batch_size=1, schedule="cosine", warmup=0.3, weight_decay=0.0)
    batches = _Parts(train, part)
    how: dict[str, Any] = {
        "teacher": original,
        "task": likeness.as_task(),
        "distill_weight": 1.0,
        "distill_features": 1.0 if likeness.names else 0.0,
        "temperature": TEMPERATURE,
        "seed": seed,
        "mixed_precision": mixed_precision or ("bf16" if has_bf16(device_of(model)) else "no"),
        "device": device_of(model),
    }
    first = next(iter(holdout), None)
    size = 1 if first is None else count_images(unpack_for(likeness.task, first, 0, labelled=False)[0])
    some = SomeBatches(holdout, 0, max(1, math.ceil(HELD_OUT_IMAGES / max(1, size))), 1)

    if lr is None:
        show = None if progress is None else reports_of("mimic: learning rate")(progress)
        tries = try_rates(model, batches, some, schedule, evaluate=likeness.evaluate, progress=show, **how)
        schedule = replace(schedule, lr=best_rate(tries, MARGIN))
    losses = [-likeness.evaluate(model, some).quality]
    try:
        fitted = fit(
            model,
            batches,
            some,
            preset=schedule,
            keep_best=True,
            checkpoint_dir=checkpoint_dir,
            evaluate=likeness.evaluate,
            progress=False if progress is None else steps_of_epochs(progress, "mimic"),
            **how,
        )
    except DivergedError as error:
        logger.warning("mimicking diverged at the rate %g, and the network stays as it was: %s", schedule.lr, error)
        return Mimicked(copy.deepcopy(model), tuple(losses), 0, schedule.lr, 0.0)
    losses += [-epoch.holdout.quality for epoch in fitted.history if epoch.holdout is not None]
    seconds = sum(epoch.seconds for epoch in fitted.history)
    return Mimicked(fitted.model, tuple(losses), part * (fitted.kept or 0), schedule.lr, seconds)


class Likeness:
    """How unlike the original a network is: the loss of mimicking."""

    def __init__(self, model: nn.Module, original: nn.Module, task: Task, train: Batches) -> None:
        self.task, self.original = task, original
        if (batch := next(iter(train), None)) is None:
            raise RunError("mimic: the loader gave no images")
        images = move(unpack_for(task, batch, 0, labelled=False)[0], device_of(model))
        try:
            self.names = common_maps(model, original, images)
        except RunError:  # no map has the same shape in both: the outputs alone
            self.names = []

    def as_task(self) -> Task:
        """For `fit`: the teacher is the whole loss, and labels are not read."""
        task = self.task
        return Task(
            name="mimic",
            loss=lambda outputs, _: torch.zeros((), device=next(tensors_of(outputs)).device),
            quality=Quality(lambda outputs, _: torch.zeros(len(next(tensors_of(outputs)))), "likeness"),
            inputs=task.inputs,
            outputs=task.outputs,
            distil=task.distil,
            reference=lambda _images: None,
        )

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: Batches) -> Evaluation:
        """Minus the loss on images as they are, as a quality."""
        total, count = 0.0, 0
        pair = [FeatureMaps(each, self.names) for each in (model, self.original)]
        try:
            with evaluating(model), evaluating(self.original), generators_kept():
                for number, batch in enumerate(batches):
                    images = move(unpack_for(self.task, batch, number, labelled=False)[0], device_of(model))
                    student, teacher = (self._picked(call(each, images)) for each in (model, self.original))
                    loss = (self.task.distil or squared_distance)(student, teacher, TEMPERATURE)
                    if self.names:
                        loss = loss + squared_distance(pair[0].last(), pair[1].last())
                    total, count = total + float(loss) * count_images(images), count + count_images(images)
        finally:
            for maps in pair:
                maps.remove()
        if not count:
            raise RunError("mimic: there are no held-out images")
        return Evaluation(-total / count, total / count, count)

    def _picked(self, output: Any) -> Any:
        return output if self.task.outputs is None else self.task.outputs(output)


class _Parts:
    """Parts of so many steps of a loader, which is read again where it ends: each time in the order and with the crops
    of another epoch. Where it does not shuffle, each part goes on where the last one ended."""

    def __init__(self, loader: Batches, steps: int) -> None:
        self._loader, self._steps = loader, steps
        self._start, self._epoch = 0, 0
        self.order = getattr(loader, "order", loader)

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Batch]:
        start, epoch, done = self._start, self._epoch, 0
        while done < self._steps:
            before = done
            for batch in islice(iter(self._loader), start, start + self._steps - done):
                done += 1
                yield batch
            if done == before and not start:  # it gives nothing more
                return
            start, epoch = 0, epoch + 1
            if done < self._steps:
                set_epoch(self._loader, epoch)

    def set_epoch(self, part: int) -> None:
        whole = max(1, length(self._loader))
        in_order = isinstance(self._loader, list | tuple)
        self._start = part * self._steps % whole if in_order else 0
        self._epoch = part * math.ceil(self._steps / whole)
        set_epoch(self._loader, self._epoch)
