"""Mean square of the activations x squared norm of the readers' weights; needs no labels."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric


def reader_energy(channels: Channels) -> Tensor:
    """Mean square of the activations x squared norm of the readers' weights for the channel.

    The expected square of the channel's contribution to its readers' outputs, if its pixels were independent.
    """
    count, mean, m2 = channels.moments.total()
    return (m2 / count + mean.square()) * channels.reader_norms


ENTRY = Metric(
    name="reader_energy",
    help="Mean square of the activations x squared norm of the readers' weights; needs no labels",
    needs="moments",
    needs_classes=False,
    score=reader_energy,
)
