"""Count, mean and sum of squared deviations per class and channel, in float64: they stream, merge and never grow.

One formula carries everything: two groups of numbers with known (count, mean, m2) make one (Chan, Golub and LeVeque
1979). It is associative up to rounding, so batches, processes and classes may be merged in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.errors import ScoreError

Triple = tuple[Tensor, Tensor, Tensor]  # count, mean, m2; the count broadcasts against the other two


def combine(a: Triple, b: Triple) -> Triple:
    """The (count, mean, m2) of both groups together.

    n = n_a + n_b,  mean = mean_a + d n_b / n,  m2 = m2_a + m2_b + d^2 n_a n_b / n,  with d = mean_b - mean_a.
    Empty groups are neutral. Nothing is subtracted that could cancel.
    """
    count_a, mean_a, m2_a = a
    count_b, mean_b, m2_b = b
    count = count_a + count_b
    share = count_b / count.clamp(min=1)
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta.square() * (count_a * share)


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Statistics of a tensor's channels, one row a class. Population variance is `m2 / count`."""

    images: Tensor  # [K] how many images of each class
    count: Tensor  # [K] how many activations of a channel: images x positions
    mean: Tensor  # [K, C]
    m2: Tensor  # [K, C] sum of squared deviations from the mean

    @property
    def classes(self) -> int:
        """Number of classes, those without images among them."""
        return self.mean.shape[0]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.mean.shape[1]

    @property
    def variance(self) -> Tensor:
        """[K, C], population variance of each class; 0 where a class has no images."""
        return self.m2 / self.count.clamp(min=1)[:, None]

    def merge(self, other: ClassMoments) -> ClassMoments:
        """The moments of both sets of images together."""
        mine, its = self._triple(), other._triple()
        count, mean, m2 = combine(mine, its)
        return ClassMoments(self.images + other.images, count[:, 0], mean, m2)

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all classes together."""
        count = self.count.sum()
        weight = (self.count / count.clamp(min=1))[:, None]  # [K, 1]
        mean = (weight * self.mean).sum(0)  # [C]
        spread = self.count[:, None] * (self.mean - mean).square()  # [K, C]
        return count, mean, self.m2.sum(0) + spread.sum(0)

    def rest(self) -> ClassMoments:
        """For each class the moments of all the others together: the Q of the paper's (P, Q) partition.

        With d_c = mean_c - mean of all, the others' mean lies at -d_c n_c / (n - n_c) from the mean of all. Sums over
        the other classes are sums of what lies before and after, not differences from the total, which would cancel.
        """
        _, grand, _ = self.total()
        count = _others(self.count)  # [K]
        offset = self.mean - grand  # [K, C]
        shift = -offset * (self.count / count.clamp(min=1))[:, None]  # [K, C]
        spread = _others(self.count[:, None] * offset.square()) - count[:, None] * shift.square()
        return ClassMoments(_others(self.images), count, grand + shift, _others(self.m2) + spread.clamp(min=0))

    def select(self, channels: Tensor) -> ClassMoments:
        """The moments of some of the channels."""
        return ClassMoments(self.images, self.count, self.mean[:, channels], self.m2[:, channels])

    def of_classes(self, classes: Sequence[int]) -> ClassMoments:
        """The moments of some of the classes."""
        rows = torch.as_tensor(classes, device=self.mean.device)
        return ClassMoments(self.images[rows], self.count[rows], self.mean[rows], self.m2[rows])

    def _triple(self) -> Triple:
        return self.count[:, None], self.mean, self.m2


def empty(classes: int, channels: int, device: torch.device | str = "cpu") -> ClassMoments:
    """The moments of no image at all: the neutral element of merge."""
    double = {"dtype": torch.float64, "device": device}
    return ClassMoments(
        torch.zeros(classes, **double),  # type: ignore[arg-type]
        torch.zeros(classes, **double),  # type: ignore[arg-type]
        torch.zeros(classes, channels, **double),  # type: ignore[arg-type]
        torch.zeros(classes, channels, **double),  # type: ignore[arg-type]
    )


@dataclass(frozen=True, eq=False)
class ImageMoments:
    """Mean and m2 of each channel in each image, over `positions` positions each."""

    positions: int
    mean: Tensor  # [N, C] float64
    m2: Tensor  # [N, C] float64


def by_class(images: ImageMoments, labels: Tensor) -> tuple[Tensor, ClassMoments]:
    """The classes that occur in `labels` [N], and the moments of the images of each: [k], rows k of ClassMoments."""
    present, row = labels.unique(return_inverse=True)  # [k], [N]
    member = torch.zeros(len(present), len(labels), dtype=torch.float64, device=images.mean.device)  # [k, N]
    member[row, torch.arange(len(labels), device=row.device)] = 1
    number = member.sum(1)  # [k]
    mean = (member @ images.mean) / number[:, None]  # [k, C]
    spread = (images.mean - mean[row]).square()  # [N, C]
    m2 = member @ (images.m2 + images.positions * spread)  # [k, C]
    return present, ClassMoments(number, number * images.positions, mean, m2)


def update(moments: ClassMoments, images: ImageMoments, labels: Tensor) -> ClassMoments:
    """The moments with a batch of images added; `moments` itself stays as it is."""
    accumulator = Accumulator(moments.classes, moments.channels, moments.mean.device)
    accumulator.merge(torch.arange(moments.classes, device=moments.mean.device), moments)
    accumulator.update(images, labels)
    return accumulator.result()


class Accumulator:
    """The running moments of one tensor: touches only the classes of a batch, so a thousand classes cost no more."""

    def __init__(self, classes: int, channels: int, device: torch.device | str = "cpu") -> None:
        self._moments = empty(classes, channels, device)

    def update(self, images: ImageMoments, labels: Tensor) -> None:
        """Add a batch: labels [N] lie in 0 .. classes - 1."""
        if images.mean.shape[1] != self._moments.channels:
            raise ScoreError(
                f"expected {self._moments.channels} channels as in the batches before, not {images.mean.shape[1]}"
            )
        self.merge(*by_class(images, labels))

    def merge(self, classes: Tensor, other: ClassMoments) -> None:
        """Add the moments `other`, whose rows are the given classes, each at most once."""
        mine = self._moments.of_classes(classes)  # type: ignore[arg-type]
        both = mine.merge(other)
        for whole, rows in zip(_fields(self._moments), _fields(both), strict=True):
            whole[classes] = rows

    def result(self) -> ClassMoments:
        """What has been seen so far, as a value of its own."""
        return ClassMoments(*(tensor.clone() for tensor in _fields(self._moments)))


def _fields(moments: ClassMoments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return moments.images, moments.count, moments.mean, moments.m2


def _others(values: Tensor) -> Tensor:
    """[K, ...]: for each row the sum of all other rows."""
    zero = torch.zeros_like(values[:1])
    before = torch.cat([zero, values[:-1].cumsum(0)])
    after = torch.cat([values[1:].flip(0).cumsum(0).flip(0), zero])
    return before + after
