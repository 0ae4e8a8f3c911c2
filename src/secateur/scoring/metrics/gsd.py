"""Generalised symmetric divergence, the paper's metric."""

from torch import Tensor

from secateur.scoring.evidence import Channels
from secateur.scoring.metrics import Metric
from secateur.scoring.one_versus_rest import Partition, one_versus_rest


def gsd(channels: Channels, ridge: float = 0.05) -> Tensor:
    """G-SD = mean over classes of SD(F^c, F^-c); paper Eqn. 1, supplement Eqns. 4 and 5.

    SD = 1/2 [v / (w + r) + w / (v + r)] + 1/2 (mu - nu)^2 / (v + w + r) - 1, with mean mu and variance v of the class
    and nu and w of the rest. The ridge r is ours: the paper divides by zero if a channel is dead for a class.
    """

    def divergence(p: Partition) -> Tensor:
        v, w = p.variance, p.rest_variance
        ratio = v / (w + ridge) + w / (v + ridge)
        return 0.5 * ratio + 0.5 * p.gap.square() / (v + w + ridge) - 1

    return one_versus_rest(channels.moments, divergence)


ENTRY = Metric(needs="moments", score=gsd)
