"""A class for each pixel: cross-entropy over pixels and mean intersection over union."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError
from prunus.tasks import ByClass, Quality, Task
from prunus.tasks.classification import confusion, divergence
from prunus.tasks.evaluate import at_least_float32
from prunus.util.batches import main_output

IGNORED = 255  # the usual label of pixels that do not count
MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}  # dimensions of an image -> how logits are resized


def resized(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [N, K, ...] at the resolution of the labels [N, ...], by linear interpolation."""
    if logits.shape[2:] == labels.shape[1:]:
        return logits
    return F.interpolate(logits, size=labels.shape[1:], mode=MODES[labels.ndim - 1], align_corners=False)


def overlaps(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """[3, K]: pixels of each class in the prediction and the label at once, in the prediction, and in the label.

    If one of the classes is the ignored one, it has none, and does not count in the mean.
    """
    classes, found = logits.shape[1], resized(logits, labels).argmax(1)
    counted = labels != ignored
    found, there = found[counted], labels[counted].long()
    sums = torch.stack([torch.bincount(each, minlength=classes) for each in (there[found == there], found, there)])
    return sums.masked_fill(torch.arange(classes, device=sums.device) == ignored, 0)


def mean_iou(sums: Tensor) -> float:
    """Mean over classes of both / (prediction + label - both); classes that are in neither are left out."""
    both, found, there = sums.double()
    union = found + there - both
    return float((both / union)[union > 0].mean()) if bool((union > 0).any()) else 0.0


def pixel_confusion(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    """[C, C]: pixels of class i (row) that are taken for class j (column)."""
    counted = labels != ignored
    return confusion(resized(logits, labels).argmax(1)[counted], labels[counted], logits.shape[1])


def iou_of_classes(counts: Tensor, ignored: int) -> Tensor:
    """Intersection over union of each class: [C], NaN for the ignored one and those in neither prediction nor label."""
    both = counts.diagonal()
    found = both / (counts.sum(0) + counts.sum(1) - both)
    return found.masked_fill(torch.arange(len(found)) == ignored, torch.nan)


def check(logits: Any, labels: Any, index: int, ignored: int = IGNORED) -> None:
    """DataError unless labels are whole numbers [N, ...], one class per pixel."""
    whole = isinstance(labels, Tensor) and not labels.is_floating_point() and labels.dtype != torch.bool
    if not whole or labels.ndim != logits.ndim - 1 or len(labels) != len(logits) or labels.ndim - 1 not in MODES:
        got = f"{list(labels.shape)} ({labels.dtype})" if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(
            f"batch {index}: for the network's logits {list(logits.shape)} = [images, classes, pixels], the labels "
            f"must be class indices [images, pixels]; got {got}"
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

    def classes(labels: Tensor) -> Tensor:
        return labels.long().masked_fill(labels == ignore_index, -1)

    return Task(
        name="segmentation",
        label_kind="masks",
        loss=loss,
        quality=Quality(lambda logits, labels: overlaps(logits, labels, ignore_index), "mean IoU", "%", mean_iou),
        outputs=main_output,
        check=lambda logits, labels, index: check(logits, labels, index, ignore_index),
        distil=divergence,
        classes=classes,
        by_class=ByClass(
            "IoU",
            lambda logits, labels: pixel_confusion(logits, labels, ignore_index),
            lambda counts: iou_of_classes(counts, ignore_index),
            lambda counts: counts.sum(1),
            "pixels",
        ),
    )


SEGMENTATION = replace(
    segmentation(),
    name="segmentation",
    help="A class for each pixel: cross-entropy over pixels and mean intersection over union",
)
