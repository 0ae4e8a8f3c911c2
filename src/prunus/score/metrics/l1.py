"""L1 norm of the filters (Li et al. 2017)."""

from torch import Tensor

from prunus.score.evidence import Filters
from prunus.score.metrics import Metric


def l1(filters: Filters) -> Tensor:
    """Sum of the absolute weights of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.abs().sum(1)


ENTRY = Metric(name="l1", help="L1 norm of the filters (Li et al. 2017)", needs="filters", score=l1)
