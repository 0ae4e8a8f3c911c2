"""The quality of a network over a loader: loss, quality and details of any task, also class by class."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import DataError, RunError
from prunus.tasks import Quality, Task, task_of
from prunus.util.batches import (
    Batches,
    as_class_indices,
    call,
    check_batches,
    count_images,
    device_of,
    length_of,
    move,
    to_device,
    unpack_any,
)
from prunus.util.processes import usable
from prunus.util.progress import Progress
from prunus.util.state import evaluating, generators_kept


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


def unpack_for(task: Task, batch: Any, index: int, labelled: bool = True) -> tuple[Any, Any]:
    """(inputs, labels) of a batch as the task reads it. If it should be `labelled`, one without labels is an error."""
    if task.reference is not None and labelled:
        images, _ = unpack_for(task, batch, index, labelled=False)
        return images, task.reference(images)
    if task.inputs is not None:
        made: Any = task.inputs(batch)
        if not isinstance(made, list | tuple) or len(made) != 2:
            got = f"{type(made).__name__}{f' of {len(made)}' if isinstance(made, list | tuple) else ''}"
            rule = "inputs= of a task must return (inputs of the network, labels)"
            raise RunError(f"batch {index}: {rule}, and gave {got}")
        return made[0], made[1]
    images, labels = unpack_any(batch, index)
    if not labelled:
        return images, labels
    if labels is None:
        keys = f" (it is a dict with the keys {sorted(batch)})" if isinstance(batch, Mapping) else ""
        raise DataError(
            f"batch {index} has no labels{keys}, and {task.measured.name} needs them, as do training and metrics of "
            "classes. Without labels, score by a metric that needs none (rebuilt, reader_energy, act_variance, or one "
            "of weights), and measure the agreement with the original network: task=prunus.agreement(original)"
        )
    return images, as_class_indices(labels, index) if task.label_kind == "classes" else labels


def inputs_alone(task: Task, batches: Iterable[Any]) -> list[tuple[Any]]:
    """The inputs of all batches without labels, as a repair reads them: several inputs of a network stay one item."""
    return [(unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(batches)]


def outputs_for(task: Task, output: Any, labels: Any, index: int) -> Any:
    """What loss and quality take of a network's output, checked against the labels."""
    outputs = output if task.outputs is None else task.outputs(output)
    if task.check is not None:
        task.check(outputs, labels, index)
    return outputs


def _described(value: Any) -> str:
    return f"the shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def mean_loss(task: Task, outputs: Any, labels: Any) -> Tensor:
    """The loss of a batch, 0-d; RunError if the task's function gives anything but one number."""
    loss = task.loss(outputs, labels)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        rule = "loss= of a task must return the mean of the batch, a tensor with one number"
        raise RunError(f"{rule}; it gave {_described(loss)}")
    return loss.reshape(())


def trainable_loss(task: Task, outputs: Any, labels: Any) -> Tensor:
    """The loss of a batch, 0-d; RunError if nothing can be trained with it, because it has no gradient."""
    loss = mean_loss(task, outputs, labels)
    if not loss.requires_grad:
        raise RunError(
            f"the loss of the task {task.name or 'own'} has no gradient, so no labels can be trained with. Train with "
            "a teacher alone (distill), mimic, or give a loss: task=prunus.detection(loss=...) for boxes"
            if task.label_kind == "boxes"
            else "loss= of the task returned a tensor without a gradient: compute it from the outputs of the network"
        )
    return loss


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


@dataclass(frozen=True)
class Evaluation:
    """What a task measures on some images.

    Attributes:
        quality: The task's quality; for classification the top-1 accuracy, a fraction of 1.
        loss: The task's mean loss; for classification the cross-entropy in nats.
        num_images: The number of images.
        details: Further figures of the task by name, such as "top5" for ten classes or more.
    """

    quality: float
    loss: float
    num_images: int
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def top5(self) -> float | None:
        """Top-5 accuracy, where the task measures it."""
        return self.details.get("top5")


class QualitySums:
    """Loss, quality and details of the batches so far. They stay on the device: no batch waits for another."""

    def __init__(self, task: Task) -> None:
        self._task, self._quality = task, task.measured
        self._losses: list[Tensor] = []
        self._parts: list[Any] = []  # sums of batches, or the items of images
        self._details: dict[str, list[Tensor]] = {}
        self.num_images = 0

    def add(self, outputs: Any, labels: Any, count: int) -> None:
        """Add a batch of `count` images."""
        self.num_images += count
        self._losses.append(mean_loss(self._task, outputs, labels).detach() * count)
        if self._quality.is_mean:
            self._parts.append(image_values(self._quality, outputs, labels, count).sum())
        elif self._quality.collects:
            items = self._quality.measure(outputs, labels)
            if not isinstance(items, list) or len(items) != count:
                got = f"{len(items)} items" if isinstance(items, list) else type(items).__name__
                rule = f"must return a list with one for each of {count} images"
                raise RunError(f"{self._quality.name} collects items, so its function {rule}; got {got}")
            self._parts += items
        else:
            sums = self._quality.measure(outputs, labels)
            if not isinstance(sums, Tensor) or (self._parts and sums.shape != self._parts[0].shape):
                before = f"; the first batch gave the shape {list(self._parts[0].shape)}" if self._parts else ""
                raise RunError(
                    f"{self._quality.name} has a value=, so its function must return a tensor of sums, of the same "
                    f"shape for each batch; got {_described(sums)}{before}"
                )
            self._parts.append(sums.detach())
        if self._task.details is not None:
            for name, values in self._task.details(outputs, labels).items():
                self._details.setdefault(name, []).append(values.sum())

    def value(self) -> float:
        """The quality of all images so far."""
        self._check()
        sums, of_sums = self.sums(), self._quality.value
        value = float(sums) / self.num_images if of_sums is None else float(of_sums(sums))
        if not math.isfinite(value):
            name = self._quality.name
            raise RunError(f"{name} is {value}, and decisions cannot be based on it: check outputs and labels")
        return value

    def sums(self) -> Any:
        """What the quality is computed from: sums in float64 on the CPU, or the items of all images."""
        return list(self._parts) if self._quality.collects else _total(self._parts)

    def evaluation(self) -> Evaluation:
        """All figures of the images so far."""
        self._check()
        details = {name: float(_total(parts)) / self.num_images for name, parts in self._details.items()}
        if self._quality.details is not None:
            details |= self._quality.details(self.sums())
        return Evaluation(self.value(), float(_total(self._losses)) / self.num_images, self.num_images, details)

    def _check(self) -> None:
        if self.num_images == 0:
            raise DataError("the loader gave no images to evaluate on; check the part, split and limit")


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).cpu().double().sum(0)


PERFECT = 0.995  # a held-out accuracy of this or more, on PERFECT_IMAGES or more, is rarely an honest one
PERFECT_IMAGES = 500
See = Callable[[Any, Any, int], None]  # outputs, labels and number of images of a batch


def evaluate(
    model: nn.Module,
    loader: Batches,
    *,
    device: torch.device | str | None = None,
    task: Task | str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Quality and loss of `model` over all batches of `loader`, in eval mode and without gradients.

    The model's mode, the random generators and everything else are restored afterwards. Each process sees only its own
    batches.

    Args:
        model: The network.
        loader: Batches: pairs (images, labels) or dicts.
        device: Where a copy of the model runs; by default the model itself runs where it is.
        task: Classification by default, whose quality is the top-1 accuracy, with "top5" among the details.
        progress: Called with the batches done and their number.

    Raises:
        DataError: The loader is empty, or labels have a wrong type, shape or range.
    """
    if not isinstance(model, nn.Module):
        raise RunError(f"expected evaluate(model, loader) with a torch.nn.Module, got {type(model).__name__}")
    check_batches(loader, "loader")
    chosen = task_of(task)
    sums = QualitySums(chosen)
    if device is not None:
        wanted, home = usable(device), device_of(model)
        if home.type != wanted.type or wanted.index not in (None, home.index):
            model = copy.deepcopy(model).to(wanted)  # the caller's model does not move
    each_answer(model, loader, chosen, sums.add, progress)
    return sums.evaluation()


def each_answer(model: nn.Module, loader: Batches, task: Task, see: See, progress: Progress | None = None) -> None:
    """Call `see(outputs, labels, number of images)` for each batch, in eval mode, without gradients."""
    home, total = device_of(model), length_of(loader)
    with evaluating(model), generators_kept(), torch.no_grad():
        for index, batch in enumerate(loader):
            images, labels = unpack_for(task, batch, index)
            outputs = outputs_for(task, call(model, move(images, home)), labels, index)
            see(outputs, to_device(labels, home), count_images(images))
            if progress is not None:
                progress(index + 1, total)


def too_good(accuracy: Evaluation) -> str | None:
    """A warning if a held-out accuracy is suspiciously perfect: 99.5% or more on 500 images or more. Otherwise None.

    A network has such a score on the images that it was trained on, and decisions based on it are decided by chance:
    ResNet-56 scores 100.0% on its training images, and still 99.8% with 8% of its MACs removed.
    """
    if accuracy.quality < PERFECT or accuracy.num_images < PERFECT_IMAGES:
        return None
    return (
        f"held-out accuracy is {100 * accuracy.quality:.2f}% on {accuracy.num_images} images, which is suspiciously "
        "perfect: was the network trained on them? Hold out images that it has not seen (for a trained network that "
        "you were given, half of the test set: --holdout test:0.5), or decide by the loss"
    )


MOST_CLASSES = 1000  # with more, counts of pairs would need too much memory, and no page could show them
MOST_PAIRS = 2500  # of classes that are confused; all of them up to 50 classes


@dataclass(frozen=True)
class ClassFigures:
    """Figures of each class, in the order of the classes."""

    values: tuple[float | None, ...]  # quality, a fraction of 1; None if the class does not occur
    sizes: tuple[int, ...]  # images or pixels of the class
    confused: tuple[tuple[int, int, int], ...] | None  # class, what it was taken for, how often; the most frequent
    complete: bool = True  # whether `confused` lists all


def evaluate_by_class(
    model: nn.Module, loader: Batches, task: Task, also: See | None = None
) -> tuple[Evaluation, ClassFigures | None]:
    """The quality of all images, and of each class if the task has classes, in one pass. `also` sees each batch too."""
    sums, how, total = QualitySums(task), task.by_class, list[Tensor]()  # counts so far, on the device of the network

    def see(outputs: Any, labels: Any, count: int) -> None:
        sums.add(outputs, labels, count)
        if also is not None:
            also(outputs, labels, count)
        # A user-provided task may be a changed copy of a built-in one.
        logits = isinstance(outputs, Tensor) and outputs.ndim >= 2 and outputs.shape[1] <= MOST_CLASSES
        if how is not None and how.counts is not None and logits:
            counts = how.counts(outputs, labels)
            total[:] = [total[0] + counts if total else counts]

    each_answer(model, loader, task, see)
    if how is None or not (total or task.measured.collects):
        return sums.evaluation(), None
    counts = total[0].cpu().double() if total else sums.sums()
    values = tuple(None if math.isnan(value) else value for value in how.values(counts).tolist())
    sizes = tuple(int(size) for size in how.sizes(counts).tolist())
    if not total or counts.shape[0] != counts.shape[1]:
        return sums.evaluation(), ClassFigures(values, sizes, None)
    places = (counts * (1 - torch.eye(len(counts)))).nonzero().tolist()
    pairs = sorted([(i, j, int(counts[i, j])) for i, j in places], key=lambda pair: -pair[2])  # most frequent first
    return sums.evaluation(), ClassFigures(values, sizes, tuple(pairs[:MOST_PAIRS]), len(pairs) <= MOST_PAIRS)
