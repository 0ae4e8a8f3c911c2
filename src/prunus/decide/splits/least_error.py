"""The total error after repair is smallest."""

from __future__ import annotations

from collections.abc import Sequence

from prunus.decide.amounts import Cutter, cutter_for
from prunus.decide.candidates import names_for, scored
from prunus.decide.costs import CostOf, cost_function, name_of
from prunus.decide.goal import Budget
from prunus.decide.optimiser import keep_within, least_cost
from prunus.decide.splits import Split, SplitTask
from prunus.errors import DecideError
from prunus.graph.plan import Plan


def least_error(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Split the cut among the units of `names` so that the sum of their errors is smallest:

        minimise over n_u    sum of E_u(n_u)    subject to    cost <= left.

    Scores must be errors that add up in the order of removal, as those of the metric "rebuilt": E_u(n) is the n-th of
    them. See `prunus.decide.optimiser`: exact where units are coupled in chains by a cost that adds up over layers.
    """
    cost_of = cost_function(cutter.graph, cost)
    able = scored(cutter.graph, cutter.scores, names)
    keep = keep_within(cutter, able, cost_of, left)
    if keep is None:
        budget = Budget(name_of(cost), left, cost_of({}))
        raise DecideError(budget.out_of_reach(least_cost(cutter, able, cost_of)))
    return cutter.plan(keep)


def _plan(task: SplitTask) -> Plan:
    return least_error(cutter_for(task), names_for(task), task.budget.left or 0.0, task.budget.of(task.graph))


ENTRY = Split(
    name="least_error",
    help="The total error after repair is smallest",
    plan=_plan,
    ranks=False,
    metric="rebuilt",
    needs_errors=True,
)
