"""The choices of every unit, and how the cost of a network depends on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
LARGEST_TABLE = 4_000_000  # entries of the table of a pair of units; larger ones are computed when needed


@dataclass(frozen=True, eq=False)
class Choices:
    """What one unit may lose. Arrays have one entry per choice; the first choice is to lose nothing."""

    name: str
    counts: Ints  # numbers of removed channels, ascending from 0
    errors: Floats  # error of each choice
    own: Floats  # change of the cost that depends on this unit alone


@dataclass(frozen=True, eq=False)
class LayerTerm:
    """A layer whose cost depends on several units: cost(inputs, outputs) - cost(all inputs, all outputs).

    inputs, outputs: unit number -> inputs (outputs) that the layer loses, per choice.
    """

    whole: tuple[int, int]  # inputs and outputs if no unit loses anything
    inputs: Mapping[int, Ints]
    outputs: Mapping[int, Ints]
    cost: Callable[[Ints, Ints], Floats]

    @property
    def units(self) -> list[int]:
        """The units that the layer depends on."""
        return sorted({*self.inputs, *self.outputs})

    def lost(self, unit: int) -> tuple[Ints | int, Ints | int]:
        """Inputs and outputs that the layer loses by this unit, per choice."""
        return self.inputs.get(unit, 0), self.outputs.get(unit, 0)

    def table(self, first: int, second: int) -> Floats:
        """[choices of first, choices of second] cost of the layer, less its whole cost."""
        (a_in, a_out), (b_in, b_out) = self.lost(first), self.lost(second)
        inputs = self.whole[0] - np.reshape(a_in, (-1, 1)) - np.reshape(b_in, (1, -1))
        outputs = self.whole[1] - np.reshape(a_out, (-1, 1)) - np.reshape(b_out, (1, -1))
        return self.at(inputs, outputs)

    def along(self, unit: int, picks: Ints) -> Floats | float:
        """Cost for every choice of one unit while the others stay at their picks, less the whole cost."""
        lost = [0, 0]
        for other in self.units:
            if other != unit:
                for axis, part in enumerate(self.lost(other)):
                    lost[axis] += int(part[picks[other]]) if isinstance(part, np.ndarray) else 0
        own = self.lost(unit)
        return self.at(*(np.asarray(self.whole[axis] - lost[axis] - own[axis]) for axis in (0, 1)))

    def at(self, inputs: Ints, outputs: Ints) -> Floats:
        """Cost at these widths, less the whole cost."""
        whole = self.cost(np.asarray(self.whole[0]), np.asarray(self.whole[1]))
        return np.asarray(self.cost(inputs, outputs) - whole, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Units, and the cost of all units' picks: start + sum of what single units, pairs and wide layers change.

    Picks are an integer per unit: the number of its choice.
    """

    units: list[Choices]
    start: float  # cost when nothing is removed
    own: list[Floats]  # per unit: change of the cost that depends on this unit alone
    pairs: dict[tuple[int, int], Floats]  # (first, second) -> [choices, choices] of layers that depend on these two
    wide: list[LayerTerm]  # layers that depend on more than two units

    @classmethod
    def of(cls, units: list[Choices], start: float, layers: Sequence[LayerTerm]) -> Problem:
        """Sort layers by the number of units that they depend on."""
        own = [unit.own.astype(np.float64) for unit in units]
        pairs: dict[tuple[int, int], Floats] = {}
        wide = []
        nothing = np.zeros(len(units), dtype=np.int64)
        for term in layers:
            touched = term.units
            if len(touched) == 1:
                own[touched[0]] = own[touched[0]] + term.along(touched[0], nothing)
            elif len(touched) == 2 and math.prod(len(units[u].counts) for u in touched) <= LARGEST_TABLE:
                first, second = touched
                pairs[first, second] = pairs.get((first, second), 0.0) + term.table(first, second)
            else:
                wide.append(term)
        return cls(units, start, own, pairs, wide)

    def fixed(self, picks: Mapping[int, int]) -> Problem:
        """The problem of the other units if some units stay at their picks. Only without wide layers."""
        others = [number for number in range(len(self.units)) if number not in picks]
        place = {number: i for i, number in enumerate(others)}
        own = [self.own[number] for number in others]
        pairs, start = {}, self.start + sum(float(self.own[unit][pick]) for unit, pick in picks.items())
        for (first, second), table in self.pairs.items():
            if first in picks and second in picks:
                start += float(table[picks[first], picks[second]])
            elif first in picks:
                own[place[second]] = own[place[second]] + table[picks[first]]
            elif second in picks:
                own[place[first]] = own[place[first]] + table[:, picks[second]]
            else:
                pairs[place[first], place[second]] = table
        return Problem([self.units[number] for number in others], start, own, pairs, [])

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """Per unit: the units that it has a table with."""
        found: list[list[int]] = [[] for _ in self.units]
        for first, second in self.pairs:
            found[first].append(second)
            found[second].append(first)
        return found

    @cached_property
    def wide_of(self) -> list[list[LayerTerm]]:
        """Per unit: the wide layers that depend on it."""
        return [[term for term in self.wide if number in term.units] for number in range(len(self.units))]

    @property
    def nothing(self) -> Ints:
        """The picks that remove nothing."""
        return np.zeros(len(self.units), dtype=np.int64)

    def table(self, first: int, second: int) -> Floats:
        """[choices of first, choices of second] of a pair in either order."""
        return self.pairs[first, second] if first < second else self.pairs[second, first].T

    def along(self, unit: int, picks: Ints) -> Floats:
        """[choices] the part of the cost that depends on a unit, while the others stay at their picks."""
        cost = self.own[unit].copy()
        for other in self.neighbours[unit]:
            cost += self.table(unit, other)[:, picks[other]]
        for term in self.wide_of[unit]:
            cost += term.along(unit, picks)
        return cost

    def cost(self, picks: Ints) -> float:
        """The cost of the network at these picks."""
        total = self.start + sum(float(own[pick]) for own, pick in zip(self.own, picks, strict=True))
        total += sum(float(table[picks[first], picks[second]]) for (first, second), table in self.pairs.items())
        for term in self.wide:
            unit = term.units[0]
            total += float(np.broadcast_to(term.along(unit, picks), self.own[unit].shape)[picks[unit]])
        return total

    def error(self, picks: Ints) -> float:
        """The sum of the units' errors at these picks."""
        return float(sum(unit.errors[pick] for unit, pick in zip(self.units, picks, strict=True)))
