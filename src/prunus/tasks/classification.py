"""One class per image: cross-entropy and accuracy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.tasks import ByClass, Quality, Task
from prunus.tasks.evaluate import at_least_float32
from prunus.util.batches import as_class_indices, check_range, logits_of

TOP5_CLASSES = 10


def right(logits: Tensor, labels: Tensor) -> Tensor:
    """1 for each image whose class is recognised, otherwise 0: [N]."""
    return (logits.argmax(1) == labels).float()


def top5(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """1 for each image whose class is among the five likeliest, otherwise 0. With few classes that says very little."""
    if logits.shape[1] < TOP5_CLASSES:
        return {}
    return {"top5": (logits.topk(5, dim=1).indices == labels[:, None]).any(1)}


def margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Logit of the right class minus the highest other one: [N]. Negative for a mistake."""
    right_class = logits.gather(1, labels[:, None]).squeeze(1)
    return right_class - logits.scatter(1, labels[:, None], -torch.inf).amax(1)


def confusion(found: Tensor, there: Tensor, classes: int) -> Tensor:
    """[C, C]: how often something of class i (row) is taken for class j (column)."""
    return torch.bincount(there.long() * classes + found, minlength=classes**2).reshape(classes, classes)


def recognised(counts: Tensor) -> Tensor:
    """The share of each class that is recognised: [C], NaN for a class that does not occur."""
    return counts.diagonal() / counts.sum(1)


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats."""
    return F.cross_entropy(at_least_float32(logits), labels)


def divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over images and positions (Hinton et al. 2015).

    T^2 keeps the gradient about as large as that of the cross-entropy for any T. Logits are [N, K] or [N, K, ...].
    """
    soft_student = F.log_softmax(at_least_float32(student) / temperature, dim=1)
    soft_teacher = F.log_softmax(at_least_float32(teacher) / temperature, dim=1)
    found = F.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * found / student[0, 0].numel()


def check(logits: Any, labels: Any, index: int) -> None:
    """DataError unless labels are class indices [N] that fit the logits [N, K]."""
    check_range(as_class_indices(labels, index).cpu(), logits, index)


CLASSIFICATION = Task(
    name="classification",
    help="One class per image: cross-entropy and accuracy",
    label_kind="classes",
    loss=loss,
    quality=Quality(right, "accuracy", "%"),
    outputs=logits_of,
    check=check,
    distil=divergence,
    classes=lambda labels: labels,
    details=top5,
    margins=margins,
    chance=lambda logits: 1 / logits.shape[1],
    by_class=ByClass(
        "accuracy",
        lambda logits, labels: confusion(logits.argmax(1), labels, logits.shape[1]),
        recognised,
        lambda counts: counts.sum(1),
    ),
)
