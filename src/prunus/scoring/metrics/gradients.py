"""Metrics from a backward pass: of the loss, of losses at inner layers, and of importance at the classifier."""

from __future__ import annotations

from torch import Tensor

from prunus.scoring.evidence import Gradients
from prunus.scoring.metrics import Metric


def taylor(gradients: Gradients) -> Tensor:
    """Sum over a channel's filter (the readers' slices for a stream) of |weight x gradient of the mean loss|.

    Each term is the first-order change of the loss if that weight alone is set to zero. Absolute values are taken
    before the sum, because near a minimum the signed terms of a whole filter cancel. Molchanov et al. square instead:
    each term, or the sum over the filter.
    """
    return (gradients.weights * gradients.weight_gradients).abs().sum(1)


def fisher(gradients: Gradients) -> Tensor:
    """1 / (2 N) sum over images of (sum over positions of activation x gradient of the image's loss)^2.

    The second-order change of the loss if the channel is removed, with the Fisher matrix as the Hessian. Activation
    and gradient are those of the readers' inputs, summed over readers.
    """
    return gradients.effect_squares / (2 * gradients.num_images)


def dcp(gradients: Tensor) -> Tensor:
    """|dL / dW_k|_F^2 from gradients [n, everything] of the readers' weights W_k, Zhuang et al. 2018, Algorithm 2.

    L is the discrimination-aware loss of the layer's stage (see `prunus.scoring.gradients`). All channels are
    scored at the trained weights, where the gradient of the reconstruction error, the other part of the published
    loss, is 0. The publication adds channels one by one instead, starting from none, and trains in between.
    """
    return gradients.square().sum(1)


def nisp(importance: Tensor) -> Tensor:
    """Sum over positions of the importance s_l = |W_(l+1)|' s_(l+1), Yu et al. 2018, Eqn. 20.

    It starts from the ranking of the classifier's inputs by infinite feature selection (Roffo et al. 2015) and runs
    back through the graph (see `prunus.scoring.importance`).
    """
    return importance


TAYLOR = Metric(
    name="taylor",
    help="First-order Taylor expansion on weights (Molchanov et al. 2019)",
    needs="gradients",
    score=taylor,
)
FISHER = Metric(
    name="fisher", help="Fisher information of a channel's gate (Theis et al. 2018)", needs="gradients", score=fisher
)
DCP = Metric(
    name="dcp",
    help="Gradient of discrimination-aware losses at inner layers (DCP, Zhuang et al. 2018)",
    needs="discrimination",
    score=dcp,
)
NISP = Metric(
    name="nisp",
    help="Importance propagated back from the features that the classifier reads (NISP, Yu et al. 2018)",
    needs="importance",
    score=nisp,
)
