"""What looks wrong about a network and its images, found on a few batches."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from secateur.base.batches import Batches, call
from secateur.base.preserve_state import evaluating
from secateur.errors import DataError
from secateur.measuring.accuracy import Accuracy, evaluate, too_good
from secateur.measuring.tasks import Task, is_classification
from secateur.zoo.data import ImageData, Part
from secateur.zoo.data.images import FileImages

CHANCE = 1.5  # accuracy below this many times that of guessing says nothing
NAMED = 5  # classes that are named in a message
FEW_IMAGES = 500  # held-out images; with fewer, accuracy moves in steps of more than 0.2 points
SHIFT, SPREAD = 0.5, 2.5  # how far the input of the first batch norm may be from what it saw in training
MEAN, DEVIATIONS = 1.5, (0.2, 5.0)  # of all pixels, after normalisation


NEEDED = {"train": "training", "holdout": "held-out"}  # part -> its name in messages


def label_problems(data: ImageData) -> list[str]:
    """Classes without images, from the labels alone; masks are not read."""
    problems = []
    for part, words in NEEDED.items():
        if not data.count(cast("Part", part)):
            problems.append(f"there are no {words} images, and a run needs some")
            continue
        images = data.parts[cast("Part", part)]
        if isinstance(images, FileImages) and images.masks:
            continue
        there = np.unique(images.labels) if images.labels.ndim == 1 else np.flatnonzero(images.labels.any(0))
        missing = [name for number, name in enumerate(data.classes) if number not in there]
        if missing:
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            problems.append(
                f"{len(missing)} of {len(data.classes)} {'classes' if images.labels.ndim == 1 else 'labels'} have no "
                f"{words} images: "
                f"{', '.join(missing[:NAMED])}{more}"
            )
    return problems


def pixel_problems(images: Tensor) -> list[str]:
    """Pixels that no usual normalisation gives. images: [N, C, H, W], as the network gets them."""
    if not images.isfinite().all():
        return ["some images have values that are NaN or infinite: check --mean and --std"]
    mean, deviation = float(images.mean()), float(images.std())
    if abs(mean) <= MEAN and DEVIATIONS[0] <= deviation <= DEVIATIONS[1]:
        return []
    return [
        f"the images have mean {mean:.3g} and standard deviation {deviation:.3g} after normalisation, and usual ones "
        "have about 0 and 1: check --mean and --std"
    ]


@torch.no_grad()
def batch_norm_problems(model: nn.Module, images: Any) -> list[str]:
    """Whether the first batch norm gets what it got in training; it does not if images are normalised differently."""
    seen: list[tuple[nn.modules.batchnorm._BatchNorm, Tensor]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if not seen:
            seen.append((cast("nn.modules.batchnorm._BatchNorm", module), inputs[0]))

    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    try:
        with evaluating(model):
            call(model, images)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        return []
    norm, got = seen[0]
    assert norm.running_mean is not None and norm.running_var is not None
    values = got.transpose(0, 1).flatten(1)  # [C, N * pixels]
    variance = norm.running_var + norm.eps
    shift = float(((values.mean(1) - norm.running_mean).abs() / variance.sqrt()).median())
    spread = float(((values.var(1) + norm.eps) / variance).median())
    if shift <= SHIFT and 1 / SPREAD <= spread <= SPREAD:
        return []
    return [
        f"the normalisation of the images does not seem to be that of the training: at the first batch norm, channels "
        f"are {shift:.2g} standard deviations off and have {spread:.2g} times the variance. Check --mean and --std"
    ]


def quality_problems(
    model: nn.Module, held_out: Batches, task: Task, classes: int, count: int
) -> tuple[Accuracy | None, list[str], list[str]]:
    """Quality on held-out images (None if it cannot be measured), what looks wrong about an accuracy, and notes.

    classes: number of classes, 0 if it is not known. count: number of all held-out images.
    """
    try:
        found = evaluate(model, held_out, task=task)
    except DataError as error:
        return None, [str(error)], []
    if not is_classification(task):
        return found, [], []
    suspicion = too_good(found)
    problems = [suspicion] if suspicion else []
    if classes and found.top1 * classes < CHANCE:
        problems.append(
            f"{100 * found.top1:.1f}% of the held-out images are recognised, about what guessing among "
            f"{classes} classes gives: check the weights, the labels and the normalisation"
        )
    few = f"with {count} held-out images, accuracy moves in steps of {100 / count:.2g} points"
    return found, problems, [few] if count < FEW_IMAGES else []
