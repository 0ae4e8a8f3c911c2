"""The same fraction of channels from every unit."""

from __future__ import annotations

from collections.abc import Sequence

from prunus.decide.amounts import TO_THE_FLOOR, Cutter, cutter_for
from prunus.decide.candidates import candidates, check_patterns, floor_of, names_for, scored
from prunus.decide.costs import CostOf, cost_function, name_of
from prunus.decide.goal import Budget
from prunus.decide.splits import Split, SplitTask
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.score.metrics import DEFAULT_METRIC
from prunus.score.scores import Scores


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
    units: names of the units to prune instead.
    only, exclude: patterns of units or layers, such as "layer1.*" or "*:out", as in `sensitivity` and `compress`.
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
        least = cost_of(cutter.scaled(widths, TO_THE_FLOOR))
        raise DecideError(Budget(name_of(cost), left, cost_of({})).out_of_reach(least))
    return cutter.plan(keep)


def _plan(task: SplitTask) -> Plan:
    return uniform_within(cutter_for(task), names_for(task), task.budget.left or 0.0, task.budget.of(task.graph))


ENTRY = Split(
    name="uniform", help="The same fraction of channels from every unit", plan=_plan, ranks=False, metric=DEFAULT_METRIC
)
