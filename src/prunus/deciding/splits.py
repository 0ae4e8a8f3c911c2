"""The splits: how a cut is split among the units of a network. They are listed in `prunus.deciding.settings.SPLITS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from prunus.deciding.candidates import candidates, check_patterns, scored
from prunus.deciding.costs import COSTS, CostOf, cost_function, name_of, widths_of
from prunus.deciding.goal import Budget
from prunus.deciding.optimiser import keep_within, least_cost
from prunus.deciding.sensitivity import Sensitivity
from prunus.deciding.settings import Split, SplitSettings, SplitTask, check_k
from prunus.deciding.widths import TO_THE_FLOOR, Cutter, Kept, WidthLimits, amounts, floor_of
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.scoring.evidence import scales
from prunus.scoring.metrics import DEFAULT_METRIC
from prunus.scoring.scores import Scores

LEAST_ALPHA = 0.5
SCALES = "bn_scale"


# -------------------------------------------------------------------------- units are ranked on held-out images


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
    """The k units with the highest held-out accuracy lose their n_l channels (Algorithm 1).

    With a sensitivity by ratio (Li et al.) the k most robust units lose the same fraction of their channels: the one at
    which they were ranked, or the one that meets the target.

    Args:
        graph: The graph of the network that loses channels.
        scores: Scores of its channels; the lowest go first.
        sensitivity: What `prunus.sensitivity` returns.
        k: How many units lose channels; a third of them by default.
        target: Fraction of the cost to remove. All chosen units then lose more or fewer channels, by one common factor,
            so that the target is met within 0.5%. If they cannot meet it, the next units join.
        cost: What the target counts: "macs", "params", "latency" (measured now) or a function of kept channels.
        whole: The cost that the target refers to (this network's by default; pass the original's in later rounds).
        round_to, widths: As in `sensitivity`.
    """
    cutter = Cutter(graph, scores, WidthLimits(round_to, widths or {}))
    if not isinstance(sensitivity, Sensitivity):
        raise DecideError(f"expected what prunus.sensitivity returns, got {type(sensitivity).__name__}")
    if isinstance(cost, str):
        COSTS.check(cost)
    rows = sensitivity.tried
    k = check_k(k, len(rows))
    ranked = scored(graph, scores, sensitivity.ranked())
    if target is None:
        return cutter.plan(cutter.scaled({name: rows[name].channels for name in ranked[:k]}, 1.0))
    if not 0 < target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {target}")
    cost_of = cost_function(graph, cost)
    cutter = replace(cutter, limits=replace(cutter.limits, known=widths_of(cost_of)))
    now = cost_of({})
    left = (1 - target) * (now if whole is None else whole)
    if left >= now:
        raise DecideError(f"the network meets the target of {target:.1%} already; ask for more")
    if sensitivity.split == "ratio":  # the same fraction of all: amounts in proportion to the widths
        wanted: dict[str, float] = {name: rows[name].width for name in ranked}
    else:
        wanted = {name: max(1, rows[name].channels) for name in ranked}
    for count in range(k, len(ranked) + 1):
        keep = cutter.fit({name: wanted[name] for name in ranked[:count]}, cost_of, left)
        if keep is not None:
            return cutter.plan(keep)
    least = cost_of(cutter.scaled(wanted, TO_THE_FLOOR))
    raise DecideError(Budget(name_of(cost), left, whole or now).out_of_reach(least))


def plan_by_rank(task: SplitTask) -> Plan:
    """The plan of a split that ranks units on held-out images.

    It removes no more than the budget allows. If the number of rounds is given, it meets the budget exactly.
    """
    graph, settings, budget = task.graph, task.settings, task.budget
    by_ratio, names = settings.split == "ratio", _names(task)
    if not by_ratio:
        settings = replace(settings, alpha=_alpha(_cutter(task), names, budget, settings))
    if not by_ratio and settings.k is not None:  # fewer units, if that many have no channel left to lose
        measured = not callable(settings.cost) and COSTS.find(settings.cost).measured
        cost = cost_function(graph, "macs" if measured else settings.cost)
        able = amounts(_cutter(task, cost), names, alpha=settings.alpha, cost=cost)
        settings = replace(settings, k=min(settings.k, max(1, sum(a.channels > 0 for a in able.values()))))
    sensitivity = task.rank(settings)
    k = None if task.settings.k is None else min(task.settings.k, len(sensitivity.tried))
    round_to, widths = settings.round_to, task.original_widths
    if budget.left is None or (settings.rounds is None and not by_ratio):
        plan = decide(graph, task.scores, sensitivity, k, round_to=round_to, widths=widths)
        if budget.left is None or budget.of(graph)(plan.keep) > budget.left:
            return plan
    target, cost = 1 - budget.left / budget.whole, budget.of(graph)
    return decide(
        graph, task.scores, sensitivity, k, target, cost=cost, whole=budget.whole, round_to=round_to, widths=widths
    )


def first_alpha(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> float:
    """The alpha of the first round: solved if the number of rounds is given, so that a run can say it at its start."""
    cost = budget.of(graph)
    cutter = Cutter(graph, _in_order(graph), WidthLimits(settings.round_to, known=widths_of(cost)))
    names = candidates(graph, settings.exclude, settings.only)
    return _alpha(cutter, names, budget.aim(cost({}), settings.rounds or 1), settings)


def step_at_alpha_1(cutter: Cutter, names: Sequence[str], k: int | None, cost: CostOf) -> float:
    """What a round saves per alpha: k x FLOSS_max, with k a third of the units by default."""
    able = amounts(cutter, names, alpha=1.0, cost=cost)
    k = check_k(None if k is None else min(k, len(able)), len(able))
    return k * max(amount.floss for amount in able.values())


def _alpha(cutter: Cutter, names: Sequence[str], budget: Budget, settings: SplitSettings) -> float:
    """alpha as given; solved if the number of rounds is given."""
    if budget.left is None or settings.rounds is None:
        return settings.alpha
    cost = budget.of(cutter.graph)
    return max(LEAST_ALPHA, (cost({}) - budget.left) / step_at_alpha_1(cutter, names, settings.k, cost))


ALGORITHM1 = Split(
    name="algorithm1",
    help="The least sensitive units lose the same cost each (the paper's Algorithm 1)",
    plan=plan_by_rank,
    ranks=True,
    metric=DEFAULT_METRIC,
)
RATIO = Split(
    name="ratio",
    help="The least sensitive units lose the same fraction of channels (Li et al. 2017)",
    plan=plan_by_rank,
    ranks=True,
    metric=DEFAULT_METRIC,
)


# --------------------------------------------------------------------------------- the same fraction of every unit


def uniform(
    graph: ChannelGraph,
    scores: Scores,
    ratio: float,
    *,
    units: Sequence[str] | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Plan:
    """Remove the weakest `ratio` of every unit: round(ratio x width) channels, in whole granules.

    A unit keeps at least 2 channels and 10% of its channels. By default the classifier's selection from a stream, units
    between two linear layers and units without scores are left alone.

    Args:
        graph: The graph of the network that loses channels.
        scores: Scores of its channels; the lowest go first.
        ratio: The fraction removed.
        units: Names of the units to prune instead.
        only, exclude: Patterns of units or layers, such as "layer1.*" or "*:out", as in `sensitivity` and `compress`.
    """
    cutter = Cutter(graph, scores)
    if not isinstance(ratio, int | float) or not 0 <= ratio < 1:
        raise DecideError(f"ratio is the fraction removed and must be at least 0 and below 1, got {ratio!r}")
    units = [units] if isinstance(units, str) else units
    only, exclude = ([given] if isinstance(given, str) else given for given in (only, exclude))
    if units is not None and (only or exclude):
        raise DecideError("give either units, by their names, or the patterns only and exclude")
    check_patterns(graph, exclude, only)
    names = units if units is not None else [n for n in candidates(graph, exclude, only) if n in scores.values]
    missing = [name for name in names if name not in scores.values or name not in graph.units]
    if missing:
        raise DecideError(f"unit {missing[0]!r} is not in both the graph and the scores")
    keep = {}
    for name in scored(graph, scores, names):
        unit = graph.units[name]
        wanted = unit.granule * round(ratio * unit.width / unit.granule)
        keep[name] = cutter.keep(name, min(wanted, unit.width - floor_of(unit)))
    return cutter.plan(keep)


def uniform_within(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Remove the same fraction of channels from every unit: the smallest fraction that leaves a cost of `left`."""
    cost_of = cost_function(cutter.graph, cost)
    widths = {name: cutter.graph.units[name].width for name in scored(cutter.graph, cutter.scores, names)}
    keep = cutter.fit(widths, cost_of, left)
    if keep is None:
        raise _out_of_reach(cost, cost_of, left, cost_of(cutter.scaled(widths, TO_THE_FLOOR)))
    return cutter.plan(keep)


UNIFORM = Split(
    name="uniform",
    help="The same fraction of channels from every unit",
    plan=lambda task: uniform_within(_cutter(task), _names(task), task.budget.left or 0.0, task.budget.of(task.graph)),
    ranks=False,
    metric=DEFAULT_METRIC,
)


# ----------------------------------------------------------------------------------------- one ranking of all channels


def global_ranking(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Remove all channels whose score is at most t, with the smallest t that leaves a cost of `left`.

    This is the threshold of network slimming (Liu et al. 2017). A unit loses the largest allowed number of channels
    that is not above the number of its scores up to t; floors, granules and multiples of round_to count.
    """
    cost_of = cost_function(cutter.graph, cost)
    names = scored(cutter.graph, cutter.scores, names)
    values = np.unique(np.concatenate([cutter.scores.values[name] for name in names]))

    def keep_at(place: int) -> Kept:
        """Kept channels with the threshold values[place]."""
        keep = {}
        for name in names:
            below = int((cutter.scores.values[name] <= values[place]).sum())
            removed = max(n for n in cutter.limits.choices(cutter.graph.units[name]) if n <= below)
            if removed:
                keep[name] = cutter.keep(name, removed)
        return keep

    low, high = -1, len(values) - 1
    if cost_of(keep_at(high)) > left:
        raise _out_of_reach(cost, cost_of, left, cost_of(keep_at(high)))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if cost_of(keep_at(middle)) <= left else (middle, high)
    return cutter.plan(keep_at(high))


def _plan_global_ranking(task: SplitTask) -> Plan:
    graph, names = task.graph, _names(task)
    if task.scores.metric == SCALES:  # units without batch norms have scores of another kind
        names = [name for name in names if scales(graph, graph.units[name]) is not None]
        if not names:
            raise DecideError("no unit has a batch norm of its own, so there are no scales to rank; use another metric")
    return global_ranking(_cutter(task), names, task.budget.left or 0.0, task.budget.of(graph))


GLOBAL_RANKING = Split(
    name="global_ranking",
    help="All channels of all units in one ranking: the lowest scores go, wherever they are",
    plan=_plan_global_ranking,
    ranks=False,
    metric=SCALES,
)


# ------------------------------------------------------------------------------------------------ the smallest error


def least_error(cutter: Cutter, names: Sequence[str], left: float, cost: str | CostOf = "macs") -> Plan:
    """Split the cut among the units of `names` so that the sum of their errors is smallest:

        minimise over n_u    sum of E_u(n_u)    subject to    cost <= left.

    Scores must be errors that add up in the order of removal, as those of the metric "rebuilt": E_u(n) is the n-th of
    them. See `prunus.deciding.optimiser`: exact where units are coupled in chains by a cost that adds up over layers.
    """
    cost_of = cost_function(cutter.graph, cost)
    names = scored(cutter.graph, cutter.scores, names)
    keep = keep_within(cutter, names, cost_of, left)
    if keep is None:
        raise _out_of_reach(cost, cost_of, left, least_cost(cutter, names, cost_of))
    return cutter.plan(keep)


LEAST_ERROR = Split(
    name="least_error",
    help="The total error after repair is smallest",
    plan=lambda task: least_error(_cutter(task), _names(task), task.budget.left or 0.0, task.budget.of(task.graph)),
    ranks=False,
    metric="rebuilt",
    needs_errors=True,
)


# --------------------------------------------------------------------------------------------------- what they share


def _names(task: SplitTask) -> list[str]:
    """The units that a split may prune."""
    return scored(task.graph, task.scores, candidates(task.graph, task.settings.exclude, task.settings.only))


def _cutter(task: SplitTask, cost: CostOf | None = None) -> Cutter:
    """Units keep widths at which the cost (that of the budget by default) is known."""
    known = widths_of(task.budget.of(task.graph) if cost is None else cost)
    return Cutter(task.graph, task.scores, WidthLimits(task.settings.round_to, task.original_widths, known))


def _in_order(graph: ChannelGraph) -> Scores:
    """Scores that remove channels in their order: where only the numbers of channels matter."""
    return Scores("order", {name: np.arange(float(unit.width)) for name, unit in graph.units.items()})


def _out_of_reach(cost: str | CostOf, cost_of: CostOf, left: float, least: float) -> DecideError:
    return DecideError(Budget(name_of(cost), left, cost_of({})).out_of_reach(least))


def lowest_cost(graph: ChannelGraph, names: Sequence[str], cost: CostOf, round_to: int = 1) -> float:
    """The lowest cost that these units can be pruned to; all readers of a stream drop the same channels."""
    cutter = Cutter(graph, _in_order(graph), WidthLimits(round_to, known=widths_of(cost)))
    return least_cost(cutter, names, cost)


def check_reach(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> None:
    """DecideError if no plan can meet the budget, before anything long is done."""
    names = candidates(graph, settings.exclude, settings.only)
    check_k(settings.k, len(names))
    if budget.left is None:
        return
    least = lowest_cost(graph, names, budget.of(graph), settings.round_to)
    if least > budget.left:
        raise DecideError(budget.out_of_reach(least))
