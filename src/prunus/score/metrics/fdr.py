"""Generalised Fisher discriminant ratio."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric
from prunus.score.moments import one_versus_rest, over


def fdr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-FDR = mean over classes of (mu - nu)^2 / (v + w + r); Eqn. 5, the ridge r is ours."""
    return one_versus_rest(channels.moments, lambda p: over(p.gap.square(), p.variance + p.rest_variance + ridge))


ENTRY = Metric(name="fdr", help="Generalised Fisher discriminant ratio", needs="moments", score=fdr)
