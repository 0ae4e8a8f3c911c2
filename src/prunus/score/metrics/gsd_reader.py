"""(G-SD + 1) x norm of the readers' weights."""

from torch import Tensor

from prunus.score.evidence import Channels
from prunus.score.metrics import Metric
from prunus.score.metrics.gsd import gsd


def gsd_reader(channels: Channels, ridge: float = 0.05) -> Tensor:
    """(G-SD + 1) x norm of the readers' weights for the channel.

    G-SD measures how well a channel separates the classes, the norm how strongly the next layers use it. G-SD is at
    least -1 (a dead channel, with a ridge), so the first factor is never negative.
    """
    return (gsd(channels, ridge) + 1) * channels.reader_norms.sqrt()


ENTRY = Metric(name="gsd_reader", help="(G-SD + 1) x norm of the readers' weights", needs="moments", score=gsd_reader)
