"""What each channel adds to the outputs of its readers, from the sums that `reader_inputs` collects."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from secateur.channels.units import Reader
from secateur.scoring.evidence import Contributions
from secateur.scoring.layer_rows import rows_of_weight
from secateur.scoring.reader_inputs import WIDEST, LayerInputs, SeenInputs, input_width
from secateur.scoring.regression_sums import GramSums, RegressionSums


def contributions(seen: SeenInputs) -> Iterator[Contributions]:
    """Contributions of every unit, one after another.

    Channel i contributes sum over its inputs of weight x input to an output. Two channels have the mean product

        C_ij = sum over inputs s of i, t of j of (W'W)_st E[x_s x_t],

    summed over readers. Inputs of very wide readers are taken as uncorrelated.
    """
    for name, readers in seen.units().items():
        width = seen.graph.units[name].width
        products = torch.zeros(width, width, dtype=torch.float64)
        squares = torch.zeros(width, dtype=torch.float64)
        for reader in readers:
            for channels, more, norms in _of_reader(seen.layers[reader.module], reader):
                products[channels[:, None], channels] += more
                squares[channels] += norms
        yield Contributions(name, products, squares.sqrt())


def _of_reader(seen: LayerInputs, reader: Reader) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each group of the reader: the unit's channels, the products [a, a] and the squared norms [a]."""
    weights = rows_of_weight(seen.layer).cpu()  # [groups, o, n]
    taps = weights.shape[2] * len(weights) // input_width(seen.layer)
    places = torch.from_numpy(reader.inputs)  # [channels, m]
    columns = (places.unsqueeze(2) * taps + torch.arange(taps)).flatten(1)  # [channels, m x taps]
    for group, weight in enumerate(weights):
        mine = (columns // weight.shape[1] == group).all(1)
        if bool(mine.any()):
            inputs = columns[mine] % weight.shape[1]  # [a, t]
            numbers = torch.from_numpy(reader.channels)[mine]
            yield numbers, _products(seen.whole, group, weight, inputs), weight.square().sum(0)[inputs].sum(1)


def _products(sums: RegressionSums, group: int, weight: Tensor, inputs: Tensor) -> Tensor:
    """C [a, a] for the inputs [a, t] of each channel."""
    means = (weight * _mean(sums, group))[:, inputs].sum(2)  # [o, a] mean contribution
    if weight.shape[1] > WIDEST:
        variances = (weight.square().sum(0) * sums.variances(group).cpu())[inputs].sum(1)
        return means.T @ means + torch.diag(variances)
    both = (weight.T @ weight) * sums.covariance(group).cpu()  # [n, n]
    a, t = inputs.shape
    return means.T @ means + both[inputs.flatten()][:, inputs.flatten()].view(a, t, a, t).sum((1, 3))


def _mean(sums: RegressionSums, group: int) -> Tensor:
    """[n] mean of the inputs."""
    return (sums.x[group] / sums.rows if isinstance(sums, GramSums) else sums.x[group].mean(0)).cpu()
