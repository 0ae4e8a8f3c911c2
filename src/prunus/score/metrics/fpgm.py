"""Distance from the geometric median of the filters (He et al. 2019)."""

import torch
from torch import Tensor

from prunus.score.evidence import Filters
from prunus.score.metrics import Metric


def fpgm(filters: Filters) -> Tensor:
    """Sum of the Euclidean distances from a channel's filter to all other filters of the unit.

    Filters with the smallest sums are nearest to the geometric median, so the other filters can replace them.
    """
    return torch.cdist(filters.weights, filters.weights).sum(1)  # [n, n] -> [n]


ENTRY = Metric(
    name="fpgm", help="Distance from the geometric median of the filters (He et al. 2019)", needs="filters", score=fpgm
)
