"""Loss and quality of a task, added up batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from secateur.base.batches import unpack, unpack_any
from secateur.errors import DataError, RunError
from secateur.measuring.outputs import at_least_float32
from secateur.measuring.tasks import Quality, Task, is_classification


def unpack_for(task: Task, batch: Any, index: int, labelled: bool = True) -> tuple[Any, Any]:
    """(inputs, labels) of a batch as the task reads it.

    labelled: a batch without labels is an error; otherwise its labels are None.
    """
    if task.inputs is not None:
        return _pair(task.inputs(batch), index)
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


def _pair(made: Any, index: int) -> tuple[Any, Any]:
    if not isinstance(made, list | tuple) or len(made) != 2:
        got = f"{type(made).__name__} of {len(made)}" if isinstance(made, list | tuple) else type(made).__name__
        raise RunError(f"batch {index}: inputs= of a task must return (inputs of the network, labels), and gave {got}")
    return made[0], made[1]


def inputs_alone(task: Task, batches: Iterable[Any]) -> list[tuple[Any]]:
    """The inputs of all batches without labels, as a repair reads them: several inputs of a network stay one item."""
    return [(unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(batches)]


def outputs_for(task: Task, output: Any, labels: Any, index: int) -> Any:
    """What loss and quality take of a network's output, checked against the labels."""
    found = output if task.outputs is None else task.outputs(output)
    if task.check is not None:
        task.check(found, labels, index)
    return found


def _described(value: Any) -> str:
    return f"the shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def mean_loss(task: Task, outputs: Any, labels: Any) -> Tensor:
    """The loss of a batch, 0-d; RunError if the task's function gives anything but one number."""
    loss = task.loss(outputs, labels)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise RunError(
            f"loss= of a task must return the mean of the batch, a tensor with one number; it gave {_described(loss)}"
        )
    return loss.reshape(())


def image_values(quality: Quality, outputs: Any, labels: Any, count: int) -> Tensor:
    """The value of each of `count` images, [N], of a quality that is a mean over images."""
    values = quality.measure(outputs, labels)
    if not isinstance(values, Tensor) or list(values.shape) != [count]:
        raise RunError(
            f"{quality.name} must give one value for each image, [{count}], and gave {_described(values)}. For a "
            "quality that is no mean over images, pass secateur.Quality(sums, value=...): sums that add up "
            "over batches, and their value"
        )
    return at_least_float32(values.detach())


class QualitySums:
    """Sums of the batches so far. They stay on the device: no batch waits for another."""

    def __init__(self, task: Task) -> None:
        self._task, self._quality = task, task.measured
        self._losses: list[Tensor] = []
        self._parts: list[Tensor] = []
        self.num_images = 0

    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Add a batch of `count` images."""
        self.num_images += count
        self._losses.append(mean_loss(self._task, outputs, labels).detach() * count)
        if self._quality.is_mean:
            self._parts.append(image_values(self._quality, outputs, labels, count).sum())
        else:
            self._parts.append(self._sums_of_batch(outputs, labels))

    def _sums_of_batch(self, outputs: Any, labels: Any) -> Tensor:
        sums = self._quality.measure(outputs, labels)
        if not isinstance(sums, Tensor) or (self._parts and sums.shape != self._parts[0].shape):
            before = f"; the first batch gave the shape {list(self._parts[0].shape)}" if self._parts else ""
            raise RunError(
                f"{self._quality.name} has a value=, so its function must return a tensor of sums, of the same shape "
                f"for each batch; got {_described(sums)}{before}"
            )
        return sums.detach()

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
    if not math.isfinite(value):
        raise RunError(f"{quality.name} is {value}, and decisions cannot be based on it: check outputs and labels")
    return value
