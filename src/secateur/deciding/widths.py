"""How many channels a unit may lose, and which ones go first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from secateur.channels.units import Indices, Unit
from secateur.errors import DecideError
from secateur.scoring.scores import Vector

LEAST_CHANNELS = 2
LEAST_SHARE = 0.1


def floor_of(unit: Unit, round_to: int = 1, width: int | None = None) -> int:
    """The smallest number of channels that a unit may keep: max(2, 10%), in whole granules and multiples of `round_to`.

    width: the unit's number of channels in the original network, if this network has been pruned before.
    """
    least = max(LEAST_CHANNELS, math.ceil(LEAST_SHARE * (width or unit.width)))
    step = math.lcm(unit.granule, round_to)
    return min(unit.width, step * math.ceil(least / step))


@dataclass(frozen=True)
class WidthLimits:
    """The widths that units may be pruned to."""

    round_to: int = 1  # the width of a pruned unit is a multiple of this
    original: Mapping[str, int] = field(default_factory=dict)  # unit -> width in the original network, for the floors
    known: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # unit -> widths whose cost is known, if not all

    def __post_init__(self) -> None:
        """Check `round_to`."""
        if self.round_to < 1:
            raise DecideError(f"round_to must be a whole number of channels, at least 1; got {self.round_to}")

    def choices(self, unit: Unit) -> list[int]:
        """The numbers of channels that the unit may lose, in ascending order, starting with 0."""
        step = math.lcm(unit.granule, self.round_to)
        floor = floor_of(unit, self.round_to, self.original.get(unit.name))
        left: Iterable[int] = range(step * (unit.width // step), floor - 1, -step)
        if unit.name in self.known:
            left = {*left} & {*self.known[unit.name]}
        return sorted({0, *(unit.width - n for n in left)})

    def nearest(self, unit: Unit, exact: float, least: int = 0) -> int:
        """The choice nearest to `exact` that is at least `least`; ties go to the even number of steps."""
        double = 2 * math.lcm(unit.granule, self.round_to)
        choices = [n for n in self.choices(unit) if n >= least]
        return min(choices, key=lambda n: (abs(n - exact), n % double), default=0)


def weakest_first(unit: Unit, values: Vector) -> Indices:
    """Channels in the order of removal: the weakest of every block, then the second weakest of every block, ..."""
    ranks = np.empty(unit.width, dtype=np.int64)
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        ranks[inside[np.argsort(values[inside], kind="stable")]] = np.arange(len(inside))
    return np.lexsort((values, ranks))  # by rank in the block, then by value: every block loses the same number


def kept_after(unit: Unit, values: Vector, removed: int) -> list[int]:
    """The channels that remain when the `removed` weakest ones are gone."""
    return sorted(weakest_first(unit, values)[removed:].tolist())
