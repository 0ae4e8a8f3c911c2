"""Error that remains after the readers' weights are re-solved without the channel; needs no labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.scoring.evidence import ReaderGroup, ReaderInputs
from secateur.scoring.metrics import Metric


def rebuilt(inputs: ReaderInputs, ridge: float = 1e-2) -> Tensor:
    """Remove channels one by one, each time the one whose removal adds the least error after re-solving the readers.

    With H = covariance of a reader's inputs + ridge x its mean diagonal, and W the reader's weights as solved so far,
    removing the inputs B of a channel adds the error

        tr( W_B [(H^-1)_BB]^-1 W_B' ),    after which    W -= W_B [(H^-1)_BB]^-1 (H^-1)_B:

    (the Optimal Brain Surgeon of Hassibi and Stork 1993, one block of inputs at a time), summed over readers. Each
    output counts relative to its variance. A channel's score is the total error once it is removed.
    """
    pieces = [_piece(group, ridge) for group in inputs.groups]
    alive = torch.ones(inputs.width, dtype=torch.bool)
    errors, total = torch.zeros(inputs.width, dtype=torch.float64), 0.0
    for _ in range(inputs.width):
        added = torch.zeros(inputs.width, dtype=torch.float64)
        for piece in pieces:
            added.index_add_(0, piece.channels, piece.errors(alive))
        added[~alive] = torch.inf
        weakest = int(added.argmin())
        total += max(0.0, float(added[weakest]))
        errors[weakest] = total
        alive[weakest] = False
        for piece in pieces:
            piece.remove(weakest)
    return errors


@dataclass(eq=False)
class _Piece:
    """One group of one reader, re-solved without the channels removed so far."""

    channels: Tensor  # [a] channels of the unit that it reads
    columns: Tensor  # [a, t] their positions among its inputs
    weight: Tensor  # [o, n] solved on the remaining inputs
    inverse: Tensor  # [n, n] H^-1 of the remaining inputs; [n] its diagonal, for uncorrelated inputs

    def errors(self, alive: Tensor) -> Tensor:
        """[a] error that each channel adds if it is removed next."""
        if self.inverse.dim() == 1:
            return (self.weight.square().sum(0) / self.inverse)[self.columns].sum(1)
        blocks = self.inverse[self.columns.unsqueeze(2), self.columns.unsqueeze(1)]  # [a, t, t]
        gone = ~alive[self.channels]
        blocks[gone] = torch.eye(blocks.shape[1], dtype=blocks.dtype)  # these blocks are zero by now
        parts = self.weight[:, self.columns].transpose(0, 1)  # [a, o, t]
        errors: Tensor = (parts @ torch.linalg.inv(blocks) * parts).sum((1, 2))
        return errors

    def remove(self, channel: int) -> None:
        """Re-solve the weights without the channel."""
        if self.inverse.dim() == 1:  # uncorrelated inputs: nothing to re-solve
            return
        for row in (self.channels == channel).nonzero().flatten().tolist():
            inputs = self.columns[row]  # [t]
            share = torch.linalg.solve(self.inverse[inputs][:, inputs], self.inverse[inputs])  # [t, n]
            self.weight -= self.weight[:, inputs] @ share
            self.inverse -= self.inverse[:, inputs] @ share


def _piece(group: ReaderGroup, ridge: float) -> _Piece:
    """Weights scaled to outputs of variance 1, and H^-1 (its diagonal for uncorrelated inputs)."""
    weight, covariance = group.weight, group.covariance
    if covariance.dim() == 1:
        variances = (weight.square() @ covariance).clamp(min=1e-12)
        inverse = 1 / (covariance + ridge * covariance.mean().clamp(min=1e-12))
    else:
        variances = ((weight @ covariance) * weight).sum(1).clamp(min=1e-12)
        shift = ridge * covariance.diagonal().mean().clamp(min=1e-12)
        inverse = torch.linalg.inv(covariance + shift * torch.eye(len(covariance), dtype=covariance.dtype))
    return _Piece(group.channels, group.columns, weight / variances.sqrt()[:, None], inverse)


ENTRY = Metric(needs="reader_inputs", score=rebuilt, adds_up=True)
