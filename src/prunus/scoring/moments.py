"""Count, mean and sum of squared deviations per class and channel, in float64: streamed and merged in constant memory.

The sums of every channel of every image come first: the only step of a pass that reads whole activations. Merging uses
one formula: the (count, mean, m2) of two groups of numbers give those of both together (Chan, Golub and LeVeque 1979).
It is associative up to rounding, so batches, processes and classes can be merged in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from prunus.util.processes import add_up, processes

# A float32 row is recomputed if its squared deviations are less than this fraction of its sum of squares: there the
# difference of the two has fewer than about 5 correct digits.
DOUBTFUL = 1e-2
CHUNK = 1 << 19  # elements per chunk: 2 MB of float32
LONG = 4096  # most elements of a row, if it can be divided


@dataclass(frozen=True, eq=False)
class ImageSums:
    """Sum and sum of squares of each channel in each image over its positions, in float64."""

    positions: Tensor  # [C]
    total: Tensor  # [N, C]
    squares: Tensor  # [N, C]


PreciseRows = tuple[Tensor, Tensor, Tensor, Tensor]  # images, channels, mean and m2 [R] of rows computed in float64


@dataclass(frozen=True, eq=False)
class RowSums:
    """What is kept of one tensor [N, C, ...] until the batch is done: little work, in the tensor's own precision."""

    positions: int
    total: Tensor  # [N, C] sum over positions
    norm: Tensor  # [N, C] square root of the sum of squares
    precise: PreciseRows | None = None  # in the place of rows whose deviations float32 sums would hide

    def plus(self, other: RowSums) -> RowSums:
        """The sums over the positions of both tensors, which have the same images and channels."""
        a, b = to_image_sums([self]), to_image_sums([other])
        return RowSums(self.positions + other.positions, a.total + b.total, (a.squares + b.squares).sqrt_())


def row_sums(x: Tensor) -> RowSums:
    """Sums of x [N, C, ...] over all positions of a channel."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    positions = x.shape[2:].numel()
    if positions == 1:
        total = x.reshape(x.shape[:2]).clone()  # a view would change with the network's in-place operations
        return RowSums(1, total, total.abs())
    if x.device.type != "cpu":
        return row_sums_by_welford(x)
    total, norm = _totals_and_norms(x)  # [N, C] each
    if x.dtype == torch.float64:
        return RowSums(positions, total, norm)
    share = 1 / (positions * (1 - DOUBTFUL))
    margin = torch.addcmul(norm.square(), total, total, value=-share)  # [N, C] below 0: too few digits
    return RowSums(positions, total, norm, _precise_rows(x, margin < 0) if margin.amin().item() < 0 else None)


def row_sums_by_welford(x: Tensor) -> RowSums:
    """The same by one stable kernel, for accelerators. All rows are precise ones."""
    variance, mean = torch.var_mean(x.flatten(2), dim=2, correction=0)  # [N, C] each
    mean, variance, positions = mean.cpu().double(), variance.cpu().double(), x.shape[2:].numel()
    image, channel = torch.ones_like(mean, dtype=torch.bool).nonzero(as_tuple=True)
    return RowSums(positions, mean, mean, (image, channel, mean.flatten(), variance.flatten() * positions))


def to_image_sums(parts: Sequence[RowSums]) -> ImageSums:
    """All parts side by side in float64."""
    sizes = [part.total.shape[1] for part in parts]
    positions = torch.tensor([part.positions for part in parts], dtype=torch.float64)
    total = torch.cat([part.total.cpu() for part in parts], 1).double()  # [N, C]
    squares = torch.cat([part.norm.cpu() for part in parts], 1).double().square_()  # [N, C]
    start = 0
    for size, part in zip(sizes, parts, strict=True):
        if part.precise is not None:
            image, channel, mean, m2 = part.precise
            total[image, start + channel] = mean * part.positions
            squares[image, start + channel] = m2 + mean.square() * part.positions
        start += size
    return ImageSums(positions.repeat_interleave(torch.tensor(sizes)), total, squares)


def image_sums(x: Tensor) -> ImageSums:
    """Sum and sum of squares of each channel of each image of x [N, C, ...], in float64."""
    return to_image_sums([row_sums(x)])


def _totals_and_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and 2-norm per image and channel, [N, C] each: chunk by chunk of whole rows, which stay in the cache."""
    images, channels = x.shape[:2]
    last = x.stride(1) < x.stride(-1) and channels > 1  # channels-last memory, where torch's norm is slow
    pieces, size = 1, CHUNK // 4
    if last:
        rows = x.movedim(1, -1).reshape(images, -1, channels)  # [N, P, C]
    else:
        # torch's norm adds numbers one after the other, and with 100,000 float32 numbers it loses a digit. So a long
        # row is summed in equal pieces.
        positions, size = x.shape[2:].numel(), CHUNK
        pieces = next((q for q in range(1, 65) if positions % q == 0 and positions // q <= LONG), 1)
        rows = x.reshape(images * channels * pieces, -1)  # [N C pieces, P / pieces]
    totals, norms = [], []
    for chunk in reversed(torch.split(rows, max(1, size // rows[0].numel()))):  # the last ones may be in the cache
        totals.append(chunk.sum(1))
        norms.append(chunk.square().sum(1).sqrt_() if last else torch.linalg.vector_norm(chunk, dim=1))
    total, norm = torch.cat(totals[::-1]), torch.cat(norms[::-1])
    if pieces > 1:
        total = total.view(-1, pieces).sum(1)
        norm = torch.linalg.vector_norm(norm.view(-1, pieces), dim=1)
    return total.view(images, channels), norm.view(images, channels)


def _precise_rows(x: Tensor, doubtful: Tensor) -> PreciseRows:
    """The doubtful rows, computed by two passes in float64."""
    image, channel = doubtful.nonzero(as_tuple=True)  # [R] each
    step = max(1, CHUNK // x[0, 0].numel())
    means, m2s = [], []
    for i, c in zip(torch.split(image, step), torch.split(channel, step), strict=True):
        row = x[i, c].flatten(1).double()  # [r, P]
        centre = row.mean(1)
        means.append(centre)
        m2s.append((row - centre[:, None]).square().sum(1))
    return image, channel, torch.cat(means), torch.cat(m2s)


Triple = tuple[Tensor, Tensor, Tensor]  # count, mean, m2; the count broadcasts against the other two
TINY = torch.finfo(torch.float64).tiny  # instead of a count of 0, to divide by


def combine(a: Triple, b: Triple) -> Triple:
    """The (count, mean, m2) of both groups together.

    n = n_a + n_b,  mean = mean_a + d n_b / n,  m2 = m2_a + m2_b + d^2 n_a n_b / n,  with d = mean_b - mean_a.
    Empty groups are neutral. No subtraction can cancel.
    """
    count_a, mean_a, m2_a = a
    count_b, mean_b, m2_b = b
    count = count_a + count_b
    share = count_b / count.clamp(min=TINY)
    delta = mean_b - mean_a
    return count, mean_a + delta * share, m2_a + m2_b + delta.square() * (count_a * share)


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Statistics of a tensor's channels, one row per class. The population variance is `m2 / count`.

    Attributes:
        num_images: Number of images of each class [K].
        count: Number of activations of a channel, images x positions [K].
        mean: Of each class and channel [K, C].
        m2: Sum of squared deviations from the mean [K, C].
    """

    num_images: Tensor
    count: Tensor
    mean: Tensor
    m2: Tensor

    @property
    def classes(self) -> int:
        """Number of classes, including classes without images."""
        return self.mean.shape[0]

    @property
    def channels(self) -> int:
        return self.mean.shape[1]

    @property
    def variance(self) -> Tensor:
        """[K, C], population variance of each class; 0 for a class without images."""
        return self.m2 / self.count.clamp(min=TINY)[:, None]

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all images together."""
        count = self.count.sum()
        weight = (self.count / count.clamp(min=TINY))[:, None]  # [K, 1]
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
        shift = -offset * (self.count / count.clamp(min=TINY))[:, None]  # [K, C]
        spread = _others(self.count[:, None] * offset.square()) - count[:, None] * shift.square()
        return ClassMoments(_others(self.num_images), count, grand + shift, _others(self.m2) + spread.clamp(min=0))

    def select(self, channels: Tensor) -> ClassMoments:
        return replace(self, mean=self.mean[:, channels], m2=self.m2[:, channels])


def _others(values: Tensor) -> Tensor:
    """[K, ...]: for each row the sum of all other rows."""
    zero = torch.zeros_like(values[:1])
    before = torch.cat([zero, values[:-1].cumsum(0)])
    after = torch.cat([values[1:].flip(0).cumsum(0).flip(0), zero])
    return before + after


@dataclass(frozen=True, eq=False)
class LabelMoments(ClassMoments):
    """Moments of the images that have each label. An image may have several, so the rest is counted separately."""

    without: ClassMoments  # of the images that do not have the label

    @cached_property
    def rest(self) -> ClassMoments:
        return self.without

    def total(self) -> Triple:
        """(count [], mean [C], m2 [C]) of all images: any label's two groups together."""
        mine, rest = ((m.count[0], m.mean[0], m.m2[0]) for m in (self, self.without))
        return combine(mine, rest)

    def select(self, channels: Tensor) -> LabelMoments:
        without = self.without.select(channels)
        return replace(self, mean=self.mean[:, channels], m2=self.m2[:, channels], without=without)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over one batch of several tensors side by side, for the k classes that occur in it."""

    classes: Tensor  # [k]
    num_images: Tensor  # [k]
    count: Tensor  # [k, C] number of activations
    total: Tensor  # [k, C]
    squares: Tensor  # [k, C]

    def plus(self, other: ClassSums) -> ClassSums:
        """The sums of two tensors of the same images, position after position."""
        count, total, squares = self.count + other.count, self.total + other.total, self.squares + other.squares
        return ClassSums(self.classes, self.num_images, count, total, squares)


class Accumulator:
    """The running moments of several tensors, with one update per batch for all of them.

    An update changes only the classes of the batch, so a thousand classes cost no more than ten. All columns are in one
    matrix, which saves most of the small operations. Rows are added for classes as they occur.
    """

    def __init__(self, widths: Sequence[int], classes: int = 0) -> None:
        """widths: the numbers of channels of the tensors."""
        self._widths = list(widths)
        tensors, columns = len(self._widths), sum(self._widths)
        self._owner = torch.repeat_interleave(torch.tensor(self._widths, dtype=torch.int64))  # [C] column -> tensor
        self._first = torch.tensor([0, *self._widths[:-1]]).cumsum(0)  # [T] tensor -> its first column
        shapes = (classes,), (classes, tensors), (classes, columns), (classes, columns)
        # Zeros of numpy, unlike torch's, do not touch the memory of classes that never get images.
        self._images, self._count, self._mean, self._m2 = (torch.from_numpy(np.zeros(shape)) for shape in shapes)

    @property
    def num_images(self) -> Tensor:
        return self._images.clone()

    def place(self, column: int) -> tuple[int, int]:
        """The tensor that a column belongs to, and the channel there."""
        owner = int(self._owner[column])
        return owner, column - int(self._first[owner])

    def grow(self, classes: int) -> None:
        """Make room for at least this many classes."""
        more = classes - len(self._images)
        if more > 0:
            self._images, self._count, self._mean, self._m2 = (
                torch.cat([t, t.new_zeros(more, *t.shape[1:])])
                for t in (self._images, self._count, self._mean, self._m2)
            )

    def add(self, batch: ClassSums) -> None:
        """Add a batch with the columns of `widths`.

        m2 = sum of squares - n mean^2 in float64 has 16 digits minus those of mean^2 / variance: 8 digits remain for a
        channel with mean 10,000 and deviation 1.
        """
        rows = batch.classes
        self.grow(int(rows.max()) + 1 if len(rows) else 0)
        mean = batch.total / batch.count.clamp(min=TINY)
        m2 = (batch.squares - batch.total * mean).clamp_(min=0)
        mine = (self._count[rows][:, self._owner], self._mean[rows], self._m2[rows])
        _, self._mean[rows], self._m2[rows] = combine(mine, (batch.count, mean, m2))
        self._count[rows] += batch.count[:, self._first]
        self._images[rows] += batch.num_images

    def merge_processes(self) -> None:
        """Merge with the other processes, which may have seen other classes.

        mean = sum n_p mean_p / n,  m2 = sum (m2_p + n_p (mean_p - mean)^2): `combine` for any number of groups.
        """
        if processes() == 1:
            return
        sizes = torch.zeros(processes())
        sizes[dist.get_rank()] = len(self._images)
        self.grow(int(add_up(sizes).max()))
        count, images = add_up(self._count), add_up(self._images)
        mine = self._count[:, self._owner]  # [K, C]
        mean = add_up(mine * self._mean) / count[:, self._owner].clamp(min=TINY)
        m2 = add_up(self._m2 + mine * (self._mean - mean).square())
        self._images, self._count, self._mean, self._m2 = images, count, mean, m2

    def result(self, classes: Sequence[int] | None = None) -> list[ClassMoments]:
        """The moments so far of these classes (None: all), tensor by tensor; they may share this object's memory."""
        parts = [self._images, self._count, self._mean, self._m2]
        every = classes is None or list(classes) == list(range(len(self._images)))
        images, count, mean, m2 = parts if every else (part[list(classes or ())] for part in parts)
        columns = count.unbind(1), torch.split(mean, self._widths, 1), torch.split(m2, self._widths, 1)
        return [ClassMoments(images, *triple) for triple in zip(*columns, strict=True)]
