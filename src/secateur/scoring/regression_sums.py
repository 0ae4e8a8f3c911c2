"""Inputs and outputs of a layer as the rows of a regression: streamed as sums of products, or kept row by row.

Both kinds hold float64 rows x [rows, groups, n] and y [rows, groups, o] of one layer, each group of a grouped
convolution separately.
"""

from __future__ import annotations

from torch import Tensor, arange, cat, cov, zeros


class GramSums:
    """Number of rows, sums and products. Memory does not grow with the number of rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.x = self.y = self.xx = self.xy = self.yy = zeros(())

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows."""
        x, y = x.transpose(0, 1), y.transpose(0, 1)  # [groups, rows, n], [groups, rows, o]
        self.rows += x.shape[1]
        self.x = self.x + x.sum(1)  # [groups, n]
        self.y = self.y + y.sum(1)  # [groups, o]
        self.xx = self.xx + x.mT @ x  # [groups, n, n]
        self.xy = self.xy + x.mT @ y  # [groups, n, o]
        self.yy = self.yy + (y * y).sum(1)  # [groups, o]

    def __add__(self, other: GramSums) -> GramSums:
        total = GramSums()
        total.rows = self.rows + other.rows
        for name in ("x", "y", "xx", "xy", "yy"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> GramSums:
        """The sums of x at `columns` [groups, m] and of y = weight x + bias. Any y added before is ignored."""
        few, n = GramSums(), self.xx.shape[2]
        few.rows = self.rows
        product = (weight @ self.x.unsqueeze(2)).squeeze(2)  # [groups, o]
        half = self.xx.gather(1, columns.unsqueeze(2).expand(-1, -1, n))  # [groups, m, n]
        few.x, few.y = self.x.gather(1, columns), product + self.rows * bias
        few.xx = half.gather(2, columns.unsqueeze(1).expand(-1, columns.shape[1], -1))  # [groups, m, m]
        few.xy = half @ weight.mT + few.x.unsqueeze(2) * bias.unsqueeze(1)  # [groups, m, o]
        few.yy = ((weight @ self.xx) * weight).sum(2) + 2 * bias * product + self.rows * bias * bias
        return few

    def covariance(self, group: int) -> Tensor:
        """Covariance of x in one group: [n, n]."""
        mean = self.x[group] / self.rows
        return self.xx[group] / self.rows - mean[:, None] * mean

    def variances(self, group: int) -> Tensor:
        """Variances of x in one group: [n]."""
        return self.xx[group].diagonal() / self.rows - (self.x[group] / self.rows) ** 2

    def mean(self) -> Tensor:
        """Mean of y: [groups, o]."""
        return self.y / self.rows

    def variance(self) -> Tensor:
        """Variance of y: [groups, o]."""
        return self.yy / self.rows - (self.y / self.rows) ** 2


class KeptRows:
    """The rows themselves. With fewer rows than inputs they take less memory than their products."""

    def __init__(self) -> None:
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(x.shape[1] for x in self._x)

    @property
    def x(self) -> Tensor:
        """All inputs: [groups, rows, n]."""
        return cat(self._x, 1)

    @property
    def y(self) -> Tensor:
        """All outputs: [groups, rows, o]."""
        return cat(self._y, 1)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add rows."""
        self._x.append(x.transpose(0, 1))
        self._y.append(y.transpose(0, 1))

    def __add__(self, other: KeptRows) -> KeptRows:
        total = KeptRows()
        total._x, total._y = self._x + other._x, self._y + other._y
        return total

    def summed(self) -> GramSums:
        """The same rows as sums, equal to the bit to sums that were streamed from the start."""
        sums = GramSums()
        for x, y in zip(self._x, self._y, strict=True):
            sums.add(x.transpose(0, 1), y.transpose(0, 1))
        return sums

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> KeptRows:
        """The rows of x at `columns` [groups, m] and of y = weight x + bias. Any y added before is ignored."""
        few = KeptRows()
        for x in self._x:  # [groups, rows, n]
            few._x.append(x.gather(2, columns.unsqueeze(1).expand(-1, x.shape[1], -1)))
            few._y.append(x @ weight.mT + bias.unsqueeze(1))
        return few

    def covariance(self, group: int) -> Tensor:
        """Covariance of x in one group: [n, n]."""
        x = cat([part[group] for part in self._x])  # [rows, n]
        return cov(x.T, correction=0).reshape(x.shape[1], -1)

    def variances(self, group: int) -> Tensor:
        """Variances of x in one group: [n]."""
        return cat([part[group] for part in self._x]).var(0, correction=0)

    def mean(self) -> Tensor:
        """Mean of y: [groups, o]."""
        return self.y.mean(1)

    def variance(self) -> Tensor:
        """Variance of y: [groups, o]."""
        return self.y.var(1, correction=0)


RegressionSums = GramSums | KeptRows
Parts = tuple[RegressionSums, RegressionSums]  # rows to fit on, held-out rows

HELD_OUT = 5  # every fifth image is held out, to choose a ridge


def add_apart(parts: Parts, first: int, x: Tensor, y: Tensor) -> None:
    """Add rows x [N, P, groups, n] and y [N, P, groups, o] of N images to the fitted or the held-out part.

    first: number of the first image among all images of the pass.
    """
    held = arange(first, first + len(x)) % HELD_OUT == HELD_OUT - 1
    for part, images in zip(parts, (~held, held), strict=True):
        if bool(images.any()):
            part.add(x[images].flatten(0, 1), y[images].flatten(0, 1))


def together(*parts: RegressionSums) -> RegressionSums:
    """The rows of all parts that have any; the parts are of the same kind."""
    found = [part for part in parts if part.rows] or list(parts[:1])
    total = found[0]
    for part in found[1:]:
        total = total + part  # type: ignore[operator]
    return total
