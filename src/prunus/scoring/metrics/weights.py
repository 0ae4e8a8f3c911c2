"""Metrics of the weights alone, random scores, and metrics of weights and channels by their gradients."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from prunus.graph.units import Unit
from prunus.scoring.evidence import Filters, Gradients
from prunus.scoring.metrics import metric


@metric("L1 norm of the filters (Li et al. 2017)", needs="filters", cites=("li2017pruning",))
def l1(filters: Filters) -> Tensor:
    """Sum of the absolute weights of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.abs().sum(1)


@metric("L2 norm of the filters", needs="filters", cites=("li2017pruning",))
def l2(filters: Filters) -> Tensor:
    """Euclidean norm of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.square().sum(1).sqrt()


@metric("Distance from the geometric median of the filters (He et al. 2019)", needs="filters", cites=("he2019filter",))
def fpgm(filters: Filters) -> Tensor:
    """Sum of the Euclidean distances from a channel's filter to all other filters of the unit.

    Filters with the smallest sums are nearest to the geometric median, so the other filters can replace them.
    """
    return torch.cdist(filters.weights, filters.weights).sum(1)  # [n, n] -> [n]


@metric(
    "Scale of the batch norm after the filter (network slimming, Liu et al. 2017)",
    needs="filters",
    cites=("liu2017learning",),
)
def bn_scale(filters: Filters) -> Tensor:
    """|gamma| of the batch norm between the channel's writer and its readers; the largest if there are several.

    If a channel passes no batch norm (a stream, a network without batch norm), the whole unit is scored by the L2 norm
    of its filters, or of the readers' slices.
    """
    return l2(filters) if filters.scales is None else filters.scales


@metric("Random scores, a baseline", needs="nothing")
def random(unit: Unit, seed: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the seed and the unit's name only."""
    digest = hashlib.sha256(f"{seed}/{unit.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.rand(unit.width, dtype=torch.float64, generator=generator)


@metric(
    "First-order Taylor expansion on weights (Molchanov et al. 2019)",
    needs="gradients",
    cites=("molchanov2019importance",),
)
def taylor(gradients: Gradients) -> Tensor:
    """Sum over a channel's filter (the readers' slices for a stream) of |weight x gradient of the mean loss|.

    Each term is the first-order change of the loss if that weight alone is set to zero. Absolute values are taken
    before the sum, because near a minimum the signed terms of a whole filter cancel. Molchanov et al. square instead:
    each term, or the sum over the filter.
    """
    return (gradients.weights * gradients.weight_gradients).abs().sum(1)


@metric("Fisher information of a channel's gate (Theis et al. 2018)", needs="gradients", cites=("theis2018faster",))
def fisher(gradients: Gradients) -> Tensor:
    """1 / (2 N) sum over images of (sum over positions of activation x gradient of the image's loss)^2.

    The second-order change of the loss if the channel is removed, with the Fisher matrix as the Hessian. Activation
    and gradient are those of the readers' inputs, summed over readers.
    """
    return gradients.effect_squares / (2 * gradients.num_images)


@metric(
    "Gradient of discrimination-aware losses at inner layers (DCP, Zhuang et al. 2018)",
    needs="discrimination",
    cites=("zhuang2018discrimination",),
)
def dcp(gradients: Tensor) -> Tensor:
    """|dL / dW_k|_F^2 from gradients [n, everything] of the readers' weights W_k, Zhuang et al. 2018, Algorithm 2.

    L is the discrimination-aware loss of the layer's stage (see `prunus.scoring.gradients`). All channels are
    scored at the trained weights, where the gradient of the reconstruction error, the other part of the published
    loss, is 0. The publication adds channels one by one instead, starting from none, and trains in between.
    """
    return gradients.square().sum(1)


@metric(
    "Importance propagated back from the features that the classifier reads (NISP, Yu et al. 2018)",
    needs="importance",
    cites=("yu2018nisp", "roffo2015infinite"),
)
def nisp(importance: Tensor) -> Tensor:
    """Sum over positions of the importance s_l = |W_(l+1)|' s_(l+1), Yu et al. 2018, Eqn. 20.

    It starts from the ranking of the classifier's inputs by infinite feature selection (Roffo et al. 2015) and runs
    back through the graph (see `prunus.scoring.gradients`).
    """
    return importance
