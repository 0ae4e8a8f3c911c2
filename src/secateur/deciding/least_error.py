"""How much each unit loses where scores are errors: the split of the cut for which they add up to the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.units import Unit
from secateur.deciding.amounts import CostOf, Room, cost_by, kept_after, scored, weakest_first
from secateur.deciding.decide import give_back, out_of_reach, plan_of
from secateur.errors import DecideError
from secateur.scoring.scores import Scores, Vector


def least_error(
    graph: ChannelGraph,
    scores: Scores,
    names: Sequence[str],
    left: float,
    *,
    cost: str | CostOf = "macs",
    round_to: int = 1,
    widths: Mapping[str, int] | None = None,
) -> Plan:
    """The units of `names` share a cut that leaves a cost of `left` so that their errors add up to the least:

        minimise over n_u    sum of E_u(n_u)    such that    cost <= left.

    Scores must be errors that have added up when a channel goes, as those of "rebuilt" are: E_u(n) is the n-th of them.
    By Lagrange, for a price p of cost each unit takes the n for which E_u(n) - p s_u(n) is least, where s_u is what it
    saves by itself; the lowest price that is enough is bisected, and what is too much then is given back.
    """
    cost_of = cost_by(graph, cost) if isinstance(cost, str) else cost
    room, now = Room(round_to, widths or {}), cost_of({})
    every = (
        _offer(graph.units[name], scores.values[name], cost_of, now, room) for name in scored(graph, scores, names)
    )
    offers = [offer for offer in every if offer.saved[-1] > 0]  # no price would make the others lose any

    def keep_at(price: float) -> dict[str, list[int]]:
        chosen = ((offer, offer.best(price)) for offer in offers)
        return {o.unit.name: kept_after(o.unit, scores.values[o.unit.name], n) for o, n in chosen if n}

    floors = {o.unit.name: kept_after(o.unit, scores.values[o.unit.name], int(o.counts[-1])) for o in offers}
    if cost_of(floors) > left:
        raise DecideError(out_of_reach(f"removing {1 - left / now:.1%}", 1 - cost_of(floors) / now))
    low, high = 0.0, 1.0 / now
    while cost_of(keep_at(high)) > left:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if cost_of(keep_at(middle)) <= left else (middle, high)
    return plan_of(graph, give_back(graph, scores, keep_at(high), cost_of, left, room))


@dataclass(frozen=True, eq=False)
class _Offer:
    """What a unit may lose: for each number of channels the error that it makes, and the cost that it saves."""

    unit: Unit
    counts: Vector
    errors: Vector
    saved: Vector

    def best(self, price: float) -> int:
        """The number of channels to lose at a price; of equals the largest."""
        gains = price * self.saved - self.errors
        return int(self.counts[np.flatnonzero(gains == gains.max())[-1]])


def _offer(unit: Unit, values: Vector, cost: CostOf, now: float, room: Room) -> _Offer:
    counts = np.array(room.choices(unit))
    # In whole granules the weakest of each block go, so that the errors may not come in order.
    added = np.maximum.accumulate(np.concatenate([[0.0], np.asarray(values)[weakest_first(unit, values)]]))
    most = int(counts[-1])
    each = (now - cost({unit.name: kept_after(unit, values, most)})) / most if most else 0.0
    return _Offer(unit, counts, added[counts], each * counts)
