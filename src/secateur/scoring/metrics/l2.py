"""L2 norm of filters."""

from torch import Tensor

from secateur.scoring.metrics.evidence import Filters


def l2(filters: Filters) -> Tensor:
    """Euclidean norm of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.square().sum(1).sqrt()
