"""Distance from the geometric median of the filters (He et al. 2019)."""

import torch
from torch import Tensor

from secateur.scoring.evidence import Filters
from secateur.scoring.metrics import Metric


def fpgm(filters: Filters) -> Tensor:
    """Sum of the Euclidean distances from a channel's filter to all other filters of the unit.

    The filters with the smallest sums lie nearest to the geometric median: the others can stand in for them.
    """
    return torch.cdist(filters.weights, filters.weights).sum(1)  # [n, n] -> [n]


ENTRY = Metric(needs="filters", score=fpgm)
