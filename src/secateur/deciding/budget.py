"""Plans that meet a budget: amounts scaled by one factor, and single steps undone where too much was removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from secateur.channels.arguments import check_graph
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.costs import CostOf, widths_of
from secateur.deciding.widths import WidthLimits, kept_after
from secateur.scoring.scores import Scores, check_scores

if TYPE_CHECKING:
    from secateur.deciding.splits import SplitTask

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
