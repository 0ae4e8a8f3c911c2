"""Ridge least squares for the weights of one layer.

    minimise  sum over rows |y - W x - c|^2  +  ridge * s * |W - W0|^2,    s = mean diagonal of the centred Gram of x

W0 are the weights before the fit, so an infinite ridge leaves the layer as it is. The constant c, where the layer has a
place for it, is not penalised. All in float64, each group of a grouped convolution separately.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prunus.scoring.gram_sums import GramSums, KeptRows, RegressionSums, together

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
CAREFUL = (1e-1, 1.0, 10.0)  # where there are too few rows


@dataclass(frozen=True, eq=False)
class Fit:
    """Weights of a layer and their constant: new ones, or those before a fit."""

    weight: Tensor  # [groups, o, n]
    constant: Tensor  # [groups, o]
    free: bool  # whether the layer has a place for a new constant: a bias, or a batch norm after it
    ridge: float = math.inf


def choose(fitted: RegressionSums, held_out: RegressionSums, start: Fit, ridges: Sequence[float]) -> Fit | None:
    """The fit on all rows, with the ridge that has the smallest error on the held-out rows; None if all are singular.

    Errors are relative to each output's variance, as a batch norm after the layer would scale them.
    """
    if len(ridges) > 1 and fitted.rows and held_out.rows:
        errors = [(relative_error(held_out, fit), fit.ridge) for fit in solve(fitted, start, ridges)]
        ridges = [min(errors)[1]] if errors else ridges
    fits = solve(together(fitted, held_out), start, sorted(ridges, reverse=True))
    return fits[0] if fits else None


def solve(sums: RegressionSums, start: Fit, ridges: Sequence[float]) -> list[Fit]:
    """The minimum for each ridge, without those for which the equations are singular.

    From fewer rows than unknowns it is computed by the identity (X'X + r)^-1 X' = X' (XX' + r)^-1.
    """
    if isinstance(sums, GramSums):
        total = sums.sums
        mean_x, mean_y = total.x / sums.rows, total.y / sums.rows
        if start.free:
            matrix = total.xx - sums.rows * mean_x.unsqueeze(2) * mean_x.unsqueeze(1)
            cross = total.xy - sums.rows * mean_x.unsqueeze(2) * mean_y.unsqueeze(1)
        else:
            matrix, cross = total.xx, total.xy - total.x.unsqueeze(2) * start.constant.unsqueeze(1)
        scale = matrix.diagonal(dim1=1, dim2=2).mean(1)  # [groups]
        right = cross - matrix @ start.weight.mT  # [groups, n, o]
    else:
        x, y = sums.x, sums.y  # [groups, rows, n], [groups, rows, o]
        mean_x, mean_y = x.mean(1), y.mean(1)
        if start.free:
            x, y = x - mean_x.unsqueeze(1), y - mean_y.unsqueeze(1)
        else:
            y = y - start.constant.unsqueeze(1)
        matrix = x @ x.mT  # [groups, rows, rows]
        scale = matrix.diagonal(dim1=1, dim2=2).sum(1) / x.shape[2]
        right = y - x @ start.weight.mT  # [groups, rows, o]
    fits = []
    eye = torch.eye(matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    for ridge in ridges:
        shift = torch.where(scale > 0, ridge * scale, 1.0)
        factor, failed = torch.linalg.cholesky_ex(matrix + shift[:, None, None] * eye)
        if bool(failed.any()):
            continue
        change = torch.cholesky_solve(right, factor)
        weight = start.weight + (change if isinstance(sums, GramSums) else x.mT @ change).mT
        constant = mean_y - (weight @ mean_x.unsqueeze(2)).squeeze(2) if start.free else start.constant
        fits.append(Fit(weight, constant, start.free, ridge))
    return fits


def relative_error(sums: RegressionSums, fit: Fit) -> float:
    """The error relative to each output's variance, as a mean over all outputs."""
    _, variance = sums.output_moments()
    return float((error(sums, fit) / variance.clamp(min=1e-12)).mean())


def error(sums: RegressionSums, fit: Fit) -> Tensor:
    """Mean over the rows of (y - W x - c)^2: [groups, o]."""
    w, c = fit.weight, fit.constant
    if isinstance(sums, KeptRows):
        rest: Tensor = sums.y - sums.x @ w.mT - c.unsqueeze(1)
        return (rest * rest).mean(1)
    x, y, xx, xy, yy = sums.sums
    square = yy + sums.rows * c * c - 2 * c * y
    square = square - 2 * (w * xy.mT).sum(2) + ((w @ xx) * w).sum(2)
    return (square + 2 * c * (w @ x.unsqueeze(2)).squeeze(2)) / sums.rows
