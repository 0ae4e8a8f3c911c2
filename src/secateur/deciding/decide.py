"""From sensitivity to a plan: the k least sensitive units lose their channels, and a target is met."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.amounts import CostOf, Room, cost_by, kept_after, scaled, scored
from secateur.deciding.sensitivity import Sensitivity, check_k
from secateur.errors import DecideError
from secateur.scoring.scores import Scores

logger = logging.getLogger(__name__)

ALL = 1e9  # a factor that takes every unit to its floor


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
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """The k units with the highest held-out accuracy lose their n_l channels (Algorithm 1); k is L / 3 by default.

    target: the fraction of the cost to remove. The chosen units then lose so much more or less, all by one factor,
        that the target is met within 0.5%; where they cannot, the next units join. `whole` is the cost that the
        fraction refers to (default: this network's; pass the original's in later rounds).
    round_to, widths: as in `sensitivity`.
    With sensitivity by ratio (Li et al.) the k most robust units lose one and the same share of their channels: the
    one that they were ranked by, or the one that meets the target.
    """
    k = check_k(k, len(sensitivity.tried))
    room = Room(round_to, widths or {})
    ranked = sensitivity.ranked()
    scored(graph, scores, ranked)
    if target is None:
        tried = {name: sensitivity.tried[name].channels for name in ranked[:k]}
        return plan_of(graph, scaled(graph, scores, tried, 1.0, room))
    cost_of = cost_by(graph, cost) if isinstance(cost, str) else cost
    now = cost_of({})
    goal = (1 - target) * (now if whole is None else whole)
    check_target(target, now, goal)
    for count in range(k, len(ranked) + 1):
        keep = _fit(graph, scores, _amounts(sensitivity, ranked[:count]), cost_of, goal, room)
        if keep is not None:
            return plan_of(graph, keep)
    least = cost_of(scaled(graph, scores, _amounts(sensitivity, ranked), ALL, room))
    raise DecideError(out_of_reach(f"a target of {target:.1%}", 1 - least / (whole or now)))


def alike(
    graph: ChannelGraph,
    scores: Scores,
    names: Sequence[str],
    left: float,
    *,
    cost: str | CostOf = "macs",
    round_to: int = 1,
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """Every unit of `names` loses the same share of its channels, as large as it takes to leave a cost of `left`."""
    cost_of = cost_by(graph, cost) if isinstance(cost, str) else cost
    room = Room(round_to, widths or {})
    chosen = {name: graph.units[name].width for name in scored(graph, scores, names)}
    keep = _fit(graph, scores, chosen, cost_of, left, room)
    if keep is None:
        least, now = cost_of(scaled(graph, scores, chosen, ALL, room)), cost_of({})
        raise DecideError(out_of_reach(f"removing {1 - left / now:.1%}", 1 - least / now))
    return plan_of(graph, keep)


def out_of_reach(goal: str, reach: float) -> str:
    """What to say when even the floors leave too much."""
    return (
        f"{goal} is out of reach: with every unit at its floor (2 channels, 10%) {reach:.1%} can be removed. "
        "Ask for less, or exclude fewer units."
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
    graph: ChannelGraph, scores: Scores, chosen: Mapping[str, int], cost: CostOf, goal: float, room: Room
) -> dict[str, list[int]] | None:
    """Scale all amounts by one factor until the cost is at the goal, then give back what is too much, unit by unit."""

    def enough(scale: float) -> bool:
        return cost(scaled(graph, scores, chosen, scale, room)) <= goal

    if not enough(ALL):
        return None
    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return give_back(graph, scores, scaled(graph, scores, chosen, high, room), cost, goal, room)


def give_back(
    graph: ChannelGraph, scores: Scores, keep: dict[str, list[int]], cost: CostOf, goal: float, room: Room
) -> dict[str, list[int]]:
    """Undo single steps, the widest units first, as long as the goal still holds."""
    for name in sorted(keep, key=lambda n: -len(keep[n])):
        unit = graph.units[name]
        fewer = [n for n in room.choices(unit) if n < unit.width - len(keep[name])]
        if fewer:
            more = {**keep, name: kept_after(unit, scores.values[name], fewer[-1])}
            if cost(more) <= goal:
                keep = more
    return keep


def plan_of(graph: ChannelGraph, keep: Mapping[str, list[int]]) -> Plan:
    """The plan that keeps these channels, once readers that must agree do."""
    return Plan.of(graph, graph.balance(keep))
