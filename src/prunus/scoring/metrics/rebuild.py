"""Metrics of what the readers' outputs lose without a channel: thinet, cp and, with re-solved readers, rebuilt."""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.scoring.evidence import Contributions, ReaderGroup, ReaderInputs
from prunus.scoring.metrics import metric

LARS_STEPS = 8  # of the path for each channel, at most: a channel may leave the path and come back
TINY = 1e-12
MOST = 0.9  # shrinkage
DELAYED = 128  # columns of u to collect before P and W are brought up to date
WIDE = 512  # layers with more inputs are computed in float32
LEAST = 1e-6  # of the trace: what the others must leave unexplained of every input, for float32 to be enough


@metric(
    "Greedy choice by the error of the next layer's output (ThiNet, Luo et al. 2017)",
    needs="contributions",
    cites=("luo2017thinet",),
)
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


@metric(
    "LASSO choice of channels that rebuild the next layer's output (CP, He et al. 2017)",
    needs="contributions",
    cites=("he2017channel",),
)
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


@metric(
    "Error that remains after the readers' weights are re-solved without the channel; needs no labels",
    needs="reader_inputs",
    adds_up=True,
    cites=("prunus", "hassibi1993second"),
)
def rebuilt(inputs: ReaderInputs, ridge: float = 1e-2) -> Tensor:
    """Remove channels one by one, each time the one whose removal adds the least error after re-solving the readers.

    With C the covariance of a reader's inputs, H = C + r x its mean diagonal and W its weights, the error of re-solved
    weights V is

        e = tr( G (W - V) H (W - V)' ),    summed over readers,

    where G says what errors of the reader's outputs do to the network's outputs (see `output_weights`). r
    is `ridge`, or the shrinkage of Chen et al. 2010 (OAS) where that is more: with few images C is uncertain, and
    channels would seem to be rebuilt for nothing. A channel's score is the total error once it is removed, in the unit
    of what half a cut does to the network: e(n) x D / e(half), where D is the measured mean square change of the
    network's outputs, on images that C is not made from, when half of the channels are removed and the readers are
    re-solved.
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
        weight, covariance = group.weight, group.covariance
        diagonal = covariance.dim() == 1
        if group.output_weights is not None:
            weighed = group.output_weights @ weight  # R W with R' R = G
        else:  # every output is weighed by the inverse of its variance
            variance = weight.square() @ covariance if diagonal else ((weight @ covariance) * weight).sum(1)
            weighed = weight / torch.where(variance > 0, variance, 1.0).sqrt()[:, None]
        variances = covariance if diagonal else covariance.diagonal()
        mean = variances.mean()  # rounding may have made it negative
        shift = max(ridge, _shrinkage(group)) * torch.where(mean > 0, mean, TINY)
        self._moments = covariance + (shift if diagonal else shift * torch.eye(len(covariance), dtype=shift.dtype))
        self._elimination = None  # for uncorrelated inputs, nothing is re-solved
        if diagonal:
            self.errors = (weighed.square().sum(0) * self._moments)[group.columns].sum(1)
        else:
            self._elimination = Elimination(weighed, self._moments, group.columns)
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


def _shrinkage(group: ReaderGroup) -> float:
    """The best ridge for a covariance from so few rows: s / (1 - s) with the shrinkage s of Chen et al. 2010."""
    if group.covariance.dim() == 1:
        return 0.0
    n, trace, square = len(group.covariance), float(group.covariance.trace()), float(group.covariance.square().sum())
    spread = (group.rows + 1 - 2 / n) * (square - trace**2 / n)
    share = ((1 - 2 / n) * square + trace**2) / spread if spread > 0 else 0.0
    return share / (1 - share) if share < MOST else MOST / (1 - MOST)


class Elimination:
    """Blocks of the inputs of a linear layer, which is re-solved on what is left after each removal.

    With P = H^-1 and a removed block s, P becomes P - u u' and W becomes W - v u', where u = P_s L'^-1, v = W_s L'^-1
    and L L' = P_ss. The next block then adds the error tr(P_ss^-1 (W' W)_ss).

    Args:
        weight: [o, n] W.
        second_moments: [n, n] H.
        columns: [a, t] the inputs of each block. Inputs in no block are never removed.
    """

    def __init__(self, weight: Tensor, second_moments: Tensor, columns: Tensor) -> None:
        order = columns.flatten()
        self._size = columns.shape[1]
        self._left = torch.arange(len(columns))  # the blocks in memory, by number
        scale, largest = second_moments.diagonal().mean(), weight.abs().max()
        self._unit = 1.0  # errors are counted in it, because squares may be too large or too small for float32
        if bool(scale > 0) and bool(largest > 0):
            second_moments, weight = second_moments / scale, weight / largest
            self._unit = float(scale * largest * largest)
        factor = _factor_of_moments(second_moments)
        weight = weight[:, order].to(factor)
        # Only W' W matters, so a matrix with fewer rows can stand for W.
        self._weight = torch.linalg.qr(weight, mode="r").R if len(weight) > len(order) else weight
        self._inverse = _among(torch.cholesky_inverse(factor), order)
        self.errors = torch.zeros(len(columns), dtype=torch.float64)  # what each block adds if it is removed next
        self._start_over()

    def remove(self, block: int) -> None:
        """Remove a block of inputs and re-solve the weights."""
        t, at = self._size, int((self._left == block).nonzero())
        mine = slice(at * t, at * t + t)
        u_so_far, v_so_far = self._u[:, : self._done], self._v[:, : self._done]
        rows = self._inverse[mine] - u_so_far[mine] @ u_so_far.T  # [t, n] of P
        root = _factor(rows[:, mine])
        u = torch.linalg.solve_triangular(root, rows, upper=False).T  # [n, t]
        here = self._weight[:, mine] - v_so_far @ u_so_far[mine].T  # [o, t] of W
        v = torch.linalg.solve_triangular(root, here.T, upper=False).T  # [o, t]
        # The diagonal blocks of P and of W' W follow at once, all others when `_catch_up` is due.
        products = v.T @ self._weight - (v.T @ v_so_far) @ u_so_far.T  # [t, n] v' W before the removal
        each = u.view(-1, t, t)  # [a, t, t] rows of u of each block
        cross = each @ products.view(t, -1, t).transpose(0, 1)  # [a, t, t]
        self._corners -= each @ each.mT
        self._squares += each @ (v.T @ v) @ each.mT - cross - cross.mT
        self._u[:, self._done : self._done + t], self._v[:, self._done : self._done + t] = u, v
        self._done += t
        self._alive[at] = False
        if self._done + t > self._u.shape[1]:
            self._catch_up()
        self._price()

    def _catch_up(self) -> None:
        """Bring P and W up to date, without the inputs that are gone."""
        stays = self._alive.repeat_interleave(self._size).nonzero().flatten()
        u, v = self._u[stays, : self._done], self._v[:, : self._done]
        self._inverse = _among(self._inverse, stays).addmm_(u, u.T, alpha=-1)
        self._weight = self._weight.index_select(1, stays).addmm_(v, u.T, alpha=-1)
        self._left = self._left[self._alive]
        self._start_over()

    def _start_over(self) -> None:
        n, t = len(self._inverse), self._size
        most = max(DELAYED // t, 1) * t
        self._u, self._v = self._inverse.new_empty(n, most), self._inverse.new_empty(len(self._weight), most)
        self._done = 0
        self._alive = torch.ones(len(self._left), dtype=torch.bool)
        every = torch.arange(n).view(-1, t)
        self._corners = self._inverse[every.unsqueeze(2), every.unsqueeze(1)]  # [a, t, t] of P
        parts = self._weight.T.reshape(-1, t, len(self._weight))
        self._squares = parts @ parts.mT  # [a, t, t] of W' W
        self._price()

    def _price(self) -> None:
        """The error that each block would add; the blocks that are gone add infinitely much."""
        alive = self._alive
        corners, squares = self._corners[alive], self._squares[alive]
        if self._size == 1:
            priced = (squares / corners)[:, 0, 0]
        else:
            priced = torch.linalg.solve(corners, squares).diagonal(dim1=1, dim2=2).sum(1)
        self.errors.fill_(torch.inf)
        self.errors[self._left[alive]] = self._unit * priced.double()


def _among(matrix: Tensor, places: Tensor) -> Tensor:
    """The rows and columns at these places."""
    return matrix.index_select(0, places).index_select(1, places)


def _factor_of_moments(moments: Tensor) -> Tensor:
    """The Cholesky factor, of a wide layer in float32 if that is precise enough."""
    if len(moments) > WIDE:
        factor, failed = torch.linalg.cholesky_ex(moments.float())
        if not int(failed) and float(factor.diagonal().square().min()) > LEAST * float(moments.trace()):
            return torch.as_tensor(factor)
    return _factor(moments)


def _factor(matrix: Tensor) -> Tensor:
    """The Cholesky factor; of a matrix with a larger diagonal where rounding has made it indefinite."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    scale = matrix.diagonal().mean().clamp(min=torch.finfo(matrix.dtype).tiny)
    for shift in (0.0, *(10.0**power for power in range(-8, 3))):
        factor, failed = torch.linalg.cholesky_ex(matrix + shift * scale * eye)
        if not int(failed):
            return torch.as_tensor(factor)
    raise ScoreError("the inputs of a layer have no covariance: the network computes values that are not finite")
