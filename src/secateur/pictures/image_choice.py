"""The images of a picture: which ones, and their pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.base.batches import Batches, unpack
from secateur.base.preserve_state import generators_kept
from secateur.errors import DataError
from secateur.measuring.quality_sums import unpack_for
from secateur.measuring.tasks import Task, is_classification, task_of

BATCHES = 8  # batches that are searched for images of different classes


def spread_classes(known: int, count: int) -> list[int]:
    """Up to `count` of the classes 0 to known - 1, evenly spread."""
    if count < 1:
        raise DataError(f"the number of classes to show must be at least 1, got {count}")
    places = np.linspace(0, known - 1, min(count, known)).round()
    return sorted({int(place) for place in places})


def images_of(loader: Batches, classes: Sequence[int], each: int) -> tuple[Tensor, Tensor]:
    """The first `each` images of every class [M, C, H, W] and their labels [M], class after class.

    A class with fewer images gives all of them; a class without images raises DataError. Stops reading as soon as there
    are enough.
    """
    found: dict[int, list[Tensor]] = {label: [] for label in classes}
    for index, batch in enumerate(loader):
        images, labels = unpack(batch, index)
        if not isinstance(images, Tensor) or images.ndim != 4:
            raise DataError(f"pictures need batches of images [N, C, H, W]; batch {index} has none")
        for image, label in zip(images, labels.tolist(), strict=True):
            if label in found and len(found[label]) < each:
                found[label].append(image)
        if all(len(mine) >= each for mine in found.values()):
            break
    none = [label for label, mine in found.items() if not mine]
    if none:
        raise DataError(f"there is no image of class {none[0]} to show; use more images, or another part of the data")
    counts = torch.tensor([len(found[label]) for label in classes])
    images = torch.stack([image for label in classes for image in found[label]])
    return images, torch.tensor(classes).repeat_interleave(counts)


def some_images(loader: Batches, seed: int, count: int, task: Task | None = None) -> tuple[Tensor, list[int]] | None:
    """The first image of each of up to `count` classes in the first batches; None if the inputs are not images.

    Without one class per image, the first images, with their numbers in the place of classes.
    """
    first: dict[int, Tensor] = {}
    chosen = task_of(task)
    with generators_kept(seed):
        for index, batch in enumerate(islice(loader, BATCHES)):
            images, labels = unpack_for(chosen, batch, index, labelled=is_classification(chosen))
            if not isinstance(images, Tensor) or images.ndim != 4:
                return None
            numbers = labels.tolist() if is_classification(chosen) else range(len(first), len(first) + len(images))
            for image, label in zip(images, numbers, strict=True):
                first.setdefault(label, image)
            if len(first) >= count:
                break
    labels_shown = sorted(list(first)[:count])
    return (torch.stack([first[label] for label in labels_shown]), labels_shown) if first else None


@dataclass(frozen=True)
class Normalisation:
    """The mean and standard deviation of each colour that images were normalised with."""

    mean: Sequence[float]
    std: Sequence[float]


def as_pixels(images: Tensor, normalised: Normalisation | None = None) -> Any:
    """Images [N, C, H, W] as uint8 [N, H, W, 1 or 3].

    normalised: undone, so that images have their own colours. Without it each image is stretched from its darkest to
    its brightest value. If images have neither 1 nor 3 channels, the first one is shown.
    """
    images = images.detach().float().cpu()
    if normalised is not None:
        std, mean = (torch.tensor(values).view(1, -1, 1, 1) for values in (normalised.std, normalised.mean))
        images = images * std + mean
    images = images if images.shape[1] in (1, 3) else images[:, :1]
    if normalised is None:
        low, high = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        images = (images - low) / (high - low).clamp(min=1e-12)
    pixels: Any = (images * 255).round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pixels)


def shrunk(images: Tensor, side: int) -> Tensor:
    """Images [N, C, H, W] with no side longer than `side`; a pixel is the mean of the pixels that it covers."""
    height, width = images.shape[2:]
    longest = max(height, width)
    if longest <= side:
        return images.detach().float().cpu()
    size = (max(1, round(height * side / longest)), max(1, round(width * side / longest)))
    return F.interpolate(images.detach().float().cpu(), size, mode="area")
