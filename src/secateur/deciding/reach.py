"""Whether a goal can be reached at all, before anything long is done."""

from __future__ import annotations

import numpy as np

from secateur.channels.graph import ChannelGraph
from secateur.deciding.budget import out_of_reach
from secateur.deciding.candidates import candidates
from secateur.deciding.costs import cost_function
from secateur.deciding.goal import Budget
from secateur.deciding.sensitivity import check_k
from secateur.deciding.settings import SplitSettings
from secateur.deciding.widths import floor_of
from secateur.errors import DecideError


def check_reach(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> None:
    """DecideError if no plan can meet the budget: every unit at its floor, and all readers of a stream alike."""
    names = candidates(graph, settings.exclude, settings.only)
    check_k(settings.k, len(names))
    if budget.left is None:
        return
    keep = {}
    for name in names:
        unit = graph.units[name]
        each = floor_of(unit, settings.round_to) // unit.granule
        first = [np.flatnonzero(unit.blocks == block)[:each] for block in range(unit.granule)]
        keep[name] = np.concatenate(first).tolist()
    least = cost_function(graph, budget.cost)(graph.balance(keep))
    if least > budget.left:
        removed = f"removing {1 - budget.left / budget.whole:.1%} of the {budget.cost}"
        raise DecideError(out_of_reach(removed, 1 - least / budget.whole))
