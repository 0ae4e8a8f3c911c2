"""Numbers: mean squared error and R2, the share of the labels' variance that the outputs explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import DataError, RunError
from prunus.tasks import Quality, Task
from prunus.tasks.evaluate import at_least_float32
from prunus.util.batches import main_output


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error."""
    outputs = at_least_float32(outputs)
    return F.mse_loss(outputs, labels.to(outputs.dtype).reshape(outputs.shape))


def sums(outputs: Tensor, labels: Tensor) -> Tensor:
    """[4, D]: count, sum and sum of squares of the labels, and squared errors, for each of the D numbers."""
    got = outputs.double().reshape(len(outputs), -1)  # [N, D]
    want = labels.double().reshape(len(outputs), -1)
    return torch.stack([torch.ones_like(want).sum(0), want.sum(0), want.square().sum(0), (got - want).square().sum(0)])


def r_squared(found: Tensor) -> float:
    """1 - squared errors / squared deviations of the labels from their mean, over all numbers together."""
    count, total, squares, errors = found.double()
    spread = (squares - total.square() / count).sum()
    if not spread > 0:
        raise DataError("all labels are the same, so that R2 has no meaning: use other images, or a task of your own")
    return float(1 - errors.sum() / spread)


def check(outputs: Any, labels: Any, index: int) -> None:
    """DataError unless there is a number for each output."""
    if not isinstance(labels, Tensor) or labels.numel() != outputs.numel() or len(labels) != len(outputs):
        got = list(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise DataError(f"batch {index}: the network returns {list(outputs.shape)} numbers, and the labels are {got}")
    if not bool(labels.isfinite().all()):
        raise DataError(f"batch {index}: some labels are NaN or infinite; leave these images out")


def distance(student: Tensor, teacher: Tensor, _temperature: float) -> Tensor:
    """Mean squared difference from the teacher's numbers."""
    return F.mse_loss(at_least_float32(student), at_least_float32(teacher))


def regression(bins: Sequence[float] | None = None) -> Task:
    """The task of predicting numbers.

    bins: ascending borders that divide the labels into classes, so that metrics such as gsd can be used; of several
        numbers per image, the first counts.
    """
    if bins is None:
        return REGRESSION
    borders = torch.tensor([float(border) for border in bins])
    if not len(borders) or not bool((borders[1:] > borders[:-1]).all()) or not bool(borders.isfinite().all()):
        raise RunError(f"bins= must be ascending borders between the classes, such as [0.2, 0.5]; got {list(bins)}")

    def classes(labels: Tensor) -> Tensor:
        return torch.bucketize(labels.reshape(len(labels), -1)[:, 0].float().cpu(), borders)

    return replace(REGRESSION, name="regression", classes=classes)


REGRESSION = Task(
    name="regression",
    help="Numbers: mean squared error and R2, the share of the labels' variance that the outputs explain",
    loss=loss,
    quality=Quality(sums, "R2", "", r_squared),
    outputs=main_output,
    check=check,
    distil=distance,
)
