"""Variance of the activations; needs no labels."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric


def act_variance(channels: Channels) -> Tensor:
    """Population variance of a channel's activations over all images and positions."""
    count, _, m2 = channels.moments.total()
    return m2 / count


ENTRY = Metric(
    name="act_variance",
    help="Variance of the activations; needs no labels",
    needs="moments",
    needs_classes=False,
    score=act_variance,
)
