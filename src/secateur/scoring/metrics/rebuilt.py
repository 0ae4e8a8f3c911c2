"""Error that remains after the readers' weights are re-solved without the channel; needs no labels."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.scoring.elimination import Elimination
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
    added = torch.zeros(inputs.width, dtype=torch.float64)
    for piece in pieces:
        added.index_add_(0, piece.channels, piece.errors)
    errors, total = torch.zeros_like(added), 0.0
    for _ in range(inputs.width):
        weakest = int(added.argmin())
        total += max(0.0, float(added[weakest]))
        errors[weakest] = total
        for piece in pieces:
            change = piece.remove(weakest)
            if change is not None:  # only layers that read the channel are re-solved
                added.index_add_(0, piece.channels, change)
        added[weakest] = torch.inf
    return errors


class _Piece:
    """One group of one reader, re-solved without the channels removed so far."""

    def __init__(self, channels: Tensor, errors: Tensor, elimination: Elimination | None) -> None:
        self.channels = channels  # [a] channels of the unit that it reads
        self.errors = errors  # [a] error that each adds if it is removed next
        self._elimination = elimination  # None: uncorrelated inputs, where nothing is re-solved

    def remove(self, channel: int) -> Tensor | None:
        """Re-solve the weights without the channel: [a] change of the errors; None if they stay as they were."""
        rows = (self.channels == channel).nonzero().flatten().tolist()
        if not rows or self._elimination is None:
            return None
        before = self.errors
        for row in rows:
            self._elimination.remove(row)
        self.errors = self._elimination.errors.nan_to_num(posinf=0.0)  # 0 for the channels that are gone
        return self.errors - before


def _piece(group: ReaderGroup, ridge: float) -> _Piece:
    """Weights scaled to outputs of variance 1, and the covariance with the ridge (or only its diagonal)."""
    weight, covariance = group.weight, group.covariance
    if covariance.dim() == 1:
        variances = (weight.square() @ covariance).clamp(min=1e-12)
        shifted = covariance + ridge * covariance.mean().clamp(min=1e-12)
        alone = (weight.square() / variances[:, None]).sum(0) * shifted  # [n]
        return _Piece(group.channels, alone[group.columns].sum(1), None)
    variances = ((weight @ covariance) * weight).sum(1).clamp(min=1e-12)
    shift = ridge * covariance.diagonal().mean().clamp(min=1e-12)
    shifted = covariance + shift * torch.eye(len(covariance), dtype=covariance.dtype)
    elimination = Elimination(weight / variances.sqrt()[:, None], shifted, group.columns)
    return _Piece(group.channels, elimination.errors.clone(), elimination)


ENTRY = Metric(needs="reader_inputs", score=rebuilt, adds_up=True)
