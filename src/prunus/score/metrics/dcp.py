"""Gradient of discrimination-aware losses at inner layers (DCP, Zhuang et al. 2018)."""

from torch import Tensor

from prunus.score.evidence import ReaderGradients
from prunus.score.metrics import Metric


def dcp(found: ReaderGradients) -> Tensor:
    """|dL / dW_k|_F^2 of the readers' weights W_k for channel k, Zhuang et al. 2018, Algorithm 2.

    L is the discrimination-aware loss of the layer's stage (see `prunus.score.gradients`). All channels are
    scored at the trained weights, where the gradient of the reconstruction error, the other part of the published
    loss, is 0. The publication adds channels one by one instead, starting from none, and trains in between.
    """
    return found.gradients.square().sum(1)


ENTRY = Metric(
    name="dcp",
    help="Gradient of discrimination-aware losses at inner layers (DCP, Zhuang et al. 2018)",
    needs="discrimination",
    score=dcp,
)
