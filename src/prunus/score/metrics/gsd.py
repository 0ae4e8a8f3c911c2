"""Generalised symmetric divergence, the paper's metric."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric
from prunus.score.moments import Partition, one_versus_rest, over


def gsd(channels: Channels, ridge: float = 0.05) -> Tensor:
    """G-SD = mean over classes of SD(F^c, F^-c); Eqns. 1, 7 and 8 of the paper.

    SD = 1/2 [v / (w + r) + w / (v + r)] + 1/2 (mu - nu)^2 / (v + w + r) - 1, with mean mu and variance v of the class
    and nu and w of the rest. The paper has no ridge r and divides by zero if a channel is dead for a class; 0.05 is the
    value in the first author's later public code. "gsd:ridge=0" leaves it out.
    """

    def divergence(p: Partition) -> Tensor:
        v, w = p.variance, p.rest_variance
        ratio = over(v, w + ridge) + over(w, v + ridge)
        return 0.5 * ratio + 0.5 * over(p.gap.square(), v + w + ridge) - 1

    return one_versus_rest(channels.moments, divergence)


ENTRY = Metric(name="gsd", help="Generalised symmetric divergence, the paper's metric", needs="moments", score=gsd)
