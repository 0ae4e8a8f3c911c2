"""Agreement with the original network: the quality of a smaller one where images have no labels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import DataError, ModelError
from prunus.tasks import UNLABELLED, Quality, Task, task_of
from prunus.tasks.builtin import margins
from prunus.tasks.evaluate import squared_distance, tensors_of
from prunus.util.batches import KeptAnswers, call, device_of, move
from prunus.util.state import evaluating, generators_kept

AGREEMENT = "agreement with the original"
KEPT_BYTES = 2**27  # of answers to images that may come again
CONSTANT = 1e-12  # variance relative to the mean square, below which a number is the same for all images


def agreement(original: nn.Module, task: Task | str | None = None) -> Task:
    """A task whose labels are the answers of `original`, so that images need no labels.

        prunus.evaluate(small, photos, task=prunus.agreement(model))

    Quality is the share of images, or of pixels, with the same likeliest class. For tasks without classes it is
    1 - squared distance of the outputs / variance of the original's outputs, in per cent: the mean over the tensors
    of the output, each with a variance about the means of its channels. The loss is that of distillation.

    For detection the labels are the boxes of `original` with a score of 0.25 or more, and quality and loss are those of
    the task. So it is for every task that makes labels of outputs (`as_labels`).

    Args:
        original: The network to agree with. It is not changed.
        task: What it is for; classification by default.
    """
    if not isinstance(original, nn.Module):
        raise ModelError(f"expected agreement(original, task) with a torch.nn.Module, got {type(original).__name__}")
    given, kept = task_of(task), KeptAnswers(KEPT_BYTES)
    name = f"{given.name or 'own'}{UNLABELLED}"

    def compute(images: Any) -> Any:
        with evaluating(original), generators_kept(), torch.no_grad():
            output = call(original, move(images, device_of(original)))
            answer = output if given.outputs is None else given.outputs(output)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors_of(answer)):
            raise ModelError(
                "the original network's outputs are NaN or infinite, so nothing can agree with them: check its "
                "weights, and mean and std of the images"
            )
        return answer if given.as_labels is None else given.as_labels(answer)

    def answers(images: Any) -> Any:  # those to images that come again are kept
        return kept.of(images, lambda: compute(images))

    if given.as_labels is not None:
        quality = replace(given.measured, name=f"{given.measured.name} against the original")
        return replace(given, name=name, quality=quality, reference=answers)
    if given.label_kind in ("classes", "masks"):
        quality = Quality(same_class, AGREEMENT, "%")
    else:
        quality = Quality(distance_sums, AGREEMENT, "%", share_explained)
    distance = given.distil or squared_distance
    by_class = given.label_kind == "classes"
    return Task(
        name=name,
        loss=lambda outputs, answers: distance(outputs, answers, 1.0),
        quality=quality,
        inputs=given.inputs,
        outputs=given.outputs,
        check=check_same_shapes,
        distil=given.distil,
        margins=(lambda logits, answers: margins(logits, answers.argmax(1))) if by_class else None,
        reference=answers,
    )


def check_same_shapes(outputs: Any, answers: Any, index: int) -> None:
    """DataError if the outputs of the two networks cannot be compared."""
    mine, its = ([list(tensor.shape) for tensor in tensors_of(each)] for each in (outputs, answers))
    if not its:
        raise DataError("the network's output has no floating-point tensor, so it cannot be compared with the original")
    if mine != its:
        raise DataError(f"batch {index}: the network's output is {mine}, and the original's {its}")


def same_class(logits: Tensor, answers: Tensor) -> Tensor:
    """The share of each image whose likeliest class is the same: [N], of logits [N, K] or [N, K, ...]."""
    return (logits.argmax(1) == answers.argmax(1)).float().reshape(len(logits), -1).mean(1)


def distance_sums(outputs: Any, answers: Any) -> Tensor:
    """[T, 4, C] for T tensors of at most C channels: count, sum and sum of squares of the answers, squared errors."""
    rows = []
    for mine, its in zip(tensors_of(outputs), tensors_of(answers), strict=True):
        got, want = (_by_channel(tensor) for tensor in (mine, its))
        rows.append(
            torch.stack([torch.ones_like(want).sum(1), want.sum(1), want.square().sum(1), (got - want).square().sum(1)])
        )
    widest = max(row.shape[1] for row in rows)
    return torch.stack([F.pad(row, (0, widest - row.shape[1])) for row in rows])


def _by_channel(tensor: Tensor) -> Tensor:
    """A tensor [N, C, ...] as [C, everything else], in double precision; without channels, [1, everything]."""
    wide = tensor.detach().double()
    return wide.transpose(0, 1).flatten(1) if wide.ndim > 1 else wide.reshape(1, -1)


def share_explained(sums: Tensor) -> float:
    """1 - squared errors / variance about the means of channels, mean over tensors that are not constant."""
    count, total, squares, errors = sums.double().unbind(1)  # [T, C] each
    spread = (squares - total.square() / count.clamp(min=1)).sum(1)  # [T]
    varies = spread > CONSTANT * squares.sum(1)
    if not bool(varies.any()):
        raise DataError("the original network gives the same output for all images, so agreement with it says nothing")
    return float((1 - errors.sum(1)[varies] / spread[varies]).mean())
