"""Scale of the batch norm after the filter (network slimming, Liu et al. 2017)."""

from torch import Tensor

from secateur.scoring.evidence import Filters
from secateur.scoring.metrics import Metric
from secateur.scoring.metrics.l2 import l2


def bn_scale(filters: Filters) -> Tensor:
    """|gamma| of the batch norm that the channel goes through on its way from its writer to its readers.

    Several norms: the largest. Where a channel goes through none (a stream, a network without batch norm) the L2 norm
    of its filter, or of the readers' slices, stands in for the whole unit.
    """
    return l2(filters) if filters.scales is None else filters.scales


ENTRY = Metric(needs="filters", score=bn_scale)
