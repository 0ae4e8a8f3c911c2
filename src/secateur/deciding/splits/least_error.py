"""The total error after repair is smallest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secateur.channels.plan import Plan
from secateur.channels.units import Unit
from secateur.deciding.budget import Cutter, Kept, out_of_reach
from secateur.deciding.candidates import candidates, scored
from secateur.deciding.costs import CostOf, cost_function
from secateur.deciding.splits import Split, SplitTask
from secateur.deciding.widths import WidthLimits, weakest_first
from secateur.errors import DecideError
from secateur.scoring.scores import Vector


def least_error(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Split the cut among the units of `names` so that the sum of their errors is smallest:

        minimise over n_u    sum of E_u(n_u)    subject to    cost <= left.

    Scores must be errors that add up in the order of removal, as those of the metric "rebuilt": E_u(n) is the n-th of
    them. This is solved by Lagrange: at a price p of cost each unit loses the n that minimises E_u(n) - p s_u(n), where
    s_u is what the unit saves alone. The lowest price that meets the budget is found by bisection, and steps that are
    not needed are undone.
    """
    graph, cost_of = cutter.graph, cost_function(cutter.graph, cost)
    now = cost_of({})
    every = (_offer(cutter, graph.units[name], cost_of, now) for name in scored(graph, cutter.scores, names))
    offers = [offer for offer in every if offer.saved[-1] > 0]  # at no price would the others lose channels

    def keep_at(price: float) -> Kept:
        removed = {offer.unit.name: offer.best(price) for offer in offers}
        return {name: cutter.keep(name, n) for name, n in removed.items() if n}

    floors = {offer.unit.name: cutter.keep(offer.unit.name, int(offer.counts[-1])) for offer in offers}
    if cost_of(floors) > left:
        raise DecideError(out_of_reach(f"removing {1 - left / now:.1%}", 1 - cost_of(floors) / now))
    low, high = 0.0, 1.0 / now
    while cost_of(keep_at(high)) > left:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if cost_of(keep_at(middle)) <= left else (middle, high)
    return cutter.plan(cutter.give_back(keep_at(high), cost_of, left))


@dataclass(frozen=True, eq=False)
class _Offer:
    """What a unit can lose: the error and the saved cost for each number of channels."""

    unit: Unit
    counts: Vector
    errors: Vector
    saved: Vector

    def best(self, price: float) -> int:
        """The number of channels to lose at a price; the largest of equal ones."""
        gains = price * self.saved - self.errors
        return int(self.counts[np.flatnonzero(gains == gains.max())[-1]])


def _offer(cutter: Cutter, unit: Unit, cost: CostOf, now: float) -> _Offer:
    values, counts = cutter.scores.values[unit.name], np.array(cutter.limits.choices(unit))
    # With granules the weakest channel of each block is removed, so the errors may be out of order.
    added = np.maximum.accumulate(np.concatenate([[0.0], np.asarray(values)[weakest_first(unit, values)]]))
    most = int(counts[-1])
    each = (now - cost({unit.name: cutter.keep(unit.name, most)})) / most if most else 0.0
    return _Offer(unit, counts, added[counts], each * counts)


def _plan(task: SplitTask) -> Plan:
    settings = task.settings
    cutter = Cutter(task.graph, task.scores, WidthLimits(settings.round_to, task.original_widths))
    names = candidates(task.graph, settings.exclude, settings.only)
    return least_error(cutter, names, task.budget.left or 0.0, task.budget.cost)


ENTRY = Split(plan=_plan, ranks=False, metric="rebuilt", needs_errors=True)
