"""The least sensitive units lose the same fraction of channels (Li et al. 2017)."""

from prunus.decide.ranked_plan import plan_by_rank
from prunus.decide.splits import Split
from prunus.score.metrics import DEFAULT_METRIC

ENTRY = Split(
    name="ratio",
    help="The least sensitive units lose the same fraction of channels (Li et al. 2017)",
    plan=plan_by_rank,
    ranks=True,
    metric=DEFAULT_METRIC,
)
