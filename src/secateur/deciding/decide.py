"""From sensitivity to a plan: the k least sensitive units lose their channels, and a target is met."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.amounts import CostOf, cost_by, kept_after, scaled
from secateur.deciding.sensitivity import Sensitivity, check_k
from secateur.errors import DecideError
from secateur.scoring.scores import Scores

logger = logging.getLogger(__name__)


def decide(
    graph: ChannelGraph,
    scores: Scores,
    sensitivity: Sensitivity,
    k: int | None = None,
    target: float | None = None,
    *,
    cost: str | CostOf = "macs",
    whole: float | None = None,
    round_to: int = 1,
) -> Plan:
    """The k units with the highest held-out accuracy lose their n_l channels (Algorithm 1); k is L / 3 by default.

    target: the fraction of the cost to remove. The chosen units then lose so much more or less, all by one factor,
        that the target is met within 0.5%; where they cannot, the next units join. `whole` is the cost that the
        fraction refers to (default: this network's; pass the original's in later rounds).
    With sensitivity by ratio (Li et al.) the k most robust units lose one and the same share of their channels.
    """
    k = check_k(k, len(sensitivity.tried))
    ranked = sensitivity.ranked()
    if target is None:
        return _plan(graph, scaled(graph, scores, _amounts(sensitivity, ranked[:k]), 1.0, round_to))
    cost_of = cost_by(graph, cost) if isinstance(cost, str) else cost
    now = cost_of({})
    goal = (1 - target) * (now if whole is None else whole)
    check_target(target, now, goal)
    for count in range(k, len(ranked) + 1):
        chosen = _amounts(sensitivity, ranked[:count])
        keep = _fit(graph, scores, chosen, cost_of, goal, round_to)
        if keep is not None:
            return _plan(graph, keep)
    reach = 1 - cost_of(scaled(graph, scores, _amounts(sensitivity, ranked), 1e9, round_to)) / (whole or now)
    raise DecideError(
        f"a target of {target:.1%} is out of reach: with every unit at its floor (2 channels, 10%) {reach:.1%} can be "
        "removed. Lower the target, or exclude fewer units."
    )


def check_target(target: float, now: float, goal: float) -> None:
    """A target must be a fraction, and not met already."""
    if not 0 < target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {target}")
    if goal >= now:
        raise DecideError(f"the target of {target:.1%} is met already; ask for more, or stop here")


def _amounts(sensitivity: Sensitivity, names: list[str]) -> dict[str, int]:
    if sensitivity.method == "ratio":  # one share for all: amounts in proportion to the widths
        return {name: sensitivity.tried[name].width for name in names}
    return {name: max(1, sensitivity.tried[name].channels) for name in names}


def _fit(
    graph: ChannelGraph,
    scores: Scores,
    chosen: Mapping[str, int],
    cost: CostOf,
    goal: float,
    round_to: int,
) -> dict[str, list[int]] | None:
    """Scale all amounts by one factor until the cost is at the goal, then give back what is too much, unit by unit."""
    high = 1.0
    while cost(scaled(graph, scores, chosen, high, round_to)) > goal:
        high *= 2
        if high > 1e6:
            return None
    low = 0.0
    for _ in range(40):
        middle = (low + high) / 2
        if cost(scaled(graph, scores, chosen, middle, round_to)) > goal:
            low = middle
        else:
            high = middle
    return _give_back(graph, scores, scaled(graph, scores, chosen, high, round_to), cost, goal)


def _give_back(
    graph: ChannelGraph, scores: Scores, keep: dict[str, list[int]], cost: CostOf, goal: float
) -> dict[str, list[int]]:
    """Undo single granules, the most valuable channels first, as long as the goal still holds."""
    for name in sorted(keep, key=lambda n: -len(keep[n])):
        unit = graph.units[name]
        fewer = unit.width - len(keep[name]) - unit.granule
        if fewer < 0:
            continue
        more = {**keep, name: kept_after(unit, scores.values[name], fewer)}
        if cost(more) <= goal:
            keep = more
    return keep


def _plan(graph: ChannelGraph, keep: Mapping[str, list[int]]) -> Plan:
    return Plan.of(graph, graph.balance(keep))
