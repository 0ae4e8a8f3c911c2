"""What a channel is worth to readers that may be re-solved: the error that no choice of their weights can mend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from secateur.channels.units import Reader, Unit
from secateur.repairing.linear_rows import rows_of_weight
from secateur.repairing.unit_repair import Seen, UnitRepair, inputs_of
from secateur.scoring.scores import Scores, Vector

REBUILT = "rebuilt"  # the metric's name
RIDGE = 1e-2  # of the Gram's mean diagonal
WIDEST = 5000  # the inputs of a wider reader are taken as unrelated: their covariance would be too large to invert


def rebuilt(units: UnitRepair) -> Scores:
    """Every unit's channels in the order in which they are missed least, the readers re-solved after each that goes.

    With H = covariance of the readers' inputs + ridge, and W their weights as solved so far, losing the inputs B of a
    channel adds the error

        tr( W_B [(H^-1)_BB]^-1 W_B' ),    after which    W -= W_B [(H^-1)_BB]^-1 (H^-1)_B:

    (Hassibi and Stork's surgeon, a block of inputs at a time), summed over readers; each output counts relative to its
    variance. The score is the error that has added up when the channel goes. Units none of whose readers can be solved
    have no score.
    """
    values = {}
    for name, unit in units.graph.units.items():
        readers = [reader for reader in unit.readers if reader.module in units.seen]
        if readers:
            values[name] = _eliminate(unit, [piece for reader in readers for piece in _pieces(units, reader)])
    return Scores(REBUILT, values, units.images)


@dataclass(eq=False)
class _Piece:
    """One group of one reader, as far as the unit's channels have gone."""

    channels: Tensor  # [a] channels of the unit that it reads
    columns: Tensor  # [a, t] where they are among its inputs
    weight: Tensor  # [o, n] solved on what is left
    inverse: Tensor  # [n, n] H^-1 of what is left; [n] its diagonal, where inputs are taken as unrelated

    def errors(self, alive: Tensor) -> Tensor:
        """[a] what each channel adds when it goes next."""
        if self.inverse.dim() == 1:
            return (self.weight.square().sum(0) / self.inverse)[self.columns].sum(1)
        blocks = self.inverse[self.columns.unsqueeze(2), self.columns.unsqueeze(1)]  # [a, t, t]
        gone = ~alive[self.channels]
        blocks[gone] = torch.eye(blocks.shape[1], dtype=blocks.dtype)  # theirs is zero by now
        parts = self.weight[:, self.columns].transpose(0, 1)  # [a, o, t]
        errors: Tensor = (parts @ torch.linalg.inv(blocks) * parts).sum((1, 2))
        return errors

    def remove(self, channel: int) -> None:
        """The weights re-solved without the channel."""
        if self.inverse.dim() == 1:  # the others know nothing of it
            return
        for row in (self.channels == channel).nonzero().flatten().tolist():
            inputs = self.columns[row]  # [t]
            share = torch.linalg.solve(self.inverse[inputs][:, inputs], self.inverse[inputs])  # [t, n]
            self.weight -= self.weight[:, inputs] @ share
            self.inverse -= self.inverse[:, inputs] @ share


def _pieces(units: UnitRepair, reader: Reader) -> list[_Piece]:
    seen = units.seen[reader.module]
    weights = rows_of_weight(seen.layer).cpu()  # [groups, o, n]; many small steps, which a GPU does no faster
    taps = weights.shape[2] * len(weights) // inputs_of(seen.layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps], through all groups
    pieces = []
    for group, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == group).all(1)
        if bool(mine.any()):
            numbers = torch.from_numpy(reader.channels)[mine]
            scaled, inverse = _scaled(seen, group, weight)
            pieces.append(_Piece(numbers, columns[mine] % weight.shape[1], scaled, inverse))
    return pieces


def _scaled(seen: Seen, group: int, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A group's weights for outputs of variance 1, and H^-1 (wide readers: its diagonal)."""
    if weight.shape[1] > WIDEST:
        variances = seen.whole.variances(group).cpu()
        ridge = RIDGE * variances.mean().clamp(min=1e-12)
        return weight / (weight.square() @ variances).clamp(min=1e-12).sqrt()[:, None], 1 / (variances + ridge)
    covariance = seen.whole.covariance(group).cpu()
    scale = ((weight @ covariance) * weight).sum(1).clamp(min=1e-12).sqrt()
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-12)
    shifted = covariance + ridge * torch.eye(len(covariance), dtype=covariance.dtype)
    return weight / scale[:, None], torch.linalg.inv(shifted)


def _eliminate(unit: Unit, pieces: list[_Piece]) -> Vector:
    """The error that has added up when each channel goes, the one that adds least first."""
    alive = torch.ones(unit.width, dtype=torch.bool)
    errors, total = np.zeros(unit.width), 0.0
    for _ in range(unit.width):
        added = torch.zeros(unit.width, dtype=torch.float64)
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
