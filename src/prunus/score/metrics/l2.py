"""L2 norm of the filters."""

from torch import Tensor

from prunus.score.evidence import Filters
from prunus.score.metrics import Metric


def l2(filters: Filters) -> Tensor:
    """Euclidean norm of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.square().sum(1).sqrt()


ENTRY = Metric(name="l2", help="L2 norm of the filters", needs="filters", score=l2)
