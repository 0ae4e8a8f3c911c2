"""The least sensitive units lose the same cost each (the paper's Algorithm 1)."""

from secateur.deciding.ranked_plan import plan_by_rank
from secateur.deciding.splits import Split
from secateur.scoring.metrics import DEFAULT_METRIC

ENTRY = Split(plan=plan_by_rank, ranks=True, metric=DEFAULT_METRIC)
