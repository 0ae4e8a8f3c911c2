"""The splits: how a cut is split among the units of a network. They are listed in `prunus.deciding.settings.SPLITS`.

`SplitInputs` have what was measured of a network once, and the budget that a plan is decided for. The same measurements
serve any number of budgets: `SPLITS["least_error"].plan(dataclasses.replace(inputs, budget=another))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from prunus.deciding.costs import COSTS, LATENCY, CostOf, cost_function, widths_of
from prunus.deciding.goal import Budget
from prunus.deciding.optimiser import keep_within, least_cost
from prunus.deciding.sensitivity import Sensitivity
from prunus.deciding.settings import Split, SplitSettings, check_k
from prunus.deciding.widths import (
    TO_THE_FLOOR,
    Cutter,
    Kept,
    WidthLimits,
    amounts,
    candidates,
    check_patterns,
    floor_of,
    scored,
)
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.scoring.evidence import scales
from prunus.scoring.scores import Scores

LEAST_ALPHA = 0.5
SCALES = "bn_scale"


@dataclass(frozen=True)
class SplitInputs:
    """Everything that a split may look at."""

    graph: ChannelGraph  # of the network that loses channels
    scores: Scores
    budget: Budget
    settings: SplitSettings = field(default_factory=SplitSettings)
    # Settings (with k and alpha filled in) -> what held-out images say of each unit. The caller has the images.
    rank: Callable[[SplitSettings], Sensitivity] | None = None
    original_widths: Mapping[str, int] = field(default_factory=dict)  # unit -> width in the original network

    @cached_property
    def names(self) -> list[str]:
        return scored(self.graph, self.scores, candidates(self.graph, self.settings.exclude, self.settings.only))

    @cached_property
    def cost(self) -> CostOf:
        """The budget's cost as a function of kept channels."""
        return self.budget.of(self.graph)

    @cached_property
    def cutter(self) -> Cutter:
        """Cuts units to widths at which the cost is known."""
        settings = self.settings
        if removes_blocks(settings):
            self.graph.prove_branches()
        limits = WidthLimits(settings.round_to, self.original_widths, widths_of(self.cost), removes_blocks(settings))
        return Cutter(self.graph, self.scores, limits)

    @property
    def left(self) -> float:
        """The cost that the network should be left with, for splits that always have a target."""
        return self.budget.left or 0.0


def removes_blocks(settings: SplitSettings) -> bool:
    """Whether units may lose all of their channels: only where the error of that is known."""
    return settings.blocks and settings.split == LEAST_ERROR.name


def in_order(graph: ChannelGraph) -> Scores:
    """Scores that remove channels in their order: where only the numbers of channels matter."""
    return Scores("order", {name: np.arange(float(unit.width)) for name, unit in graph.units.items()})


def lowest_cost(
    graph: ChannelGraph, names: Sequence[str], cost: CostOf, round_to: int | None = 1, *, blocks: bool = False
) -> float:
    """The lowest cost that these units can be pruned to; all readers of a stream drop the same channels."""
    if blocks:
        graph.prove_branches()
    limits = WidthLimits(round_to, known=widths_of(cost), blocks=blocks)
    return least_cost(Cutter(graph, in_order(graph), limits), names, cost)


def check_reach(graph: ChannelGraph, budget: Budget, settings: SplitSettings, *others: ChannelGraph) -> None:
    """DecideError if no plan can meet the budget, before anything long is done.

    others: Graphs of the same network with its streams treated in other ways, if these are tried too.
    """
    every = [SplitInputs(each, in_order(each), budget, settings) for each in (graph, *others)]
    for inputs in every:
        check_k(settings.k, len(inputs.names))
    if budget.left is not None:
        least = min(least_cost(inputs.cutter, inputs.names, inputs.cost) for inputs in every)
        if least > budget.left:
            raise DecideError(budget.out_of_reach(least))


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
    Cutter(graph, scores, WidthLimits(round_to))  # refuses what is no graph and no scores
    if not isinstance(sensitivity, Sensitivity):
        raise DecideError(f"expected what prunus.sensitivity returns, got {type(sensitivity).__name__}")
    if isinstance(cost, str):
        COSTS.check(cost)
    if target is not None and not 0 < target < 1:
        raise DecideError(f"the target is the fraction to remove, above 0 and below 1; got {target}")
    settings, budget = SplitSettings(round_to=round_to), Budget("macs", None, graph.macs)
    if target is not None:
        cost = cost_function(graph, cost)
        now = cost({})
        left = (1 - target) * (now if whole is None else whole)
        if left >= now:
            raise DecideError(f"the network meets the target of {target:.1%} already; ask for more")
        budget = Budget(cost, left, whole or now)
    return _cut_best(SplitInputs(graph, scores, budget, settings, original_widths=widths or {}), sensitivity, k)


def _cut_best(inputs: SplitInputs, sensitivity: Sensitivity, k: int | None) -> Plan:
    """The k best units lose as much as the budget asks; without a budget, the channels that they were tried without."""
    rows, cutter = sensitivity.tried, inputs.cutter
    k = check_k(k, len(rows))
    ranked = scored(inputs.graph, inputs.scores, sensitivity.ranked())
    if inputs.budget.left is None:
        return cutter.plan(cutter.scaled({name: rows[name].channels for name in ranked[:k]}, 1.0))
    by_ratio = sensitivity.split == "ratio"  # the same fraction of all: amounts in proportion to the widths
    wanted = {name: rows[name].width if by_ratio else max(1, rows[name].channels) for name in ranked}
    return _fitted(inputs, wanted, k)


def _fitted(inputs: SplitInputs, amounts: Mapping[str, float], least: int) -> Plan:
    """Units lose so many times their amount that the budget is met: the first `least` of them, or more if need be."""
    for count in range(least, len(amounts) + 1):
        keep = inputs.cutter.fit({name: amounts[name] for name in [*amounts][:count]}, inputs.cost, inputs.left)
        if keep is not None:
            return inputs.cutter.plan(keep)
    raise DecideError(inputs.budget.out_of_reach(inputs.cost(inputs.cutter.scaled(amounts, TO_THE_FLOOR))))


def plan_by_rank(inputs: SplitInputs) -> Plan:
    """The plan of a split that ranks units on held-out images.

    It removes no more than the budget allows. If the number of rounds is given, it meets the budget exactly. With
    whole_steps, the units that are chosen lose all of their n_l channels, also where that goes past the budget.
    """
    graph, settings, budget = inputs.graph, inputs.settings, inputs.budget
    if inputs.rank is None:
        raise DecideError(f'split "{settings.split}" ranks units, and there are no held-out images to rank them on')
    by_ratio = settings.split == RATIO.name
    if not by_ratio:
        settings = replace(settings, alpha=_alpha(inputs))
        if settings.k is not None:  # fewer units, if that many have no channel left to lose
            cost = cost_function(graph, "macs" if settings.cost == LATENCY.name else settings.cost)  # without measuring
            cutter = replace(inputs.cutter, limits=replace(inputs.cutter.limits, known=widths_of(cost)))
            able = amounts(cutter, inputs.names, alpha=settings.alpha, cost=cost)
            settings = replace(settings, k=min(settings.k, max(1, sum(a.channels > 0 for a in able.values()))))
    sensitivity = inputs.rank(settings)
    k = None if inputs.settings.k is None else min(inputs.settings.k, len(sensitivity.tried))
    whole = budget.left is None or settings.whole_steps
    if whole or (settings.rounds is None and not by_ratio):
        plan = _cut_best(replace(inputs, budget=Budget("macs", None, graph.macs)), sensitivity, k)
        if whole or inputs.cost(plan.keep) > inputs.left:
            return plan
    return _cut_best(inputs, sensitivity, k)


def first_alpha(graph: ChannelGraph, budget: Budget, settings: SplitSettings) -> float:
    """The alpha of the first round: solved if the number of rounds is given, so that a run can say it at its start."""
    budget = budget.aim(budget.of(graph)({}), settings.rounds or 1)
    return _alpha(SplitInputs(graph, in_order(graph), budget, settings))


def step_at_alpha_1(inputs: SplitInputs) -> float:
    """What a round saves per alpha: k x FLOSS_max, with k a third of the units by default."""
    able, k = amounts(inputs.cutter, inputs.names, alpha=1.0, cost=inputs.cost), inputs.settings.k
    k = check_k(None if k is None else min(k, len(able)), len(able))
    return k * max(amount.floss for amount in able.values())


def _alpha(inputs: SplitInputs) -> float:
    """alpha as given; solved if the number of rounds is given."""
    if inputs.budget.left is None or inputs.settings.rounds is None:
        return inputs.settings.alpha
    return max(LEAST_ALPHA, (inputs.cost({}) - inputs.budget.left) / step_at_alpha_1(inputs))


ALGORITHM1 = Split(
    name="algorithm1",
    help="The least sensitive units lose the same cost each (the paper's Algorithm 1)",
    plan=plan_by_rank,
    ranks=True,
)
RATIO = Split(
    name="ratio",
    help="The least sensitive units lose the same fraction of channels (Li et al. 2017)",
    plan=plan_by_rank,
    ranks=True,
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
    round_to: int | None = 1,
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
        round_to: Widths are multiples of this, the nearest ones; None: of what suits kernels.
    """
    cutter = Cutter(graph, scores, WidthLimits(round_to))
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
        wanted = min(wanted, unit.width - floor_of(unit))
        keep[name] = cutter.keep(name, wanted if round_to == 1 else cutter.limits.nearest(unit, wanted))
    return cutter.plan(keep)


def uniform_within(inputs: SplitInputs) -> Plan:
    """Remove the same fraction of channels from every unit: the smallest fraction that meets the budget."""
    return _fitted(inputs, {name: inputs.graph.units[name].width for name in inputs.names}, len(inputs.names))


UNIFORM = Split(name="uniform", help="The same fraction of channels from every unit", plan=uniform_within)


# ----------------------------------------------------------------------------------------- one ranking of all channels


def global_ranking(inputs: SplitInputs) -> Plan:
    """Remove all channels whose score is at most t, with the smallest t that meets the budget.

    This is the threshold of network slimming (Liu et al. 2017). A unit loses the largest allowed number of channels
    that is not above the number of its scores up to t; floors, granules and multiples of round_to count.
    """
    graph, cutter, names, scores = inputs.graph, inputs.cutter, inputs.names, inputs.scores.values
    if inputs.scores.metric == SCALES:  # units without batch norms have scores of another kind
        names = [name for name in names if scales(graph, graph.units[name]) is not None]
        if not names:
            raise DecideError("no unit has a batch norm of its own, so there are no scales to rank; use another metric")
    values = np.unique(np.concatenate([scores[name] for name in names]))

    def keep_at(place: int) -> Kept:
        """Kept channels with the threshold values[place]."""
        keep = {}
        for name in names:
            below = int((scores[name] <= values[place]).sum())
            removed = max(n for n in cutter.limits.choices(graph.units[name]) if n <= below)
            if removed:
                keep[name] = cutter.keep(name, removed)
        return keep

    low, high = -1, len(values) - 1
    least = inputs.cost(keep_at(high))
    if least > inputs.left:
        raise DecideError(inputs.budget.out_of_reach(least))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if inputs.cost(keep_at(middle)) <= inputs.left else (middle, high)
    return cutter.plan(keep_at(high))


GLOBAL_RANKING = Split(
    name="global_ranking",
    help="All channels of all units in one ranking: the lowest scores go, wherever they are",
    plan=global_ranking,
    metric=SCALES,
)


# ------------------------------------------------------------------------------------------------ the smallest error


def least_error(inputs: SplitInputs) -> Plan:
    """Split the cut among the units so that the sum of their errors is smallest:

        minimise over n_u    sum of E_u(n_u)    subject to    cost <= budget.

    Scores must be errors that add up in the order of removal, as those of the metric "rebuilt": E_u(n) is the n-th of
    them. See `prunus.deciding.optimiser`: exact where units are coupled in chains by a cost that adds up over layers.
    """
    keep = keep_within(inputs.cutter, inputs.names, inputs.cost, inputs.left)
    if keep is None:
        raise DecideError(inputs.budget.out_of_reach(least_cost(inputs.cutter, inputs.names, inputs.cost)))
    return inputs.cutter.plan(keep)


LEAST_ERROR = Split(
    name="least_error",
    help="The total error after repair is smallest",
    plan=least_error,
    metric="rebuilt",
    needs_errors=True,
)
