"""How many channels each unit would lose so that all lose the same cost: FLOSS and n_l, Eqns. 2 and 3 of the paper."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Indices, Keep, Unit
from secateur.errors import DecideError
from secateur.scoring.scores import Scores, Vector

CostOf = Callable[[Keep], float]  # kept channels of some units -> cost of the network

LEAST_CHANNELS = 2
LEAST_SHARE = 0.1


@dataclass(frozen=True)
class Amount:
    """What one unit would lose."""

    unit: str
    channels: int  # n_l, whole granules
    floss: float  # cost that one channel saves (Eqn. 2)
    stopped: bool  # a floor keeps it from losing as much as the others


def floor_of(unit: Unit, round_to: int = 1, width: int | None = None) -> int:
    """Channels that a unit keeps at the least: max(2, 10%), in whole granules and multiples of `round_to`.

    width: channels that the unit had in the original network, where this one is pruned already.
    """
    least = max(LEAST_CHANNELS, math.ceil(LEAST_SHARE * (width or unit.width)))
    step = math.lcm(unit.granule, round_to)
    return min(unit.width, step * math.ceil(least / step))


@dataclass(frozen=True)
class Room:
    """How many channels units may lose."""

    round_to: int = 1  # what is left of a unit that loses any is a multiple of it
    widths: Mapping[str, int] = field(default_factory=dict)  # of the original network: floors are shares of these

    def __post_init__(self) -> None:
        """Refuse what cannot be a width."""
        if self.round_to < 1:
            raise DecideError(f"round_to must be a whole number of channels, 1 or more; got {self.round_to}")

    def choices(self, unit: Unit) -> list[int]:
        """The numbers of channels that the unit may lose, ascending from 0."""
        step = math.lcm(unit.granule, self.round_to)
        floor = floor_of(unit, self.round_to, self.widths.get(unit.name))
        left = range(step * (unit.width // step), floor - 1, -step)
        return sorted({0, *(unit.width - n for n in left)})

    def nearest(self, unit: Unit, exact: float, least: int = 0) -> int:
        """The choice nearest to `exact`, of two the even number of steps; not below `least` if there is any other."""
        double = 2 * math.lcm(unit.granule, self.round_to)
        choices = [n for n in self.choices(unit) if n >= least]
        return min(choices, key=lambda n: (abs(n - exact), n % double), default=0)


def weakest_first(unit: Unit, values: Vector) -> Indices:
    """Channels in the order in which they go: the weakest of every block, then the next of every block, ..."""
    ranks = np.empty(unit.width, dtype=np.int64)
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        ranks[inside[np.argsort(values[inside], kind="stable")]] = np.arange(len(inside))
    return np.lexsort((values, ranks))  # by rank in the block, ties by value: any whole number of granules is even


def kept_after(unit: Unit, values: Vector, removed: int) -> list[int]:
    """The channels that are left when the `removed` weakest have gone."""
    return sorted(weakest_first(unit, values)[removed:].tolist())


def cost_by(graph: ChannelGraph, what: str) -> CostOf:
    """Cost in closed form: "macs" or "params". (Latency: `secateur.deciding.latency.measured_cost`.)"""
    if what == "macs":
        return lambda keep: float(graph.cost(keep).macs)
    if what == "params":
        return lambda keep: float(graph.cost(keep).params)
    raise DecideError(f'cost must be "macs", "params" or "latency", got {what!r}')


def candidates(graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> list[str]:
    """Units that take part. The classifier's reading of a stream and linear-to-linear units are left alone; patterns
    match unit names, their layers' names too ("layer1.*", "*:in")."""
    chosen = []
    for name, unit in graph.units.items():
        layers = {r.module for r in unit.readers} | {w.module for w in unit.writers}
        matched = [name, name.partition(":")[0]]
        if any(fnmatch.fnmatch(n, pattern) for pattern in exclude for n in matched):
            continue
        if only and not any(fnmatch.fnmatch(n, pattern) for pattern in only for n in matched):
            continue
        if not only and _left_alone(graph, unit, layers):
            continue
        chosen.append(name)
    if not chosen:
        raise DecideError("no unit is left to prune: the patterns exclude all of them. `secateur inspect` lists units.")
    return chosen


def scored(graph: ChannelGraph, scores: Scores, names: Sequence[str]) -> list[str]:
    """Those of the units that have scores, once it is sure that the scores are this network's."""
    found = [name for name in names if name in scores.values]
    if not found:
        raise DecideError("the scores have none of the units; score the network that is to be pruned")
    for name in found:
        if len(scores.values[name]) != graph.units[name].width:
            raise DecideError(
                f"unit {name!r} has {graph.units[name].width} channels and {len(scores.values[name])} scores; "
                "score the network that is to be pruned"
            )
    return found


def _left_alone(graph: ChannelGraph, unit: Unit, layers: set[str]) -> bool:
    readers = [graph.model.get_submodule(r.module) for r in unit.readers]
    if unit.kind == "stream" and len(readers) == 1 and isinstance(readers[0], nn.Linear):
        return True
    return all(isinstance(graph.model.get_submodule(name), nn.Linear) for name in layers)


def amounts(
    graph: ChannelGraph,
    scores: Scores,
    names: Sequence[str],
    *,
    alpha: float,
    cost: CostOf,
    room: Room | None = None,
) -> dict[str, Amount]:
    """FLOSS_l = C(M) - C(M without one channel of l);  n_l = round(alpha * FLOSS_max / FLOSS_l), whole granules.

    A unit whose channels go g at a time (a granule, or a multiple of round_to) counts a g-th of what the first g save
    as FLOSS_l. Measured time falls in steps, and the first g may save nothing: what half of the channels save counts if
    it is more each. Units that would go below their floor lose what the floor allows, and are marked.
    """
    if not 0 < alpha < math.inf:
        raise DecideError(f"alpha must be above 0 (the paper takes 2 to 4), got {alpha}")
    room = room or Room()
    whole = cost({})
    floss = {}
    for name in names:
        unit = graph.units[name]
        first = next((n for n in room.choices(unit) if n > 0), unit.granule)
        tried = {first, room.nearest(unit, unit.width / 2, least=first) or first}
        saved = [(whole - cost({name: kept_after(unit, scores.values[name], n)})) / n for n in tried]
        floss[name] = max(0.0, *saved)
    most = max(floss.values())
    if most <= 0:
        raise DecideError("no unit saves anything when it loses a channel")
    able = [graph.units[name] for name in names if floss[name] > 0]
    return {unit.name: _amount(unit, floss[unit.name], alpha * most, room) for unit in able}


def _amount(unit: Unit, floss: float, aim: float, room: Room) -> Amount:
    exact = aim / floss
    # Multiples of round_to are coarse: a unit that would round to nothing loses one step, or it could never be pruned.
    channels = room.nearest(unit, exact, least=int(room.round_to > 1))
    half_a_step = math.lcm(unit.granule, room.round_to) / 2
    return Amount(unit.name, channels, floss, exact > channels + half_a_step)


def scaled(
    graph: ChannelGraph, scores: Scores, chosen: Mapping[str, float], scale: float, room: Room
) -> dict[str, list[int]]:
    """Kept channels when the chosen units lose `scale` times their amounts, floors and granules respected."""
    keep = {}
    for name, channels in chosen.items():
        removed = room.nearest(graph.units[name], channels * scale)
        if removed > 0:
            keep[name] = kept_after(graph.units[name], scores.values[name], removed)
    return keep
