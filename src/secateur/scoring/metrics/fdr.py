"""Generalised Fisher discriminant ratio."""

from torch import Tensor

from secateur.scoring.metrics.binary import one_versus_rest
from secateur.scoring.metrics.evidence import Channels


def fdr(channels: Channels, ridge: float = 1e-4) -> Tensor:
    """G-FDR = mean over classes of (mu - nu)^2 / (v + w + r); supplement Eqn. 2, the ridge r is ours."""
    return one_versus_rest(channels.moments, lambda p: p.gap.square() / (p.variance + p.rest_variance + ridge))
