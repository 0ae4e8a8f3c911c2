"""Count, mean and sum of squared deviations per class and channel, in float64: streamed and merged in constant memory.

Everything uses one formula: the (count, mean, m2) of two groups of numbers give those of both together (Chan, Golub and
LeVeque 1979). It is associative up to rounding, so batches, processes and classes can be merged in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from prunus.errors import ScoreError

Triple = tuple[Tensor, Tensor, Tensor]  # count, mean, m2; the count broadcasts against the other two


def combine(a: Triple, b: Triple) -> Triple:
    """The (count, mean, m2) of both groups together.

    n = n_a + n_b,  mean = mean_a + d n_b / n,  m2 = m2_a + m2_b + d^2 n_a n_b / n,  with d = mean_b - mean_a.
    Empty groups are neutral. No subtraction can cancel.
    """
    count_a, mean_a, m2_a = a
    count_b, mean_b, m2_b = b
    count = count_a + count_b
    share = count_b / count.clamp(min=1)
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta.square() * (count_a * share)


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Statistics of a tensor's channels, one row per class. The population variance is `m2 / count`."""

    num_images: Tensor  # [K] number of images of each class
    count: Tensor  # [K] number of activations of a channel: images x positions
    mean: Tensor  # [K, C]
    m2: Tensor  # [K, C] sum of squared deviations from the mean

    @property
    def classes(self) -> int:
        """Number of classes, including classes without images."""
        return self.mean.shape[0]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.mean.shape[1]

    @property
    def variance(self) -> Tensor:
        """[K, C], population variance of each class; 0 for a class without images."""
        return self.m2 / self.count.clamp(min=1)[:, None]

    def merge(self, other: ClassMoments) -> ClassMoments:
        """The moments of both sets of images together."""
        mine, its = self._triple(), other._triple()
        count, mean, m2 = combine(mine, its)
        return ClassMoments(self.num_images + other.num_images, count[:, 0], mean, m2)

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all classes together."""
        count = self.count.sum()
        weight = (self.count / count.clamp(min=1))[:, None]  # [K, 1]
        mean = (weight * self.mean).sum(0)  # [C]
        spread = self.count[:, None] * (self.mean - mean).square()  # [K, C]
        return count, mean, self.m2.sum(0) + spread.sum(0)

    @cached_property
    def rest(self) -> ClassMoments:
        """For each class the moments of all other classes together: the Q of the paper's (P, Q) partition.

        With d_c = mean_c - mean of all, the others' mean is the mean of all - d_c n_c / (n - n_c). Sums over the other
        classes are computed from the classes before and after, because a difference from the total would cancel.
        """
        _, grand, _ = self.total()
        count = _others(self.count)  # [K]
        offset = self.mean - grand  # [K, C]
        shift = -offset * (self.count / count.clamp(min=1))[:, None]  # [K, C]
        spread = _others(self.count[:, None] * offset.square()) - count[:, None] * shift.square()
        return ClassMoments(_others(self.num_images), count, grand + shift, _others(self.m2) + spread.clamp(min=0))

    def select(self, channels: Tensor) -> ClassMoments:
        """The moments of some of the channels."""
        return ClassMoments(self.num_images, self.count, self.mean[:, channels], self.m2[:, channels])

    def of_classes(self, classes: Sequence[int]) -> ClassMoments:
        """The moments of some of the classes."""
        rows = torch.as_tensor(classes)
        return ClassMoments(self.num_images[rows], self.count[rows], self.mean[rows], self.m2[rows])

    def _triple(self) -> Triple:
        return self.count[:, None], self.mean, self.m2


def empty(classes: int, channels: int) -> ClassMoments:
    """The moments of no images: the neutral element of merge."""
    vector, matrix = torch.zeros(classes, dtype=torch.float64), torch.zeros(classes, channels, dtype=torch.float64)
    return ClassMoments(vector, vector.clone(), matrix, matrix.clone())


@dataclass(frozen=True, eq=False)
class ImageSums:
    """Sum and sum of squares of each channel in each image over its positions, in float64.

    Rows of float32 activations in which the sum of squares would hide the deviations are recomputed before.
    """

    positions: Tensor  # [C]
    total: Tensor  # [N, C]
    squares: Tensor  # [N, C]


@dataclass(frozen=True, eq=False)
class BatchMoments:
    """The moments of one batch, for the k classes that occur in it."""

    classes: Tensor  # [k]
    num_images: Tensor  # [k]
    positions: Tensor  # [C]
    mean: Tensor  # [k, C]
    m2: Tensor  # [k, C]


def by_class(images: ImageSums, labels: Tensor) -> BatchMoments:
    """The moments of the images of each class, by two matrix products over the batch.

    m2 = sum of squares - n mean^2 in float64 has 16 digits minus those of mean^2 / variance: 8 digits remain for a
    channel with mean 10,000 and deviation 1.
    """
    present, row = torch.unique(labels, return_inverse=True)  # [k], [N]
    member = torch.zeros(len(present), len(labels), dtype=torch.float64)  # [k, N]
    member[row, torch.arange(len(labels))] = 1
    number = member.sum(1)  # [k]
    total = member @ images.total  # [k, C]
    mean = total / (number[:, None] * images.positions)
    m2 = (member @ images.squares).sub_(total.mul_(mean)).clamp_(min=0)
    return BatchMoments(present, number, images.positions, mean, m2)


def update(moments: ClassMoments, images: ImageSums, labels: Tensor) -> ClassMoments:
    """The moments with a batch added, whose channels all have as many positions; `moments` is not changed."""
    batch, fresh = by_class(images, labels), empty(moments.classes, moments.channels)
    fresh.num_images[batch.classes] = batch.num_images
    fresh.count[batch.classes] = batch.num_images * images.positions[0]
    fresh.mean[batch.classes] = batch.mean
    fresh.m2[batch.classes] = batch.m2
    return moments.merge(fresh)


class Accumulator:
    """The running moments of several tensors, with one update per batch for all of them.

    An update changes only the classes of the batch, so a thousand classes cost no more than ten. `widths` are the
    numbers of channels of the tensors; all columns are in one matrix, which saves most of the small operations.
    """

    def __init__(self, classes: int, widths: Sequence[int]) -> None:
        self._widths = list(widths)
        self._owner = torch.repeat_interleave(torch.tensor(self._widths, dtype=torch.int64))  # [C] column -> tensor
        self._first = torch.tensor([0, *self._widths[:-1]]).cumsum(0)  # [T] tensor -> its first column
        columns = sum(self._widths)
        self._images = torch.zeros(classes, dtype=torch.float64)
        self._count = torch.zeros(classes, len(self._widths), dtype=torch.float64)  # [K, T]
        # A row is set to zero when its class is first seen, so memory for classes that never occur is never touched.
        self._mean = torch.empty(classes, columns, dtype=torch.float64)
        self._m2 = torch.empty(classes, columns, dtype=torch.float64)

    @property
    def num_images(self) -> Tensor:
        """[K] number of images of each class so far."""
        return self._images.clone()

    def add(self, batch: BatchMoments) -> None:
        """Add a batch with the columns of `widths`."""
        if len(batch.positions) != len(self._owner):
            raise ScoreError(f"expected {len(self._owner)} channels in total, got {len(batch.positions)}")
        rows = batch.classes
        self._clear(rows)
        fresh = batch.num_images[:, None] * batch.positions[self._first]  # [k, T]
        before = self._count[rows]  # [k, T]
        mine = (before[:, self._owner], self._mean[rows], self._m2[rows])
        _, self._mean[rows], self._m2[rows] = combine(mine, (fresh[:, self._owner], batch.mean, batch.m2))
        self._count[rows] = before + fresh
        self._images[rows] += batch.num_images

    def sum_over(self, all_reduce: Callable[[Tensor], Tensor]) -> None:
        """Merge with the other processes: `all_reduce` sums a tensor over all of them.

        mean = sum n_p mean_p / n,  m2 = sum (m2_p + n_p (mean_p - mean)^2): `combine` for any number of groups.
        """
        self._clear(torch.arange(len(self._images)))
        count = all_reduce(self._count)
        images = all_reduce(self._images)
        mine = self._count[:, self._owner]  # [K, C]
        mean = all_reduce(mine * self._mean) / count[:, self._owner].clamp(min=1)
        m2 = all_reduce(self._m2 + mine * (self._mean - mean).square())
        self._images, self._count, self._mean, self._m2 = images, count, mean, m2

    def result(self, classes: Sequence[int] | None = None) -> list[ClassMoments]:
        """The moments so far of these classes (None: all), tensor by tensor; they may share this object's memory."""
        everything = list(range(len(self._images)))
        chosen = everything if classes is None else list(classes)
        self._clear(torch.tensor(chosen, dtype=torch.int64))
        whole = ClassMoments(self._images, self._count, self._mean, self._m2)
        part = whole if chosen == everything else whole.of_classes(chosen)
        means, m2s = torch.split(part.mean, self._widths, 1), torch.split(part.m2, self._widths, 1)
        return [ClassMoments(part.num_images, *triple) for triple in zip(part.count.unbind(1), means, m2s, strict=True)]

    def _clear(self, classes: Tensor) -> None:
        """Zero the rows of classes that have no images yet."""
        fresh = classes[self._images[classes] == 0]
        self._mean[fresh] = 0
        self._m2[fresh] = 0


def _others(values: Tensor) -> Tensor:
    """[K, ...]: for each row the sum of all other rows."""
    zero = torch.zeros_like(values[:1])
    before = torch.cat([zero, values[:-1].cumsum(0)])
    after = torch.cat([values[1:].flip(0).cumsum(0).flip(0), zero])
    return before + after


# Each class against the rest, and the unweighted mean over classes: shared by gsd, fdr, abs_snr and ttest.

SMALLEST = 1e-200  # a denominator of 0, of a channel that is dead for a class and a ridge of 0, counts as this


@dataclass(frozen=True, eq=False)
class Partition:
    """A channel's activations split into a class and all others (section 7.2 of the paper), for every class at once."""

    gap: Tensor  # [K, C] mean of the class - mean of the rest
    variance: Tensor  # [K, C] population variance of the class
    rest_variance: Tensor  # [K, C]
    num_images: Tensor  # [K, 1]
    num_rest_images: Tensor  # [K, 1]


def over(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, finite for denominators of 0: 0 / 0 is 0, and anything else is very large."""
    return numerator / denominator.clamp(min=SMALLEST)


def one_versus_rest(moments: ClassMoments, measure: Callable[[Partition], Tensor]) -> Tensor:
    """(1 / C) sum over classes c of measure(F^c, F^-c): Eqn. 8 of the paper. -> [C]"""
    rest = moments.rest
    partition = Partition(
        moments.mean - rest.mean,
        moments.variance,
        rest.variance,
        moments.num_images[:, None],
        rest.num_images[:, None],
    )
    return measure(partition).mean(0)
