"""The built-in tasks: classification, several labels per image, segmentation, and regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError, RunError
from prunus.tasks import ByClass, Quality, Task
from prunus.tasks.evaluate import at_least_float32
from prunus.util.batches import as_class_indices, check_range, logits_of, main_output


def _described(labels: Any) -> str:
    return f"{list(labels.shape)} ({labels.dtype})" if isinstance(labels, Tensor) else type(labels).__name__


# -- one class per image

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


def confusion(predicted: Tensor, there: Tensor, classes: int) -> Tensor:
    """[C, C]: how often something of class i (row) is taken for class j (column)."""
    return torch.bincount(there.long() * classes + predicted, minlength=classes**2).reshape(classes, classes)


def softmax_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over images and positions (Hinton et al. 2015).

    T^2 keeps the gradient about as large as that of the cross-entropy for any T. Logits are [N, K] or [N, K, ...].
    """
    soft_student = F.log_softmax(at_least_float32(student) / temperature, dim=1)
    soft_teacher = F.log_softmax(at_least_float32(teacher) / temperature, dim=1)
    divergence = F.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * divergence / student[0, 0].numel()


CLASSIFICATION = Task(
    name="classification",
    help="One class per image: cross-entropy and accuracy",
    label_kind="classes",
    loss=lambda logits, labels: F.cross_entropy(at_least_float32(logits), labels),
    quality=Quality(right, "accuracy", "%"),
    outputs=logits_of,
    check=lambda logits, labels, index: check_range(as_class_indices(labels, index).cpu(), logits, index),
    distil=softmax_divergence,
    classes=lambda labels: labels,
    details=top5,
    margins=margins,
    chance=lambda logits: 1 / logits.shape[1],
    by_class=ByClass(
        "accuracy",
        counts=lambda logits, labels: confusion(logits.argmax(1), labels, logits.shape[1]),
        values=lambda counts: counts.diagonal() / counts.sum(1),
        sizes=lambda counts: counts.sum(1),
    ),
)

# -- several labels per image


def multilabel_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy, mean over images and labels."""
    logits = at_least_float32(logits)
    return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))


def label_counts(logits: Tensor, labels: Tensor) -> Tensor:
    """[3, L]: images in which a label is rightly predicted, wrongly predicted, and missed."""
    predicted, there = logits > 0, labels > 0
    return torch.stack([(predicted & there).sum(0), (predicted & ~there).sum(0), (~predicted & there).sum(0)])


def f1_of_labels(sums: Tensor) -> Tensor:
    """2 TP / (2 TP + FP + FN) of each label: [L], NaN for one that is neither there nor predicted."""
    hits, false, missed = sums.double().unbind()
    return 2 * hits / (2 * hits + false + missed)


def mean_of_present(values: Tensor) -> float:
    """The mean of the values that are not NaN; 0 if there are none."""
    present = values[~values.isnan()]
    return float(present.mean()) if len(present) else 0.0


def sigmoid_divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """T^2 KL(sigmoid(teacher / T) || sigmoid(student / T)) of each label, mean over images and labels."""
    student, teacher = at_least_float32(student) / temperature, at_least_float32(teacher) / temperature
    aim = teacher.sigmoid()
    divergence = F.binary_cross_entropy_with_logits(student, aim) - F.binary_cross_entropy_with_logits(teacher, aim)
    return temperature**2 * divergence


def check_labels(logits: Any, labels: Any, index: int) -> None:
    """DataError unless labels are 0 or 1 and have the shape of the logits [N, L]."""
    rule = f"batch {index}: the labels of a multi-label network are 0 or 1 for each of its {list(logits.shape)} outputs"
    if not isinstance(labels, Tensor) or labels.shape != logits.shape:
        raise DataError(f"{rule}; got {_described(labels)}")
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise DataError(f"{rule}; some are other numbers")


MULTILABEL = Task(
    name="multilabel",
    help="Several labels per image, each present or not: binary cross-entropy and mean F1 over labels",
    label_kind="several",
    loss=multilabel_loss,
    quality=Quality(label_counts, "mean F1", "%", lambda sums: mean_of_present(f1_of_labels(sums))),
    outputs=main_output,
    check=check_labels,
    distil=sigmoid_divergence,
    classes=lambda labels: labels > 0,
    by_class=ByClass("F1", label_counts, f1_of_labels, sizes=lambda sums: sums[0] + sums[2]),
)

# -- a class for each pixel

IGNORED = 255  # the usual label of pixels that do not count
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}  # dimensions of an image -> how logits are resized


def resized(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [N, K, ...] at the resolution of the labels [N, ...], by linear interpolation."""
    if logits.shape[2:] == labels.shape[1:]:
        return logits
    return F.interpolate(logits, size=labels.shape[1:], mode=MODES[labels.ndim - 1], align_corners=False)


def check_masks(logits: Any, labels: Any, index: int, ignored: int) -> None:
    """DataError unless labels are whole numbers [N, ...], one class per pixel."""
    whole = isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool
    if not whole or labels.ndim != logits.ndim - 1 or len(labels) != len(logits) or labels.ndim - 1 not in MODES:
        raise DataError(
            f"batch {index}: for the network's logits {list(logits.shape)} = [images, classes, pixels], the labels "
            f"must be class indices [images, pixels]; got {_described(labels)}"
        )
    classes, counted = logits.shape[1], labels[labels != ignored]
    if counted.numel() and not (counted.min() >= 0 and counted.max() < classes):
        raise DataError(
            f"batch {index} has pixels labelled {int(counted.min())} to {int(counted.max())}, but the network has "
            f"{classes} classes, 0 to {classes - 1}, and only {ignored} is ignored: number the classes from 0, or pass "
            "task=prunus.segmentation(ignore_index=...)"
        )


def segmentation(ignore_index: int = IGNORED) -> Task:
    """The task of finding the class of each pixel. Pixels labelled `ignore_index` do not count."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        logits = at_least_float32(resized(logits, labels))
        counted = (labels != ignore_index).sum().clamp(min=1)  # a batch without any such pixel has the loss 0
        return F.cross_entropy(logits, labels.long(), ignore_index=ignore_index, reduction="sum") / counted

    def overlaps(logits: Tensor, labels: Tensor) -> Tensor:
        """[3, K]: pixels of each class in the prediction and the label at once, in the prediction, and in the label.

        If one of the classes is the ignored one, it has none, and does not count in the mean.
        """
        counted = labels != ignore_index
        predicted, there = resized(logits, labels).argmax(1)[counted], labels[counted].long()
        parts = (there[predicted == there], predicted, there)
        sums = torch.stack([torch.bincount(part, minlength=logits.shape[1]) for part in parts])
        return sums.masked_fill(torch.arange(logits.shape[1], device=sums.device) == ignore_index, 0)

    def mean_iou(sums: Tensor) -> float:
        both, predicted, there = sums.double()
        return mean_of_present(both / (predicted + there - both))

    def pixel_confusion(logits: Tensor, labels: Tensor) -> Tensor:
        counted = labels != ignore_index
        return confusion(resized(logits, labels).argmax(1)[counted], labels[counted], logits.shape[1])

    def iou_of_classes(counts: Tensor) -> Tensor:
        """Both / (prediction + label - both): [C], NaN for the ignored class and those in neither."""
        both = counts.diagonal()
        iou = both / (counts.sum(0) + counts.sum(1) - both)
        return iou.masked_fill(torch.arange(len(iou)) == ignore_index, torch.nan)

    return Task(
        name="segmentation",
        label_kind="masks",
        loss=loss,
        quality=Quality(overlaps, "mean IoU", "%", mean_iou),
        outputs=main_output,
        check=lambda logits, labels, index: check_masks(logits, labels, index, ignore_index),
        distil=softmax_divergence,
        classes=lambda labels: labels.long().masked_fill(labels == ignore_index, -1),
        by_class=ByClass("IoU", pixel_confusion, iou_of_classes, sizes=lambda counts: counts.sum(1), of="pixels"),
    )


SEGMENTATION = replace(
    segmentation(),
    name="segmentation",
    help="A class for each pixel: cross-entropy over pixels and mean intersection over union",
)

# -- numbers


def regression_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error."""
    outputs = at_least_float32(outputs)
    return F.mse_loss(outputs, labels.to(outputs.dtype).reshape(outputs.shape))


def regression_sums(outputs: Tensor, labels: Tensor) -> Tensor:
    """[4, D]: count, sum and sum of squares of the labels, and squared errors, for each of the D numbers."""
    got = outputs.double().reshape(len(outputs), -1)  # [N, D]
    want = labels.double().reshape(len(outputs), -1)
    return torch.stack([torch.ones_like(want).sum(0), want.sum(0), want.square().sum(0), (got - want).square().sum(0)])


def r_squared(sums: Tensor) -> float:
    """1 - squared errors / squared deviations of the labels from their mean, over all numbers together."""
    count, total, squares, errors = sums.double()
    spread = (squares - total.square() / count).sum()
    if not spread > 0:
        raise DataError("all labels are the same, so that R2 has no meaning: use other images, or a task of your own")
    return float(1 - errors.sum() / spread)


def check_numbers(outputs: Any, labels: Any, index: int) -> None:
    """DataError unless there is a number for each output."""
    if not isinstance(labels, Tensor) or labels.numel() != outputs.numel() or len(labels) != len(outputs):
        outs = f"the network returns {list(outputs.shape)} numbers"
        raise DataError(f"batch {index}: {outs}, and the labels are {_described(labels)}")
    if not bool(labels.isfinite().all()):
        raise DataError(f"batch {index}: some labels are NaN or infinite; leave these images out")


REGRESSION = Task(
    name="regression",
    help="Numbers: mean squared error and R2, the share of the labels' variance that the outputs explain",
    loss=regression_loss,
    quality=Quality(regression_sums, "R2", "", r_squared),
    outputs=main_output,
    check=check_numbers,
    distil=lambda student, teacher, _: F.mse_loss(at_least_float32(student), at_least_float32(teacher)),
)


def regression(bins: Sequence[float] | None = None) -> Task:
    """The task of predicting numbers.

    Args:
        bins: Ascending borders that divide the labels into classes, so that metrics such as gsd can be used; of several
            numbers per image, the first counts.
    """
    if bins is None:
        return REGRESSION
    borders = torch.tensor([float(border) for border in bins])
    if not len(borders) or not bool((borders[1:] > borders[:-1]).all()) or not bool(borders.isfinite().all()):
        raise RunError(f"bins= must be ascending borders between the classes, such as [0.2, 0.5]; got {list(bins)}")

    def classes(labels: Tensor) -> Tensor:
        return torch.bucketize(labels.reshape(len(labels), -1)[:, 0].float().cpu(), borders)

    return replace(REGRESSION, classes=classes)
