"""Metrics of what the readers' outputs lose without a channel: thinet, cp and, with re-solved readers, rebuilt."""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.score.evidence import Contributions, ReaderGroup, ReaderInputs
from prunus.score.gram_sums import Elimination
from prunus.score.metrics import Metric

LARS_STEPS = 8  # of the path for each channel, at most: a channel may leave the path and come back
TINY = 1e-12
MOST = 0.9  # shrinkage


def thinet(contributions: Contributions) -> Tensor:
    """Remove channels one by one, each time the one that keeps the error of the readers' outputs smallest.

    The error of removing the set T is the mean over positions of |sum over T of the channel's contribution|^2
    (Luo et al. 2017, Eqn. 6 and Algorithm 1), here with all filters and 64 positions of each image. A channel's score
    is the step at which it is removed. The publication's second stage, a least-squares scale for each remaining
    channel, is part of what the repair `solve` does.
    """
    products = contributions.products
    n = len(products)
    added = products.diagonal().clone()  # error that each channel would add
    steps = torch.zeros(n, dtype=torch.float64)
    for step in range(n):
        weakest = int(added.argmin())
        steps[weakest] = step
        added += 2 * products[weakest]
        added[weakest] = torch.inf
    return steps


def cp(contributions: Contributions) -> Tensor:
    """The largest penalty at which the channel still has a coefficient other than 0.

    He et al. 2017, Eqn. 2: minimise over b  1/2 E|Y - sum_i b_i X_i W_i'|^2 + penalty |b|_1, where each W_i (the
    readers' weights for channel i) has norm 1 and Y is the readers' output. They raise the penalty until as few
    channels as wanted are left; the exact path of all penalties (LARS) gives this for every number. Their second step,
    least squares for the remaining weights, is the repair `solve`. Channels without any effect score 0.
    """
    from sklearn.linear_model import lars_path_gram

    norms = contributions.norms
    alive = (norms > 0) & (contributions.products.diagonal() > 0)
    scores = torch.zeros_like(norms)
    if not bool(alive.any()):
        return scores
    scale = norms[alive]
    gram = contributions.products[alive][:, alive] / (scale[:, None] * scale)  # of outputs with weights of norm 1
    target = gram @ scale  # b = norms gives Y
    unit = float(target.abs().max())
    gram.diagonal().add_(1e-10 * gram.diagonal().mean())  # channels that are copies of each other stay apart
    penalties, _, path = lars_path_gram(
        (target / unit).numpy(),
        (gram / unit).numpy(),
        n_samples=1,
        method="lasso",
        copy_X=True,
        copy_Gram=True,
        max_iter=LARS_STEPS * len(gram),
    )
    used = torch.from_numpy(path != 0)  # [channels, knots], penalties falling; a coefficient grows after its knot
    first = torch.where(used.any(1), used.int().argmax(1) - 1, len(penalties) - 1)
    scores[alive] = torch.from_numpy(penalties)[first.clamp(min=0)] * unit
    return scores


def rebuilt(inputs: ReaderInputs, ridge: float = 1e-2) -> Tensor:
    """Remove channels one by one, each time the one whose removal adds the least error after re-solving the readers.

    With C the covariance of a reader's inputs, H = C + r x its mean diagonal and W its weights, the error of re-solved
    weights V is

        e = tr( G (W - V) H (W - V)' ),    summed over readers,

    where G says what errors of the reader's outputs do to the network's outputs (see `output_stakes`). r is `ridge`,
    or the shrinkage of Chen et al. 2010 (OAS) where that is more: with few images C is uncertain, and channels would
    seem to be rebuilt for nothing. A channel's score is the total error once it is removed, in the unit of what half a
    cut does to the network: e(n) x D / e(half), where D is the measured mean square change of the network's outputs,
    on images that C is not made from, when half of the channels are removed and the readers are re-solved.
    """
    pieces = [_Piece(group, ridge) for group in inputs.groups]
    added = torch.zeros(inputs.width, dtype=torch.float64)
    for piece in pieces:
        added.index_add_(0, piece.channels, piece.errors)
    errors, total = torch.zeros_like(added), 0.0
    order: list[int] = []
    for _ in range(inputs.width):
        weakest = int(added.argmin())
        total += max(0.0, float(added[weakest]))
        errors[weakest] = total
        order.append(weakest)
        for piece in pieces:
            change = piece.remove(weakest)
            if change is not None:  # only layers that read the channel are re-solved
                added.index_add_(0, piece.channels, change)
        added[weakest] = torch.inf
    if inputs.change is None:
        return errors
    half = order[: max(inputs.width // 2, 1)]
    measured = inputs.change([piece.solved_without(half) for piece in pieces])
    expected = float(errors[half[-1]])
    return errors * (max(measured, TINY) / expected) if expected > 0 else errors


class _Piece:
    """One group of one reader, re-solved without the channels removed so far."""

    def __init__(self, group: ReaderGroup, ridge: float) -> None:
        self.channels = group.channels  # [a] channels of the unit that it reads
        self._columns, self._weight = group.columns, group.weight
        self._moments = _shifted(group.covariance, max(ridge, _shrinkage(group)))
        weight = _weighed(group)
        self._elimination = None  # for uncorrelated inputs, nothing is re-solved
        if self._moments.dim() == 1:
            self.errors = (weight.square().sum(0) * self._moments)[group.columns].sum(1)
        else:
            self._elimination = Elimination(weight, self._moments, group.columns)
            self.errors = self._elimination.errors.clone()  # [a] error that each channel adds if it is removed next

    def remove(self, channel: int) -> Tensor | None:
        """Re-solve the weights without the channel: [a] change of the errors; None if they stay as they were."""
        rows = (self.channels == channel).nonzero().flatten().tolist()
        if not rows or self._elimination is None:
            return None
        before = self.errors
        for row in rows:
            self._elimination.remove(row)
        self.errors = self._elimination.errors.masked_fill(self._elimination.errors.isinf(), 0.0)  # 0: it is gone
        if bool(self.errors.isnan().any()):
            raise ScoreError("the errors of a layer are not finite: its weights or inputs are too large to be scored")
        return self.errors - before

    def solved_without(self, gone: list[int]) -> Tensor:
        """The best weights [o, n] that do not read these channels."""
        out = torch.zeros(self._weight.shape[1], dtype=torch.bool)
        out[self._columns[torch.isin(self.channels, torch.tensor(gone))]] = True
        best = self._weight.masked_fill(out, 0.0)
        if self._moments.dim() == 2 and bool(out.any()) and not bool(out.all()):
            kept = self._moments[~out]
            best[:, ~out] += torch.linalg.solve(kept[:, ~out], kept[:, out] @ self._weight[:, out].T).T
        return best


def _weighed(group: ReaderGroup) -> Tensor:
    """R W with R' R = G; without G, every output is weighed by the inverse of its variance."""
    weight, covariance = group.weight, group.covariance
    if group.stakes is None:
        products = weight.square() @ covariance if covariance.dim() == 1 else ((weight @ covariance) * weight).sum(1)
        return weight / _positive(products, 1.0).sqrt()[:, None]
    return group.stakes @ weight


def _shifted(covariance: Tensor, ridge: float) -> Tensor:
    """With ridge x mean variance added to the variances."""
    variances = covariance if covariance.dim() == 1 else covariance.diagonal()
    shift = ridge * _positive(variances.mean())
    return covariance + (shift if covariance.dim() == 1 else shift * torch.eye(len(covariance), dtype=shift.dtype))


def _positive(numbers: Tensor, otherwise: float = TINY) -> Tensor:
    """The numbers, and another one where they are 0 or rounding has made them negative."""
    return torch.where(numbers > 0, numbers, otherwise)


def _shrinkage(group: ReaderGroup) -> float:
    """The best ridge for a covariance from so few rows: s / (1 - s) with the shrinkage s of Chen et al. 2010."""
    if group.covariance.dim() == 1:
        return 0.0
    n, trace, square = len(group.covariance), float(group.covariance.trace()), float(group.covariance.square().sum())
    spread = (group.rows + 1 - 2 / n) * (square - trace**2 / n)
    share = ((1 - 2 / n) * square + trace**2) / spread if spread > 0 else 0.0
    return share / (1 - share) if share < MOST else MOST / (1 - MOST)


THINET = Metric(
    name="thinet",
    help="Greedy choice by the error of the next layer's output (ThiNet, Luo et al. 2017)",
    needs="contributions",
    score=thinet,
)
CP = Metric(
    name="cp",
    help="LASSO choice of channels that rebuild the next layer's output (CP, He et al. 2017)",
    needs="contributions",
    score=cp,
)
REBUILT = Metric(
    name="rebuilt",
    help="Error that remains after the readers' weights are re-solved without the channel; needs no labels",
    needs="reader_inputs",
    score=rebuilt,
    adds_up=True,
)
