"""How many channels each unit loses so that all units save the same cost: FLOSS and n_l, Eqns. 2 and 3 of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prunus.decide.candidates import WidthLimits, kept_after
from prunus.decide.costs import CostOf, widths_of
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.traced import check_graph
from prunus.graph.units import Unit
from prunus.score.scores import Scores, check_scores

if TYPE_CHECKING:
    from prunus.decide.splits import SplitTask


# Plans that meet a budget: amounts scaled by one factor, and single steps undone where too much was removed.

TO_THE_FLOOR = 1e9  # a factor that takes every unit to its floor

Kept = dict[str, list[int]]  # unit -> channels that it keeps


@dataclass(frozen=True)
class Cutter:
    """Turns numbers of removed channels into kept channels: the weakest go first, within the width limits."""

    graph: ChannelGraph
    scores: Scores
    limits: WidthLimits = field(default_factory=WidthLimits)

    def __post_init__(self) -> None:
        """Refuse what is no graph and no scores."""
        check_graph(self.graph)
        check_scores(self.scores)

    def keep(self, unit: str, removed: int) -> list[int]:
        """The channels that a unit keeps when it loses `removed`."""
        return kept_after(self.graph.units[unit], self.scores.values[unit], removed)

    def scaled(self, amounts: Mapping[str, float], factor: float) -> Kept:
        """Kept channels when every unit loses `factor` times its amount, rounded to an allowed number."""
        removed = {name: self.limits.nearest(self.graph.units[name], n * factor) for name, n in amounts.items()}
        return {name: self.keep(name, count) for name, count in removed.items() if count > 0}

    def fit(self, amounts: Mapping[str, float], cost: CostOf, budget: float) -> Kept | None:
        """Scale all amounts by the smallest factor that meets the budget, then undo steps that are not needed.

        None if even the floors do not meet the budget.
        """

        def enough(factor: float) -> bool:
            return cost(self.scaled(amounts, factor)) <= budget

        if not enough(TO_THE_FLOOR):
            return None
        low, high = 0.0, 1.0
        while not enough(high):
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return self.give_back(self.scaled(amounts, high), cost, budget)

    def give_back(self, keep: Kept, cost: CostOf, budget: float) -> Kept:
        """Undo single steps, starting with the widest unit, while the budget still holds."""
        for name in sorted(keep, key=lambda n: -len(keep[n])):
            unit = self.graph.units[name]
            fewer = [n for n in self.limits.choices(unit) if n < unit.width - len(keep[name])]
            if fewer:
                more = {**keep, name: self.keep(name, fewer[-1])}
                if cost(more) <= budget:
                    keep = more
        return keep

    def plan(self, keep: Mapping[str, list[int]]) -> Plan:
        """The plan that keeps these channels; `graph.balance` makes it one that the network can carry out."""
        return Plan.of(self.graph, self.graph.balance(keep))


def cutter_for(task: SplitTask, cost: CostOf | None = None) -> Cutter:
    """The cutter of a split's task. Its units keep widths at which the cost (of the budget by default) is known."""
    known = widths_of(task.budget.of(task.graph) if cost is None else cost)
    return Cutter(task.graph, task.scores, WidthLimits(task.settings.round_to, task.original_widths, known))


@dataclass(frozen=True)
class Amount:
    """The number of channels that one unit would lose."""

    unit: str
    channels: int  # n_l, in whole granules
    floss: float  # cost saved by one channel (Eqn. 2)
    stopped: bool  # the floor keeps it from saving as much as the others


def amounts(cutter: Cutter, names: Sequence[str], *, alpha: float, cost: CostOf) -> dict[str, Amount]:
    """FLOSS_l = C(M) - C(M without one channel of l);  n_l = round(alpha * FLOSS_max / FLOSS_l), whole granules.

    If a unit loses g channels at a time (a granule, or a multiple of round_to), FLOSS_l is what the first g save,
    divided by g. Measured time falls in steps, and the first g may save nothing: if removing half of the channels saves
    more per channel, that counts. Units that would go below their floor stop there, and are marked.
    """
    if not 0 < alpha < math.inf:
        raise DecideError(f"alpha must be above 0 (the paper uses 2 to 4), got {alpha}")
    whole = cost({})
    floss = {}
    for name in names:
        unit, limits = cutter.graph.units[name], cutter.limits
        first = next((n for n in limits.choices(unit) if n > 0), unit.granule)
        tried = {first, limits.nearest(unit, unit.width / 2, least=first) or first}
        saved = [(whole - cost({name: cutter.keep(name, n)})) / n for n in tried]
        floss[name] = max(0.0, *saved)
    most = max(floss.values())
    if most <= 0:
        raise DecideError("no unit saves anything when it loses a channel")
    able = [cutter.graph.units[name] for name in names if floss[name] > 0]
    return {unit.name: _amount(unit, floss[unit.name], alpha * most, cutter.limits) for unit in able}


def _amount(unit: Unit, floss: float, aim: float, limits: WidthLimits) -> Amount:
    exact = aim / floss
    # Multiples of round_to are coarse. A unit whose amount rounds to 0 loses one step, or it could never be pruned.
    channels = limits.nearest(unit, exact, least=int(limits.round_to > 1))
    half_a_step = math.lcm(unit.granule, limits.round_to) / 2
    return Amount(unit.name, channels, floss, exact > channels + half_a_step)
