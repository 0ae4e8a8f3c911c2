"""Whether a goal can be reached at all, before anything long is done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from secateur.channels.graph import ChannelGraph
from secateur.deciding.budget import Cutter
from secateur.deciding.candidates import candidates
from secateur.deciding.costs import CostOf, widths_of
from secateur.deciding.goal import Budget
from secateur.deciding.optimiser.solve import least_cost
from secateur.deciding.sensitivity import check_k
from secateur.deciding.settings import SplitSettings
from secateur.deciding.widths import WidthLimits
from secateur.errors import DecideError
from secateur.scoring.scores import Scores


def check_reach(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> None:
    """DecideError if no plan can meet the budget."""
    names = candidates(graph, settings.exclude, settings.only)
    check_k(settings.k, len(names))
    if budget.left is None:
        return
    least = lowest_cost(graph, names, budget.of(graph), settings.round_to)
    if least > budget.left:
        raise DecideError(budget.out_of_reach(least))


def lowest_cost(graph: ChannelGraph, names: Sequence[str], cost: CostOf, round_to: int = 1) -> float:
    """The lowest cost that these units can be pruned to; all readers of a stream drop the same channels."""
    order = {name: np.arange(graph.units[name].width, dtype=np.float64) for name in names}
    cutter = Cutter(graph, Scores("order", order, 0), WidthLimits(round_to, known=widths_of(cost)))
    return least_cost(cutter, names, cost)
