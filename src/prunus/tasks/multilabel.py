"""Several labels per image, each present or not: binary cross-entropy and mean F1 over labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError
from prunus.tasks import ByClass, Quality, Task
from prunus.tasks.evaluate import at_least_float32
from prunus.util.batches import main_output


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, mean over images and labels."""
    logits = at_least_float32(logits)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def counts(logits: Tensor, labels: Tensor) -> Tensor:
    """[3, L]: images in which a label is rightly found, wrongly found, and missed."""
    found, there = logits > 0, labels > 0
    return torch.stack([(found & there).sum(0), (found & ~there).sum(0), (~found & there).sum(0)])


def mean_f1(sums: Tensor) -> float:
    """Mean over labels of 2 TP / (2 TP + FP + FN); labels that are neither there nor found are left out."""
    hits, false, missed = sums.double()
    whole = 2 * hits + false + missed
    return float((2 * hits / whole)[whole > 0].mean()) if bool((whole > 0).any()) else 0.0


def f1_of_labels(sums: Tensor) -> Tensor:
    """2 TP / (2 TP + FP + FN) of each label: [L], NaN for one that is neither there nor found."""
    hits, false, missed = sums.unbind()
    return 2 * hits / (2 * hits + false + missed)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(sigmoid(teacher / T) || sigmoid(student / T)) of each label, mean over images and labels."""
    student, teacher = at_least_float32(student) / temperature, at_least_float32(teacher) / temperature
    aim = teacher.sigmoid()
    found = F.binary_cross_entropy_with_logits(student, aim) - F.binary_cross_entropy_with_logits(teacher, aim)
    return temperature**2 * found


def check(logits: Any, labels: Any, index: int) -> None:
    """DataError unless labels are 0 or 1 and have the shape of the logits [N, L]."""
    if not isinstance(labels, Tensor) or labels.shape != logits.shape:
        got = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(
            f"batch {index}: the labels of a multi-label network are 0 or 1 for each of its outputs, "
            f"{list(logits.shape)}; got {got}"
        )
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise DataError(f"batch {index}: the labels of a multi-label network must be 0 or 1")


MULTILABEL = Task(
    name="multilabel",
    help="Several labels per image, each present or not: binary cross-entropy and mean F1 over labels",
    label_kind="several",
    loss=loss,
    quality=Quality(counts, "mean F1", "%", mean_f1),
    outputs=main_output,
    check=check,
    distil=divergence,
    classes=lambda labels: labels > 0,
    by_class=ByClass("F1", counts, f1_of_labels, lambda sums: sums[0] + sums[2]),
)
