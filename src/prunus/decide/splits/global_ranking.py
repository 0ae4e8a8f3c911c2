"""All channels of all units in one ranking: the lowest scores go, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prunus.decide.amounts import Cutter, Kept, cutter_for
from prunus.decide.candidates import names_for, scored
from prunus.decide.costs import CostOf, cost_function, name_of
from prunus.decide.goal import Budget
from prunus.decide.splits import Split, SplitTask
from prunus.errors import DecideError
from prunus.graph.plan import Plan
from prunus.score.evidence import scales

SCALES = "bn_scale"


def global_ranking(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Remove all channels whose score is at most t, with the smallest t that leaves a cost of `left`.

    This is the threshold of network slimming (Liu et al. 2017). A unit loses the largest allowed number of channels
    that is not above the number of its scores up to t; floors, granules and multiples of round_to count.
    """
    cost_of = cost_function(cutter.graph, cost)
    found = scored(cutter.graph, cutter.scores, names)
    values = np.unique(np.concatenate([cutter.scores.values[name] for name in found]))

    def keep_at(place: int) -> Kept:
        """Kept channels with the threshold values[place]."""
        keep = {}
        for name in found:
            below = int((cutter.scores.values[name] <= values[place]).sum())
            removed = max(n for n in cutter.limits.choices(cutter.graph.units[name]) if n <= below)
            if removed:
                keep[name] = cutter.keep(name, removed)
        return keep

    low, high = -1, len(values) - 1
    if cost_of(keep_at(high)) > left:
        raise DecideError(Budget(name_of(cost), left, cost_of({})).out_of_reach(cost_of(keep_at(high))))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cost_of(keep_at(middle)) <= left else (middle, high)
    return cutter.plan(keep_at(high))


def _plan(task: SplitTask) -> Plan:
    graph, names = task.graph, names_for(task)
    if task.scores.metric == SCALES:  # units without batch norms have scores of another kind
        names = [name for name in names if scales(graph, graph.units[name]) is not None]
        if not names:
            raise DecideError("no unit has a batch norm of its own, so there are no scales to rank; use another metric")
    return global_ranking(cutter_for(task), names, task.budget.left or 0.0, task.budget.of(graph))


ENTRY = Split(
    name="global_ranking",
    help="All channels of all units in one ranking: the lowest scores go, wherever they are",
    plan=_plan,
    ranks=False,
    metric=SCALES,
)
