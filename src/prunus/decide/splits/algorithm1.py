"""The least sensitive units lose the same cost each (the paper's Algorithm 1)."""

from prunus.decide.ranked_plan import plan_by_rank
from prunus.decide.splits import Split
from prunus.score.metrics import DEFAULT_METRIC

ENTRY = Split(
    name="algorithm1",
    help="The least sensitive units lose the same cost each (the paper's Algorithm 1)",
    plan=plan_by_rank,
    ranks=True,
    metric=DEFAULT_METRIC,
)
