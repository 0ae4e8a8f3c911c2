"""Generalised absolute signal-to-noise ratio."""

from torch import Tensor

from secateur.scoring.metrics.binary import one_versus_rest
from secateur.scoring.metrics.evidence import Channels


def abs_snr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-AbsSNR = mean over classes of |mu - nu| / (sqrt(v) + sqrt(w) + r); supplement Eqn. 1, the ridge r is ours."""
    return one_versus_rest(
        channels.moments, lambda p: p.gap.abs() / (p.variance.sqrt() + p.rest_variance.sqrt() + ridge)
    )
