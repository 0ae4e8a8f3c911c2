"""The same share everywhere: what the paper's studies of metrics prune by."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.amounts import candidates, floor_of, kept_after
from secateur.errors import DecideError
from secateur.scoring.scores import Scores


def uniform(graph: ChannelGraph, scores: Scores, ratio: float, *, units: Sequence[str] | None = None) -> Plan:
    """Remove the weakest `ratio` of every unit: round(ratio x width) channels, in whole granules.

    Floors are respected: a unit keeps at least 2 channels and 10% of them. The classifier's own reading of a stream and
    units between linear layers are left alone, as are units that `scores` does not have; `units` names others.
    """
    if not 0 <= ratio < 1:
        raise DecideError(f"ratio is the fraction removed and should lie in 0 <= ratio < 1, not {ratio}")
    names = [name for name in candidates(graph) if name in scores.values] if units is None else list(units)
    missing = [name for name in names if name not in scores.values or name not in graph.units]
    if missing or not names:
        raise DecideError(
            f"unit {missing[0]!r} is not in both the graph and the scores"
            if missing
            else "the scores have none of the graph's units; score the network that is to be pruned"
        )
    keep = {}
    for name in names:
        unit = graph.units[name]
        if len(scores.values[name]) != unit.width:
            raise DecideError(
                f"unit {name!r} has {unit.width} channels and {len(scores.values[name])} scores; "
                "score the network that is to be pruned"
            )
        wanted = unit.granule * round(ratio * unit.width / unit.granule)
        keep[name] = kept_after(unit, scores.values[name], min(wanted, unit.width - floor_of(unit)))
    return Plan.of(graph, graph.balance(keep))
