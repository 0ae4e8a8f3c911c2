"""Variance of the activations, without labels."""

from torch import Tensor

from secateur.scoring.metrics.evidence import Channels


def act_variance(channels: Channels) -> Tensor:
    """Population variance of a channel's activations over all images and positions."""
    count, _, m2 = channels.moments.total()
    return m2 / count
