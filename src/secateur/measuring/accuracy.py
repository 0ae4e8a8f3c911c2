"""Accuracy of a classifier: top-1, top-5 and mean cross-entropy over a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.base.batches import Batches, call, check_batches, count_images, device_of, labels_to, move
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.processes import usable
from secateur.base.progress import Progress
from secateur.errors import DataError, RunError
from secateur.measuring.outputs import at_least_float32
from secateur.measuring.quality_sums import QualitySums, outputs_for, unpack_for
from secateur.measuring.tasks import Task, is_classification, task_of

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
