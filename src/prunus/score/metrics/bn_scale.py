"""Scale of the batch norm after the filter (network slimming, Liu et al. 2017)."""

from torch import Tensor

from prunus.score.evidence import Filters
from prunus.score.metrics import Metric
from prunus.score.metrics.l2 import l2


def bn_scale(filters: Filters) -> Tensor:
    """|gamma| of the batch norm between the channel's writer and its readers; the largest if there are several.

    If a channel passes no batch norm (a stream, a network without batch norm), the whole unit is scored by the L2 norm
    of its filters, or of the readers' slices.
    """
    return l2(filters) if filters.scales is None else filters.scales


ENTRY = Metric(
    name="bn_scale",
    help="Scale of the batch norm after the filter (network slimming, Liu et al. 2017)",
    needs="filters",
    score=bn_scale,
)
