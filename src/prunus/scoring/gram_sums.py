"""Inputs and outputs of a layer as the rows of a regression: streamed as sums of products, or kept row by row.

Both kinds take rows x [rows, groups, n] and y [rows, groups, o] of one layer, each group of a grouped convolution
separately. Products of a few thousand rows are computed in the rows' own precision, around their mean, and added up in
float64: in float32 that is twice as fast, and its error is far below the smallest ridge.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

from torch import Tensor, arange, cat, float32, float64, stack, zeros

AT_ONCE = 4096  # rows that are multiplied at once; fewer if they are wide
NUMBERS = 2**24  # of all inputs of these rows
STRIP = 256  # columns of a Gram matrix that are computed at once


class Sums(NamedTuple):
    """Sums over rows."""

    x: Tensor  # [groups, n]
    y: Tensor  # [groups, o]
    xx: Tensor  # [groups, n, n] of x x'
    xy: Tensor  # [groups, n, o] of x y'
    yy: Tensor  # [groups, o] of the squares of y


class GramSums:
    """Number of rows, sums and products. Memory does not grow with the number of rows."""

    def __init__(self, rows: int = 0, sums: Sums | None = None) -> None:
        self.rows, self._sums = rows, sums
        self._waiting: list[Tensor] = []  # [groups, AT_ONCE, n], [groups, AT_ONCE, o]
        self._filled = 0  # rows that wait

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows. The axes of x after the second one are flattened."""
        x, y = _on_cpu(x), _on_cpu(y)
        n = math.prod(x.shape[2:])
        if not self._waiting:
            size = max(1, min(AT_ONCE, NUMBERS // (x.shape[1] * n))) if n else AT_ONCE
            self._waiting = [t.new_empty(t.shape[1], size, m) for t, m in ((x, n), (y, y.shape[2]))]
        self.rows += len(x)
        while len(x):
            count = min(len(x), self._waiting[0].shape[1] - self._filled)
            for buffer, rows in zip(self._waiting, (x, y), strict=True):
                place = buffer[:, self._filled : self._filled + count]
                place.view(*place.shape[:2], *rows.shape[2:]).copy_(rows[:count].transpose(0, 1))
            x, y, self._filled = x[count:], y[count:], self._filled + count
            if self._filled == self._waiting[0].shape[1]:
                self._multiply()

    def _multiply(self) -> None:
        """Add the products of the waiting rows: with x = u + m, x'x = u'u + m s' + s m' + rows m m', s the sum of u."""
        x, y = (buffer[:, : self._filled] for buffer in self._waiting)  # overwritten
        rows, self._filled = self._filled, 0
        mean_x, mean_y = x.mean(1), y.mean(1)
        x -= mean_x.unsqueeze(1)
        y -= mean_y.unsqueeze(1)
        rest_x, rest_y, mean_x, mean_y = x.sum(1).double(), y.sum(1).double(), mean_x.double(), mean_y.double()
        sum_x, sum_y = rest_x + rows * mean_x, rest_y + rows * mean_y
        if self._sums is None:
            (groups, n), o = sum_x.shape, sum_y.shape[1]
            self._sums = Sums(*(sum_x.new_zeros(groups, *shape) for shape in ((n,), (o,), (n, n), (n, o), (o,))))
        left = stack([mean_x, sum_x], 2)
        self._sums.x.add_(sum_x)
        self._sums.y.add_(sum_y)
        _add_gram(self._sums.xx.baddbmm_(left, stack([rest_x, mean_x], 1)), x)
        self._sums.xy.baddbmm_(left, stack([rest_y, mean_y], 1)).add_(x.mT @ y)
        self._sums.yy.add_((y * y).sum(1).double() + mean_y * (rest_y + sum_y))

    @property
    def sums(self) -> Sums:
        """The sums of all rows so far."""
        if self._filled:
            self._multiply()
        return self._sums or Sums(*[zeros((), dtype=float64)] * 5)

    def __add__(self, other: GramSums) -> GramSums:
        pairs = zip(self.sums, other.sums, strict=True)
        return GramSums(self.rows + other.rows, Sums(*(mine + its for mine, its in pairs)))

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> GramSums:
        """The sums of x at `columns` [groups, m] and of y = weight x + bias. Any y added before is ignored."""
        sums = self.sums
        product = (weight @ sums.x.unsqueeze(2)).squeeze(2)  # [groups, o]
        half = sums.xx.gather(1, columns.unsqueeze(2).expand(-1, -1, sums.xx.shape[2]))  # [groups, m, n]
        x = sums.x.gather(1, columns)
        narrow = Sums(
            x=x,
            y=product + self.rows * bias,
            xx=half.gather(2, columns.unsqueeze(1).expand(-1, columns.shape[1], -1)),
            xy=half @ weight.mT + x.unsqueeze(2) * bias.unsqueeze(1),
            yy=((weight @ sums.xx) * weight).sum(2) + 2 * bias * product + self.rows * bias * bias,
        )
        return GramSums(self.rows, narrow)

    def covariance(self, group: int) -> Tensor:
        """Covariance of x in one group: [n, n]."""
        mean = self.means(group)
        return self.sums.xx[group] / self.rows - mean[:, None] * mean

    def variances(self, group: int) -> Tensor:
        """Variances of x in one group: [n]."""
        return self.sums.xx[group].diagonal() / self.rows - self.means(group) ** 2

    def means(self, group: int) -> Tensor:
        """Means of x in one group: [n]."""
        return self.sums.x[group] / self.rows

    def output_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y: [groups, o] each."""
        mean = self.sums.y / self.rows
        return mean, self.sums.yy / self.rows - mean**2


class KeptRows:
    """The rows themselves. With fewer rows than inputs they take less memory than their products."""

    def __init__(self, parts: list[tuple[Tensor, Tensor]] | None = None) -> None:
        self._parts = parts or []  # [rows, groups, n], [rows, groups, o]

    @property
    def rows(self) -> int:
        return sum(len(x) for x, _ in self._parts)

    @property
    def x(self) -> Tensor:
        """In float64: [groups, rows, n]."""
        return cat([x for x, _ in self._parts]).transpose(0, 1).double()

    @property
    def y(self) -> Tensor:
        """All outputs in float64: [groups, rows, o]."""
        return cat([y for _, y in self._parts]).transpose(0, 1).double()

    def add(self, x: Tensor, y: Tensor) -> None:
        self._parts.append((_on_cpu(x).flatten(2), _on_cpu(y)))

    def __add__(self, other: KeptRows) -> KeptRows:
        return KeptRows(self._parts + other._parts)

    def summed(self) -> GramSums:
        """The same rows as sums."""
        sums = GramSums()
        for x, y in self._parts:
            sums.add(x, y)
        return sums

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> KeptRows:
        parts = []
        for x, _ in self._parts:  # [rows, groups, n]
            few = x.gather(2, columns.expand(len(x), -1, -1))
            parts.append((few, (x.double().transpose(0, 1) @ weight.mT + bias.unsqueeze(1)).transpose(0, 1)))
        return KeptRows(parts)

    def covariance(self, group: int) -> Tensor:
        x = cat([x[:, group] for x, _ in self._parts])  # [rows, n]
        x = (x - x.mean(0)).unsqueeze(0)
        products = zeros(1, x.shape[2], x.shape[2], dtype=float64, device=x.device)
        _add_gram(products, x)
        rest = x[0].sum(0).double() / x.shape[1]  # what rounding has left of the mean
        return products[0] / x.shape[1] - rest[:, None] * rest

    def variances(self, group: int) -> Tensor:
        return cat([x[:, group] for x, _ in self._parts]).double().var(0, correction=0)

    def means(self, group: int) -> Tensor:
        return cat([x[:, group] for x, _ in self._parts]).double().mean(0)

    def output_moments(self) -> tuple[Tensor, Tensor]:
        return self.y.mean(1), self.y.var(1, correction=0)


RegressionSums = GramSums | KeptRows

HELD_OUT = 5  # every fifth image is held out, to choose a ridge


def held_apart(images: range) -> tuple[Tensor, int]:
    """Numbers within a chunk of these images, those to fit on first, and how many these are."""
    held = arange(images.start, images.stop) % HELD_OUT == HELD_OUT - 1
    return held.int().argsort(stable=True), int((~held).sum())


class SplitRows:
    """Rows of images to fit on and rows of held-out images.

    They are kept themselves until there are as many as inputs. From then on their sums are smaller.
    """

    def __init__(self) -> None:
        self.fitted: RegressionSums = KeptRows()
        self.held_out: RegressionSums = KeptRows()

    @property
    def rows(self) -> int:
        return self.fitted.rows + self.held_out.rows

    @cached_property
    def whole(self) -> RegressionSums:
        """All rows together, once all are added."""
        return together(self.fitted, self.held_out)

    def add(self, num_fitted: int, x: Tensor, y: Tensor) -> None:
        """Add rows x [N, P, groups, ...] and y [N, P, groups, o] of N images, the first `num_fitted` to fit on."""
        for part, images in ((self.fitted, slice(num_fitted)), (self.held_out, slice(num_fitted, None))):
            if len(x[images]):
                part.add(x[images].flatten(0, 1), y[images].flatten(0, 1))
        if isinstance(self.fitted, KeptRows) and self.rows >= math.prod(x.shape[3:]):
            assert isinstance(self.held_out, KeptRows)
            self.fitted, self.held_out = self.fitted.summed(), self.held_out.summed()


def together(*parts: RegressionSums) -> RegressionSums:
    """The rows of all parts that have any; the parts are of the same kind."""
    filled = [part for part in parts if part.rows] or list(parts[:1])
    total = filled[0]
    for part in filled[1:]:
        total = total + part  # type: ignore[operator]
    return total


def _add_gram(total: Tensor, x: Tensor) -> None:
    """Add x'x, of which only the blocks on and below the diagonal are computed."""
    for start in range(0, x.shape[2], STRIP):
        end = start + STRIP
        product = x[:, :, start:].mT @ x[:, :, start:end]
        total[:, start:, start:end] += product
        total[:, start:end, end:] += product[:, STRIP:].mT


def _on_cpu(x: Tensor) -> Tensor:
    """x in float32 at least; on the CPU if the device has no float64."""
    x = (x.cpu() if x.device.type == "mps" else x).detach()
    return x if x.dtype in (float32, float64) else x.float()
