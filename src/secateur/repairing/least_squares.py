"""Ridge least squares for the weights of one layer, from sums that stream: memory does not grow with the images.

    minimise  sum over rows |y - W x - c|^2  +  ridge * s * |W - W0|^2,    s = mean diagonal of the centred Gram of x

W0 are the weights as cut, so that a ridge without end leaves the layer as it was; c, where the layer has a place for
it, is not penalised. All in float64, for each group of a grouped convolution by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CAREFUL = (1e-1, 1.0, 10.0)  # where there are too few rows


@dataclass(frozen=True, eq=False)
class Fit:
    """New weights and the constant that goes with them."""

    weight: Tensor  # [groups, o, n]
    constant: Tensor  # [groups, o]
    ridge: float


class Sums:
    """What least squares needs of float64 rows x [rows, groups, n], y [rows, groups, o]: counts, sums, products."""

    def __init__(self) -> None:
        self.rows = 0
        self.x = self.y = self.xx = self.xy = self.yy = torch.zeros(())

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take more rows in."""
        x, y = x.transpose(0, 1), y.transpose(0, 1)  # [groups, rows, n], [groups, rows, o]
        self.rows += x.shape[1]
        self.x = self.x + x.sum(1)  # [groups, n]
        self.y = self.y + y.sum(1)  # [groups, o]
        self.xx = self.xx + x.mT @ x  # [groups, n, n]
        self.xy = self.xy + x.mT @ y  # [groups, n, o]
        self.yy = self.yy + (y * y).sum(1)  # [groups, o]

    def __add__(self, other: Sums) -> Sums:
        total = Sums()
        total.rows = self.rows + other.rows
        for name in ("x", "y", "xx", "xy", "yy"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> Sums:
        """The sums of x at `columns` [groups, m] and of y = weight x + bias, whatever y was: no row is needed."""
        few, n = Sums(), self.xx.shape[2]
        few.rows = self.rows
        said = (weight @ self.x.unsqueeze(2)).squeeze(2)  # [groups, o]
        half = self.xx.gather(1, columns.unsqueeze(2).expand(-1, -1, n))  # [groups, m, n]
        few.x, few.y = self.x.gather(1, columns), said + self.rows * bias
        few.xx = half.gather(2, columns.unsqueeze(1).expand(-1, columns.shape[1], -1))  # [groups, m, m]
        few.xy = half @ weight.mT + few.x.unsqueeze(2) * bias.unsqueeze(1)  # [groups, m, o]
        few.yy = ((weight @ self.xx) * weight).sum(2) + 2 * bias * said + self.rows * bias * bias
        return few

    def covariance(self, group: int) -> Tensor:
        """Of x: [n, n]."""
        mean = self.x[group] / self.rows
        return self.xx[group] / self.rows - mean[:, None] * mean

    def variances(self, group: int) -> Tensor:
        """Of x: [n]."""
        return self.xx[group].diagonal() / self.rows - (self.x[group] / self.rows) ** 2

    def solve(self, start: Tensor, ridges: Sequence[float], constant: bool, bias: Tensor) -> list[Fit]:
        """The minimum for each ridge; those at which the equations are singular are left out."""
        mean_x, mean_y = self.x / self.rows, self.y / self.rows
        if constant:
            gram = self.xx - self.rows * mean_x.unsqueeze(2) * mean_x.unsqueeze(1)
            cross = self.xy - self.rows * mean_x.unsqueeze(2) * mean_y.unsqueeze(1)
        else:
            gram, cross = self.xx, self.xy - self.x.unsqueeze(2) * bias.unsqueeze(1)
        scale = gram.diagonal(dim1=1, dim2=2).mean(1)  # [groups]
        eye = torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
        right = cross - gram @ start.mT  # [groups, n, o]
        fits = []
        for ridge in ridges:
            shift = torch.where(scale > 0, ridge * scale, 1.0)
            factor, failed = torch.linalg.cholesky_ex(gram + shift[:, None, None] * eye)
            if not bool(failed.any()):
                weight = start + torch.cholesky_solve(right, factor).mT
                c = mean_y - (weight @ mean_x.unsqueeze(2)).squeeze(2) if constant else bias
                fits.append(Fit(weight, c, ridge))
        return fits

    def error(self, fit: Fit) -> Tensor:
        """Mean over these rows of (y - W x - c)^2: [groups, o]."""
        w, c = fit.weight, fit.constant
        square = self.yy + self.rows * c * c - 2 * c * self.y
        square = square - 2 * (w * self.xy.mT).sum(2) + ((w @ self.xx) * w).sum(2)
        return (square + 2 * c * (w @ self.x.unsqueeze(2)).squeeze(2)) / self.rows

    def mean(self) -> Tensor:
        """Of y: [groups, o]."""
        return self.y / self.rows

    def variance(self) -> Tensor:
        """Of y: [groups, o]."""
        return self.yy / self.rows - (self.y / self.rows) ** 2


class Rows:
    """The same from the rows themselves: for fewer rows than unknowns, where the Gram would be the larger of the two.

    By the identity (X'X + r)^-1 X' = X' (XX' + r)^-1 the minimum is that of `Sums`.
    """

    def __init__(self) -> None:
        self._x: list[Tensor] = []
        self._y: list[Tensor] = []

    @property
    def rows(self) -> int:
        """How many there are."""
        return sum(x.shape[1] for x in self._x)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Take more rows in."""
        self._x.append(x.transpose(0, 1))
        self._y.append(y.transpose(0, 1))

    def __add__(self, other: Rows) -> Rows:
        total = Rows()
        total._x, total._y = self._x + other._x, self._y + other._y
        return total

    def narrowed(self, columns: Tensor, weight: Tensor, bias: Tensor) -> Rows:
        """The rows of x at `columns` [groups, m] and of y = weight x + bias, whatever y was."""
        few = Rows()
        for x in self._x:  # [groups, rows, n]
            few._x.append(x.gather(2, columns.unsqueeze(1).expand(-1, x.shape[1], -1)))
            few._y.append(x @ weight.mT + bias.unsqueeze(1))
        return few

    def covariance(self, group: int) -> Tensor:
        """Of x: [n, n]."""
        x = torch.cat([part[group] for part in self._x])  # [rows, n]
        return torch.cov(x.T, correction=0).reshape(x.shape[1], -1)

    def variances(self, group: int) -> Tensor:
        """Of x: [n]."""
        return torch.cat([part[group] for part in self._x]).var(0, correction=0)

    def solve(self, start: Tensor, ridges: Sequence[float], constant: bool, bias: Tensor) -> list[Fit]:
        """The minimum for each ridge; those at which the equations are singular are left out."""
        x, y = torch.cat(self._x, 1), torch.cat(self._y, 1)  # [groups, rows, n], [groups, rows, o]
        mean_x, mean_y = x.mean(1), y.mean(1)
        if constant:
            x, y = x - mean_x.unsqueeze(1), y - mean_y.unsqueeze(1)
        else:
            y = y - bias.unsqueeze(1)
        kernel = x @ x.mT  # [groups, rows, rows]
        scale = kernel.diagonal(dim1=1, dim2=2).sum(1) / x.shape[2]
        eye = torch.eye(kernel.shape[1], dtype=x.dtype, device=x.device)
        fits = []
        for ridge in ridges:
            shift = torch.where(scale > 0, ridge * scale, 1.0)
            factor, failed = torch.linalg.cholesky_ex(kernel + shift[:, None, None] * eye)
            if not bool(failed.any()):
                weight = start + (x.mT @ torch.cholesky_solve(y - x @ start.mT, factor)).mT
                c = mean_y - (weight @ mean_x.unsqueeze(2)).squeeze(2) if constant else bias
                fits.append(Fit(weight, c, ridge))
        return fits

    def error(self, fit: Fit) -> Tensor:
        """Mean over these rows of (y - W x - c)^2: [groups, o]."""
        x, y = torch.cat(self._x, 1), torch.cat(self._y, 1)
        rest: Tensor = y - x @ fit.weight.mT - fit.constant.unsqueeze(1)
        return (rest * rest).mean(1)

    def mean(self) -> Tensor:
        """Of y: [groups, o]."""
        return torch.cat(self._y, 1).mean(1)

    def variance(self) -> Tensor:
        """Of y: [groups, o]."""
        return torch.cat(self._y, 1).var(1, correction=0)


def choose(
    fitted: Sums | Rows, held: Sums | Rows, start: Tensor, bias: Tensor, ridges: Sequence[float], constant: bool
) -> Fit | None:
    """The fit on all rows, with the ridge that does best on the held-out ones; None if the equations have no solution.

    Errors count relative to each output's variance: a batch norm behind the layer would make them so.
    """
    if len(ridges) > 1 and fitted.rows and held.rows:
        scale = held.variance().clamp(min=1e-12)
        fits = fitted.solve(start, ridges, constant, bias)
        errors = [(float((held.error(fit) / scale).mean()), fit.ridge) for fit in fits]
        ridges = [min(errors)[1]] if errors else ridges
    everything = fitted + held if fitted.rows and held.rows else fitted if fitted.rows else held  # type: ignore[operator]
    fits = everything.solve(start, sorted(ridges, reverse=True), constant, bias)
    return fits[0] if fits else None
