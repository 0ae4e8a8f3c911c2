"""Class moments for labels other than one class per image: several labels per image, or a class for each pixel.

- Several labels per image, True or False [N, L]: each label is a problem of its own, the images with it against those
  without it. This is the paper's one-versus-rest, where the rest are the images without the label.
- A class for each pixel, [N, ...]: every labelled pixel is a sample of its class, with the value that the feature map
  has at its place. A position of a smaller map stands for an area of several pixels, and counts for each class in the
  share of the area that the class has (the average over the area, not the nearest pixel). Where a tensor has no
  positions, as behind global pooling, the area is the whole image. Ignored pixels (negative classes) count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from secateur.base.distributed import processes
from secateur.errors import DataError, ScoreError
from secateur.measuring.tasks import Task
from secateur.scoring.channel_sums import image_sums
from secateur.scoring.moments import ClassMoments, Triple, combine
from secateur.scoring.statistics import usable_classes
from secateur.scoring.tap_hooks import Tap, gather

Part = tuple[str, bytes]  # a tap, and Slot.key: what is reduced there
POOLS: Mapping[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


@dataclass(frozen=True, eq=False)
class LabelMoments(ClassMoments):
    """Moments of the images that have each label; `rest` are those of the images without it."""

    without: ClassMoments

    @cached_property
    def rest(self) -> ClassMoments:
        """For each label the moments of the images without it."""
        return self.without

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all images: any label's two groups together."""
        return combine(
            (self.count[0], self.mean[0], self.m2[0]), (self.without.count[0], self.without.mean[0], self.without.m2[0])
        )

    def select(self, channels: Tensor) -> LabelMoments:
        """The moments of some of the channels."""
        mine = super().select(channels)
        return LabelMoments(mine.num_images, mine.count, mine.mean, mine.m2, self.without.select(channels))


class TaskGatherer:
    """Adds what the taps show to the running moments, batch by batch. `before` comes first, with the batch's labels."""

    def __init__(self, taps: Mapping[str, Tap], task: Task) -> None:
        self._needs = {name: list(tap.needs().items()) for name, tap in taps.items()}
        self._task = task
        self._members = _Members(torch.zeros(0, 0))
        self._moments: dict[Part, ClassMoments] = {}
        self._images = torch.zeros(0, dtype=torch.float64)  # [R] images of each row
        self.num_images = 0

    def before(self, labels: Any) -> None:
        """The labels of the batch that runs next."""
        assert self._task.classes is not None
        self._members = _Members.of(self._task.classes(labels))

    def see(self, name: str, x: Tensor) -> None:
        """Add the tensor at a tap: the whole axis once for all plain slots, and each pooled slot separately."""
        for key, slot in self._needs[name]:
            fresh = self._members.moments(gather(x, slot) if key else x, in_place=not key)
            if not bool(torch.isfinite(fresh.m2).all()):
                raise ScoreError(
                    f"activations that enter {name} are NaN, infinite or too large to square; check the images and "
                    "the weights"
                )
            before = self._moments.get((name, key))
            self._moments[name, key] = fresh if before is None else _merged(before, fresh)

    def after(self, _batch: int, _labels: Any, _outputs: Any) -> None:
        """Count the images of the batch that is done."""
        there = self._members.images()
        rows = max(len(there), len(self._images))
        self._images = _padded(self._images, rows) + _padded(there, rows)
        self.num_images += self._members.num_images

    def finish(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        """The usable classes or labels, and the moments of each part, merged over all processes."""
        if processes() > 1:
            self._merge_processes()
        if self._members.kind == "labels":
            return self._finished_labels()
        classes = usable_classes([int(n) for n in self._images])
        return classes, {part: self._rows(moments, classes) for part, moments in self._moments.items()}

    def _finished_labels(self) -> tuple[tuple[int, ...], dict[Part, ClassMoments]]:
        half = len(self._images) // 2
        usable = [i for i in range(half) if min(self._images[i], self._images[half + i]) >= 2]
        if not usable:
            raise ScoreError("no label is present in two images and absent in two: use more images")
        found: dict[Part, ClassMoments] = {}
        for part, moments in self._moments.items():
            there = self._rows(moments, usable)
            without = self._rows(moments, [half + i for i in usable])
            found[part] = LabelMoments(there.num_images, there.count, there.mean, there.m2, without)
        return tuple(usable), found

    def _rows(self, moments: ClassMoments, rows: Any) -> ClassMoments:
        chosen = _grown(moments, len(self._images)).of_classes(list(rows))
        return ClassMoments(self._images[list(rows)], chosen.count, chosen.mean, chosen.m2)

    def _merge_processes(self) -> None:
        everyone: list[Any] = [None] * processes()
        dist.all_gather_object(everyone, (self._moments, self._images, self.num_images))
        rows = max(len(images) for _, images, _ in everyone)
        self._images = torch.stack([_padded(images, rows) for _, images, _ in everyone]).sum(0)
        self.num_images = sum(count for _, _, count in everyone)
        self._moments = everyone[0][0]
        for moments, _, _ in everyone[1:]:
            self._moments = {part: _merged(mine, moments[part]) for part, mine in self._moments.items()}


class _Members:
    """Which samples of a batch belong to which row: a class, or a label that is present or absent."""

    def __init__(self, weights: Tensor, kind: str = "classes") -> None:
        """weights: [N, R] for each image, or [N, R, ...] for each of its pixels."""
        self._weights, self.kind = weights.double(), kind
        self._sized: dict[torch.Size, Tensor] = {}

    @classmethod
    def of(cls, classes: Tensor) -> _Members:
        """From whole numbers [N] or [N, ...], or from True and False [N, L]."""
        if not isinstance(classes, Tensor) or not classes.ndim:
            raise DataError("the classes of a task must be a tensor; see secateur.Task")
        classes = classes.detach().cpu()
        if classes.dtype == torch.bool:
            return cls(torch.cat([classes, ~classes], 1), "labels")
        if classes.is_floating_point():
            raise DataError(f"the classes of a task must be whole numbers, or True and False, not {classes.dtype}")
        rows = max(1, int(classes.max()) + 1) if classes.numel() else 1
        spread = F.one_hot(classes.long().clamp(min=0), rows).movedim(-1, 1)  # [N, R, ...]
        return cls(spread * (classes >= 0).unsqueeze(1))

    @property
    def num_images(self) -> int:
        """Images of the batch."""
        return len(self._weights)

    def images(self) -> Tensor:
        """[R] images that have a sample in the row."""
        return (self._weights.flatten(2).amax(2) if self._weights.ndim > 2 else self._weights).gt(0).double().sum(0)

    def moments(self, x: Tensor, in_place: bool) -> ClassMoments:
        """The moments of x [N, C, ...], whose positions are those of the image if `in_place`."""
        if len(x) != len(self._weights):
            raise ScoreError("a layer is called with another number of images than the network; it cannot be scored")
        if in_place and self._weights.ndim > 2 and x.ndim == self._weights.ndim:
            weights = self._at(x.shape[2:])  # [N, R, P]
            values = x.detach().cpu().double().flatten(2).transpose(1, 2)  # [N, P, C]
            count = weights.sum((0, 2))
            return _moments(count, (weights @ values).sum(0), (weights @ values.square()).sum(0))
        sums = image_sums(x.detach())
        weights = self._whole(float(sums.positions[0]))  # [N, R]
        return _moments(weights.sum(0) * sums.positions[0], weights.T @ sums.total, weights.T @ sums.squares)

    def _at(self, size: torch.Size) -> Tensor:
        """[N, R, P]: the pixels of each position's area that belong to the row."""
        if size not in self._sized:
            pixels = self._weights.shape[2:]
            shares = self._weights if pixels == size else POOLS[len(size)](self._weights, size)
            self._sized[size] = shares.flatten(2) * (pixels.numel() / size.numel())
        return self._sized[size]

    def _whole(self, positions: float) -> Tensor:
        """[N, R]: whether an image belongs to the row, or its pixels that do, shared among the positions."""
        return self._weights.flatten(2).sum(2) / positions if self._weights.ndim > 2 else self._weights


def _moments(count: Tensor, total: Tensor, squares: Tensor) -> ClassMoments:
    mean = total / count.clamp(min=torch.finfo(torch.float64).tiny)[:, None]
    m2 = (squares - total * mean).clamp(min=0)
    return ClassMoments(torch.zeros_like(count), count, mean, m2)


def _merged(a: ClassMoments, b: ClassMoments) -> ClassMoments:
    """The moments of both. Counts may be fractions here, so that `ClassMoments.merge` would not do."""
    rows = max(a.classes, b.classes)
    a, b = _grown(a, rows), _grown(b, rows)
    count = a.count + b.count
    share = b.count / count.clamp(min=torch.finfo(torch.float64).tiny)
    delta = b.mean - a.mean
    m2 = a.m2 + b.m2 + delta.square() * (a.count * share)[:, None]
    return ClassMoments(a.num_images, count, a.mean + delta * share[:, None], m2)


def _grown(moments: ClassMoments, rows: int) -> ClassMoments:
    """The same with empty rows for classes that were first seen later."""
    if moments.classes == rows:
        return moments
    return ClassMoments(*(_padded(t, rows) for t in (moments.num_images, moments.count, moments.mean, moments.m2)))


def _padded(values: Tensor, rows: int) -> Tensor:
    return torch.cat([values, values.new_zeros(rows - len(values), *values.shape[1:])])
