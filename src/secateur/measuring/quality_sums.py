"""Loss and quality of a task, added up batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from secateur.base.batches import count_images, unpack, unpack_any
from secateur.errors import DataError, RunError
from secateur.measuring.outputs import at_least_float32, tensors_of
from secateur.measuring.tasks import Quality, Task, is_classification


def unpack_for(task: Task, batch: Any, index: int, labelled: bool = True) -> tuple[Any, Any]:
    """(inputs, labels) of a batch as the task reads it.

    labelled: a batch without labels is an error; otherwise its labels are None.
    """
    if task.inputs is not None:
        return task.inputs(batch)
    if is_classification(task) and labelled:
        return unpack(batch, index)
    images, labels = unpack_any(batch, index)
    if labels is None and labelled:
        raise DataError(
            f"batch {index} has no labels, and they are needed to measure {task.measured.name} and to train. Without "
            "labels, score by a metric that needs none (rebuilt, reader_energy, act_variance, or one of weights), and "
            "take evaluate= of your own"
        )
    return images, labels


def inputs_alone(task: Task, batches: Iterable[Any]) -> list[tuple[Any]]:
    """The inputs of all batches without labels, as a repair reads them: several inputs of a network stay one item."""
    return [(unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(batches)]


def outputs_for(task: Task, output: Any, labels: Any, index: int) -> Any:
    """What loss and quality take of a network's output, checked against the labels."""
    found = output if task.outputs is None else task.outputs(output)
    if task.check is not None:
        task.check(found, labels, index)
    return found


def image_values(quality: Quality, outputs: Any, labels: Any) -> Tensor:
    """The value of each image [N] of a quality that is a mean over images."""
    values = quality.measure(outputs, labels)
    if not isinstance(values, Tensor) or values.ndim != 1:
        got = f"the shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise RunError(
            f"{quality.name} must give one value for each image, [N], and gave {got}. For a quality that is no mean "
            "over images, pass secateur.Quality(sums, value=...): sums that add up over batches, and their value"
        )
    return at_least_float32(values.detach())


class QualitySums:
    """Sums of the batches so far. They stay on the device: no batch waits for another."""

    def __init__(self, task: Task) -> None:
        self._task, self._quality = task, task.measured
        self._losses: list[Tensor] = []
        self._parts: list[Tensor] = []
        self.num_images = 0

    def add(self, outputs: Any, labels: Any) -> None:
        """Add a batch."""
        count = number_of(outputs, labels)
        self.num_images += count
        self._losses.append(self._task.loss(outputs, labels).detach() * count)
        if self._quality.is_mean:
            self._parts.append(image_values(self._quality, outputs, labels).sum())
        else:
            self._parts.append(self._quality.measure(outputs, labels).detach())

    def value(self) -> float:
        """The quality of all images so far."""
        self._check()
        return value_of(self._quality, self.sums(), self.num_images)

    def sums(self) -> Tensor:
        """The sums that the quality is computed from, in float64 on the CPU."""
        return torch.stack(self._parts).cpu().double().sum(0)

    def loss(self) -> tuple[float, int]:
        """The mean loss, and the number of images."""
        self._check()
        return float(torch.stack(self._losses).cpu().double().sum()) / self.num_images, self.num_images

    def _check(self) -> None:
        if self.num_images == 0:
            raise DataError("the loader gave no images to evaluate on; check the part, split and limit")


def value_of(quality: Quality, sums: Tensor, num_images: int) -> float:
    """The quality that sums over `num_images` images give."""
    value = float(sums) / num_images if quality.value is None else float(quality.value(sums))
    if math.isnan(value):
        raise RunError(f"{quality.name} is NaN, and decisions cannot be based on it: check outputs and labels")
    return value


def number_of(outputs: Any, labels: Any) -> int:
    """The number of images of a batch: the length of its first label, else of its first output."""
    try:
        return count_images(labels)
    except DataError:
        return len(next(tensors_of(outputs)))
