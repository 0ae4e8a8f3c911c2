"""Generalised absolute signal-to-noise ratio."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric
from prunus.score.moments import one_versus_rest, over


def abs_snr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-AbsSNR = mean over classes of |mu - nu| / (sqrt(v) + sqrt(w) + r); Eqn. 4, the ridge r is ours."""
    return one_versus_rest(
        channels.moments, lambda p: over(p.gap.abs(), p.variance.sqrt() + p.rest_variance.sqrt() + ridge)
    )


ENTRY = Metric(name="abs_snr", help="Generalised absolute signal-to-noise ratio", needs="moments", score=abs_snr)
