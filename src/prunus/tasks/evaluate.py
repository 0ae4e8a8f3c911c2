"""Accuracy of a classifier: top-1, top-5 and mean cross-entropy over a loader."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import DataError, RunError
from prunus.tasks import Quality, Task, is_classification, task_of
from prunus.util.batches import (
    Batches,
    call,
    check_batches,
    count_images,
    device_of,
    labels_to,
    move,
    unpack,
    unpack_any,
)
from prunus.util.processes import usable
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept

# Outputs of a network, whatever their structure: the one that counts, and how far two of them are apart.


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision logits as float32, so that exponentials and sums keep the precision of the model's output."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def tensors_of(output: Any) -> Iterator[Tensor]:
    """All floating-point tensors of an output, in the order of its structure; they are not copied."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_of(value)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_of(getattr(output, field.name))


def squared_distance(student: Any, teacher: Any, _temperature: float = 1.0) -> Tensor:
    """Mean squared difference of all tensors of two outputs, each relative to the mean square of the teacher's."""
    mine, its = list(tensors_of(student)), list(tensors_of(teacher))
    shapes = [[list(tensor.shape) for tensor in tensors] for tensors in (mine, its)]
    if not its or shapes[0] != shapes[1]:
        raise RunError(
            f"the teacher's outputs have the shapes {shapes[1]}, the network's {shapes[0]}: give the task outputs= "
            "that picks the same tensors of both, or distil= that compares them"
        )
    parts = [
        F.mse_loss(at_least_float32(a), at_least_float32(b))
        / at_least_float32(b).square().mean().clamp(min=torch.finfo(torch.float32).tiny)
        for a, b in zip(mine, its, strict=True)
    ]
    return torch.stack(parts).mean()


# Loss and quality of a task, added up batch by batch.


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
            "quality that is no mean over images, pass prunus.Quality(sums, value=...): sums that add up "
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


TOP5_CLASSES = 10  # with fewer classes, five guesses say very little, and top5 is None
PERFECT = 0.995  # a held-out accuracy of this or more, on PERFECT_IMAGES or more, is rarely an honest one
PERFECT_IMAGES = 500
See = Callable[[Any, Any, int], None]  # outputs, labels and number of images of a batch


@dataclass(frozen=True)
class Accuracy:
    """Fractions of 1, not per cent. `loss` is the mean cross-entropy in nats; top5 is None below 10 classes.

    For a task other than classification, top1 is the task's quality and loss its mean loss.
    """

    top1: float
    top5: float | None
    loss: float
    num_images: int


def evaluate(
    model: nn.Module,
    loader: Batches,
    *,
    device: torch.device | str | None = None,
    topk: Sequence[int] = (1, 5),
    task: Task | str | None = None,
    progress: Progress | None = None,
) -> Accuracy:
    """Top-1, top-5 and loss of `model` over all batches of `loader`, in eval mode and without gradients.

    task: classification by default. For any other, top1 is the task's quality, top5 None and loss the task's.
    Batches are pairs (images, labels) or dicts. The model runs on its own device, or as a copy on `device`. Its mode,
    the random generators and everything else are restored afterwards. Each process sees only its own batches.
    Raises DataError if the loader is empty or labels have a wrong type, shape or range.
    """
    if isinstance(topk, int) or not set(topk) <= {1, 5} or 1 not in topk:
        raise RunError(f"topk should be (1,) or (1, 5), not {topk}")
    if not isinstance(model, nn.Module):
        raise RunError(f"expected evaluate(model, loader) with a torch.nn.Module, got {type(model).__name__}")
    check_batches(loader, "loader")
    chosen = task_of(task)
    sums = sums_for(chosen, 5 in topk)
    each_answer(_placed(model, device), loader, chosen, sums.add, progress)
    return sums.accuracy()


def each_answer(model: nn.Module, loader: Batches, task: Task, see: See, progress: Progress | None = None) -> None:
    """Call `see(outputs, labels, number of images)` for each batch, in eval mode, without gradients."""
    home, total = device_of(model), _length(loader)
    with evaluating(model), generators_kept(), torch.no_grad():
        for index, batch in enumerate(loader):
            images, labels = unpack_for(task, batch, index)
            outputs = outputs_for(task, call(model, move(images, home)), labels, index)
            see(outputs, labels_to(labels, home), count_images(images))
            if progress is not None:
                progress(index + 1, total)


def sums_for(task: Task, want_top5: bool = True) -> _Sums | _TaskSums:
    """What adds up the batches of a task."""
    return _Sums(want_top5) if is_classification(task) else _TaskSums(task)


class _TaskSums(QualitySums):
    def accuracy(self) -> Accuracy:
        return Accuracy(self.value(), None, *self.loss())


@dataclass
class _Sums:
    """Correct answers and losses of the batches so far. They stay on the device: no batch waits for another."""

    want_top5: bool
    hits1: list[Tensor] = field(default_factory=list)
    hits5: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    num_images: int = 0

    def add(self, logits: Tensor, labels: Tensor, count: int) -> None:
        self.hits1.append((logits.argmax(1) == labels).sum())
        if self.want_top5 and logits.shape[1] >= TOP5_CLASSES:
            self.hits5.append((logits.topk(5, dim=1).indices == labels[:, None]).sum())  # [N, 5] -> 0-d
        self.losses.append(F.cross_entropy(at_least_float32(logits), labels, reduction="sum"))
        self.num_images += count

    def accuracy(self) -> Accuracy:
        if self.num_images == 0:
            raise DataError("the loader gave no images to evaluate on; check the part, split and limit")
        top1, loss = _total(self.hits1) / self.num_images, _total(self.losses) / self.num_images
        return Accuracy(top1, _total(self.hits5) / self.num_images if self.hits5 else None, loss, self.num_images)


def too_good(accuracy: Accuracy) -> str | None:
    """A warning if a held-out accuracy is suspiciously perfect: 99.5% or more on 500 images or more. Otherwise None.

    A network has such a score on the images that it was trained on, and decisions based on it are decided by chance:
    ResNet-56 scores 100.0% on its training images, and still 99.8% with 8% of its MACs removed.
    """
    if accuracy.top1 < PERFECT or accuracy.num_images < PERFECT_IMAGES:
        return None
    return (
        f"held-out accuracy is {100 * accuracy.top1:.2f}% on {accuracy.num_images} images, which is suspiciously "
        "perfect: was the network trained on them? Hold out images that it has not seen (for a trained network that "
        "you were given, half of the test set: --holdout test:0.5), or decide by the loss"
    )


def _placed(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """The model itself if it is already on `device`, otherwise a copy there; the caller's model does not move."""
    if device is None:
        return model
    wanted, home = usable(device), device_of(model)
    if home.type == wanted.type and wanted.index in (None, home.index):
        return model
    return copy.deepcopy(model).to(wanted)


def _length(loader: Batches) -> int | None:
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:  # an iterable without a length, such as a DataLoader over an IterableDataset
        return None


def _total(values: list[Tensor]) -> float:
    return float(torch.stack(values).cpu().double().sum())
