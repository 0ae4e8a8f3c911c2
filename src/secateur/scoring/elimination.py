"""Inputs of a linear layer removed block by block, the layer re-solved on what is left after each removal.

This is backward elimination in least squares (the Optimal Brain Surgeon of Hassibi and Stork 1993, one block of inputs
at a time). With H the second moments of the inputs, P = H^-1 and W the weights as solved so far, removing the inputs B
adds the error

    tr( W_B P_BB^-1 W_B' ),    after which    P -= P_:B P_BB^-1 P_B:    and    W -= W_B P_BB^-1 P_B:

Both updates are P -= u u' and W -= v u'. They are collected and carried out for many blocks at once, on the inputs
that are left: one large product instead of many small ones. The errors need only the diagonal blocks of P and of W' W,
which are kept up to date. Wide layers are computed in float32, which is twice as fast, where H has enough of a ridge.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.errors import ScoreError

DELAYED = 128  # columns of u to collect before P and W are brought up to date
WIDE = 512  # layers with more inputs are computed in float32
LEAST = 1e-6  # of the trace: what the others must leave unexplained of every input, for float32 to be enough


class Elimination:
    """Blocks of the inputs of one layer, of which the cheapest can be removed again and again.

    weight: [o, n]
    second_moments: [n, n] H
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
        self._follow(u, v, v.T @ self._weight - (v.T @ v_so_far) @ u_so_far.T)
        self._u[:, self._done : self._done + t], self._v[:, self._done : self._done + t] = u, v
        self._done += t
        self._alive[at] = False
        if self._done + t > self._u.shape[1]:
            self._catch_up()
        self._price()

    def _follow(self, u: Tensor, v: Tensor, products: Tensor) -> None:
        """Update the diagonal blocks of P and of W' W; `products` [t, n] is v' W before the removal."""
        t = self._size
        each = u.view(-1, t, t)  # [a, t, t] rows of u of each block
        cross = each @ products.view(t, -1, t).transpose(0, 1)  # [a, t, t]
        self._corners -= each @ each.mT
        self._squares += each @ (v.T @ v) @ each.mT - cross - cross.mT

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
