"""From sensitivity to a plan: the k least sensitive units lose channels, and a target is met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from prunus.decide.amounts import TO_THE_FLOOR, Cutter, amounts, cutter_for
from prunus.decide.candidates import WidthLimits, candidates, names_for, scored
from prunus.decide.costs import COSTS, CostOf, cost_function, name_of, widths_of
from prunus.decide.goal import Budget
from prunus.decide.optimiser import least_cost
from prunus.decide.sensitivity import Sensitivity, check_k
from prunus.decide.settings import SplitSettings
from prunus.decide.splits import SplitTask
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.score.scores import Scores

LEAST_ALPHA = 0.5


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

    target: fraction of the cost to remove. All chosen units then lose more or fewer channels, by one common factor, so
        that the target is met within 0.5%. If they cannot meet it, the next units join.
    cost: what the target counts: "macs", "params", "latency" (measured now) or a function of kept channels.
    whole: the cost that the target refers to (this network's by default; pass the original's in later rounds).
    round_to, widths: as in `sensitivity`.
    With a sensitivity by ratio (Li et al.) the k most robust units lose the same fraction of their channels: the one at
    which they were ranked, or the one that meets the target.
    """
    cutter = Cutter(graph, scores, WidthLimits(round_to, widths or {}))
    if not isinstance(sensitivity, Sensitivity):
        raise DecideError(f"expected what prunus.sensitivity returns, got {type(sensitivity).__name__}")
    if isinstance(cost, str):
        COSTS.check(cost)
    k = check_k(k, len(sensitivity.tried))
    ranked = scored(graph, scores, sensitivity.ranked())
    if target is None:
        tried = {name: sensitivity.tried[name].channels for name in ranked[:k]}
        return cutter.plan(cutter.scaled(tried, 1.0))
    cost_of = cost_function(graph, cost)
    cutter = replace(cutter, limits=replace(cutter.limits, known=widths_of(cost_of)))
    now = cost_of({})
    budget = (1 - target) * (now if whole is None else whole)
    _check_target(target, now, budget)
    for count in range(k, len(ranked) + 1):
        keep = cutter.fit(_amounts(sensitivity, ranked[:count]), cost_of, budget)
        if keep is not None:
            return cutter.plan(keep)
    least = cost_of(cutter.scaled(_amounts(sensitivity, ranked), TO_THE_FLOOR))
    raise DecideError(Budget(name_of(cost), budget, whole or now).out_of_reach(least))


def plan_by_rank(task: SplitTask) -> Plan:
    """The plan of a split that ranks units on held-out images.

    It removes no more than the budget allows. If the number of rounds is given, it meets the budget exactly.
    """
    settings, budget = task.settings, task.budget
    by_ratio = settings.split == "ratio"
    if not by_ratio:
        settings = replace(settings, alpha=_alpha(task))
        settings = replace(settings, k=_k(replace(task, settings=settings)))
    found = task.rank(settings)
    k = None if task.settings.k is None else min(task.settings.k, len(found.tried))
    limits = {"round_to": settings.round_to, "widths": task.original_widths}
    if budget.left is None or (settings.rounds is None and not by_ratio):
        plan = decide(task.graph, task.scores, found, k, **limits)  # type: ignore[arg-type]
        if budget.left is None or budget.of(task.graph)(plan.keep) > budget.left:
            return plan
    target = 1 - budget.left / budget.whole
    return decide(task.graph, task.scores, found, k, target, cost=budget.of(task.graph), whole=budget.whole, **limits)  # type: ignore[arg-type]


def _alpha(task: SplitTask) -> float:
    """alpha as given; solved if the number of rounds is given."""
    settings, left = task.settings, task.budget.left
    if left is None or settings.rounds is None:
        return settings.alpha
    cost = task.budget.of(task.graph)
    return max(LEAST_ALPHA, (cost({}) - left) / step_at_alpha_1(cutter_for(task), names_for(task), settings.k, cost))


def first_alpha(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> float:
    """The alpha of the first round: solved if the number of rounds is given, so that a run can say it at its start."""
    plain = Scores("none", {name: np.arange(float(unit.width)) for name, unit in graph.units.items()})
    now = budget.of(graph)({})
    return _alpha(SplitTask(graph, plain, budget.aim(now, settings.rounds or 1), settings, _no_rank))


def step_at_alpha_1(cutter: Cutter, names: Sequence[str], k: int | None, cost: CostOf) -> float:
    """What a round saves per alpha: k x FLOSS_max, with k a third of the units by default."""
    found = amounts(cutter, names, alpha=1.0, cost=cost)
    k = check_k(None if k is None else min(k, len(found)), len(found))
    return k * max(amount.floss for amount in found.values())


def _no_rank(_: SplitSettings) -> Sensitivity:
    raise DecideError("there are no held-out images here")


def _k(task: SplitTask) -> int | None:
    """k as given, or fewer if that many units have no channel left to lose."""
    settings = task.settings
    if settings.k is None:
        return None
    measured = not callable(settings.cost) and COSTS.find(settings.cost).measured
    cost = cost_function(task.graph, "macs" if measured else settings.cost)
    found = amounts(cutter_for(task, cost), names_for(task), alpha=settings.alpha, cost=cost)
    return min(settings.k, max(1, sum(amount.channels > 0 for amount in found.values())))


def _check_target(target: float, now: float, budget: float) -> None:
    if not 0 < target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {target}")
    if budget >= now:
        raise DecideError(f"the network meets the target of {target:.1%} already; ask for more")


def _amounts(sensitivity: Sensitivity, names: Sequence[str]) -> dict[str, float]:
    if sensitivity.split == "ratio":  # the same fraction of all: amounts in proportion to the widths
        return {name: sensitivity.tried[name].width for name in names}
    return {name: max(1, sensitivity.tried[name].channels) for name in names}


# Whether a goal can be reached at all, before anything long is done.


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
