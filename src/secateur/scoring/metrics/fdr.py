"""Generalised Fisher discriminant ratio."""

from torch import Tensor

from secateur.scoring.evidence import Channels
from secateur.scoring.metrics import Metric
from secateur.scoring.one_versus_rest import one_versus_rest, over


def fdr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-FDR = mean over classes of (mu - nu)^2 / (v + w + r); Eqn. 5, the ridge r is ours."""
    return one_versus_rest(channels.moments, lambda p: over(p.gap.square(), p.variance + p.rest_variance + ridge))


ENTRY = Metric(needs="moments", score=fdr)
