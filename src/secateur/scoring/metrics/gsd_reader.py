"""Ours: the paper's metric, weighed by what the readers do with a channel."""

from torch import Tensor

from secateur.scoring.metrics.evidence import Channels
from secateur.scoring.metrics.gsd import gsd


def gsd_reader(channels: Channels, ridge: float = 0.05) -> Tensor:
    """(G-SD + 1) x norm of the readers' weights for the channel.

    G-SD says what a channel knows of the classes, the norm how much of that the next layers hear. G-SD is -1 at its
    lowest (a dead channel under a ridge), so the first factor is never negative.
    """
    return (gsd(channels, ridge) + 1) * channels.reader_norms.sqrt()
