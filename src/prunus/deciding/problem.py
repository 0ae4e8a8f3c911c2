"""The choices of every unit, and how the cost of a network depends on them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from prunus.deciding.costs import CostOf, LayeredCost
from prunus.deciding.widths import Cutter, weakest_first
from prunus.graph.units import Mask, Unit

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LARGEST_TABLE = 4_000_000  # entries of the table of a pair of units; larger ones are computed when needed
MOST_CHOICES = 65  # of a unit at a time; more are searched in two stages
PROBES = 9  # choices of a unit at which a cost is asked that is only known as a whole


@dataclass(frozen=True, eq=False)
class Choices:
    """What one unit may lose. Arrays have one entry per choice; the first choice is to lose nothing."""

    name: str
    counts: Ints  # numbers of removed channels, ascending from 0
    errors: Floats  # error of each choice


@dataclass(frozen=True, eq=False)
class LayerTerm:
    """A layer whose cost depends on units.

    inputs, outputs: unit number -> inputs (outputs) that the layer loses, per choice.
    gone: unit number -> whether the layer is removed with a branch, per choice.
    """

    whole: tuple[int, int]  # inputs and outputs if no unit loses anything
    inputs: Mapping[int, Ints]
    outputs: Mapping[int, Ints]
    cost: Callable[[Ints, Ints], Floats]
    gone: Mapping[int, Mask] = field(default_factory=dict)

    @property
    def units(self) -> list[int]:
        return sorted({*self.inputs, *self.outputs, *self.gone})

    def change(self, picks: Mapping[int, Any] | Ints) -> Floats:
        """Cost at these picks, less the whole cost. The pick of a unit may be an array of choices."""
        inputs, outputs = (
            np.asarray(width - sum(lost[picks[unit]] for unit, lost in axis.items()))
            for width, axis in zip(self.whole, (self.inputs, self.outputs), strict=True)
        )
        cost = np.asarray(self.cost(inputs, outputs), dtype=np.float64)
        for unit, gone in self.gone.items():
            cost = np.where(gone[picks[unit]], 0.0, cost)
        return np.asarray(cost - self.cost(*map(np.asarray, self.whole)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Problem:
    """Units, and the cost of all units' picks: start + sum of what single units, pairs and wide layers change.

    Picks are an integer per unit: the number of its choice.
    """

    units: list[Choices]
    start: float  # cost when nothing is removed
    alone: list[Floats]  # per unit: change of the cost that depends on this unit alone
    pairs: dict[tuple[int, int], Floats]  # (first, second) -> [choices, choices] of layers that depend on these two
    wide: list[LayerTerm]  # layers that depend on more than two units

    @classmethod
    def of(cls, units: list[Choices], start: float, layers: Sequence[LayerTerm]) -> Problem:
        """Sort layers by the number of units that they depend on."""
        alone = [np.zeros(len(unit.counts)) for unit in units]
        every = [np.arange(len(unit.counts)) for unit in units]
        pairs: dict[tuple[int, int], Floats] = {}
        wide = []
        for term in layers:
            if len(term.units) == 1:
                (unit,) = term.units
                alone[unit] = alone[unit] + term.change({unit: every[unit]})
            elif len(term.units) == 2 and math.prod(len(every[unit]) for unit in term.units) <= LARGEST_TABLE:
                first, second = term.units
                table = term.change({first: every[first][:, None], second: every[second]})
                pairs[first, second] = pairs.get((first, second), 0.0) + table
            else:
                wide.append(term)
        return cls(units, start, alone, pairs, wide)

    def ordered(self, order: Sequence[int]) -> Problem:
        """A chain of units in this order. Costs are those added to the start."""
        links = {
            (place, place + 1): self.table(unit, after)
            for place, (unit, after) in enumerate(itertools.pairwise(order))
            if after in self.neighbours[unit]
        }
        return Problem([self.units[u] for u in order], 0.0, [self.alone[u] for u in order], links, [])

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """Per unit: the units that it has a table with."""
        neighbours: list[list[int]] = [[] for _ in self.units]
        for first, second in self.pairs:
            neighbours[first].append(second)
            neighbours[second].append(first)
        return neighbours

    @cached_property
    def wide_of(self) -> list[list[LayerTerm]]:
        """Per unit: the wide layers that depend on it."""
        return [[term for term in self.wide if number in term.units] for number in range(len(self.units))]

    @property
    def nothing(self) -> Ints:
        return np.zeros(len(self.units), dtype=np.int64)

    def table(self, first: int, second: int) -> Floats:
        """[choices of first, choices of second] of a pair in either order."""
        return self.pairs[first, second] if first < second else self.pairs[second, first].T

    def along(self, unit: int, picks: Ints) -> Floats:
        """[choices] the part of the cost that depends on a unit, while the others stay at their picks."""
        cost = self.alone[unit].copy()
        for other in self.neighbours[unit]:
            cost += self.table(unit, other)[:, picks[other]]
        for term in self.wide_of[unit]:
            cost += term.change({other: picks[other] for other in term.units} | {unit: np.arange(len(cost))})
        return cost

    def cost(self, picks: Ints) -> float:
        total = self.start + sum(float(alone[pick]) for alone, pick in zip(self.alone, picks, strict=True))
        total += sum(float(table[picks[first], picks[second]]) for (first, second), table in self.pairs.items())
        for term in self.wide:
            total += float(term.change(picks))
        return total

    def error(self, picks: Ints) -> float:
        return float(sum(unit.errors[pick] for unit, pick in zip(self.units, picks, strict=True)))


def problem_of(cutter: Cutter, counts: Mapping[str, Ints], cost: CostOf) -> Problem:
    """The problem of units that may lose these numbers of channels.

    The outputs of layers that write a stream whose readers select are taken as they are now: how many are left depends
    on which channels all readers drop, not on numbers.
    """
    units, now = [cutter.graph.units[name] for name in counts], cost({})
    choices = []
    for unit, numbers in zip(units, counts.values(), strict=True):
        # The error of a choice is the score of the last channel that goes. With granules the weakest channel of each
        # block is removed, so the errors may be out of order.
        values = np.asarray(cutter.scores.values[unit.name])
        added = np.maximum.accumulate(np.concatenate([[0.0], values[weakest_first(unit, values)]]))
        choices.append(Choices(unit.name, numbers, np.asarray(added[numbers], dtype=np.float64)))
    if isinstance(cost, LayeredCost):
        return Problem.of(choices, now, _layer_terms(cutter, units, list(counts.values()), cost))
    alone: list[Floats] = []
    for each in choices:  # a cost that is only known as a whole: asked at a few choices, linear between them
        some = np.unique(np.linspace(0, len(each.counts) - 1, PROBES).round().astype(int))
        lost = each.counts[some]
        asked = [cost({each.name: cutter.keep(each.name, int(n))}) - now if n else 0.0 for n in lost]
        alone.append(np.asarray(np.interp(each.counts, lost, asked)))
    return Problem(choices, now, alone, {}, [])


def some_choices(cutter: Cutter, names: Sequence[str], around: Mapping[str, int] | None = None) -> dict[str, Ints]:
    """Unit -> numbers of channels that it may lose: all, or MOST_CHOICES of them, evenly spread.

    around: instead of an even spread, all choices next to these numbers.
    """
    choices = {}
    for name in names:
        every = np.array(cutter.limits.choices(cutter.graph.units[name]), dtype=np.int64)
        if len(every) > MOST_CHOICES and around is None:
            every = every[np.unique(np.linspace(0, len(every) - 1, MOST_CHOICES).round().astype(int))]
        elif len(every) > MOST_CHOICES:
            near = int(np.searchsorted(every, (around or {}).get(name, 0)))
            reach = len(every) // MOST_CHOICES + 1  # of the even spread
            all_of_it = every[every == cutter.graph.units[name].width]  # the branch may be removed
            every = np.unique([0, *every[max(0, near - reach) : near + reach + 1], *all_of_it])
        choices[name] = every
    return choices


def _layer_terms(cutter: Cutter, units: list[Unit], counts: list[Ints], cost: LayeredCost) -> list[LayerTerm]:
    """What each layer loses by each choice of each unit."""
    graph = cutter.graph
    branches = {name: frozenset(branch.modules) for name, branch in graph.branches.items()}

    def nothing() -> tuple[Ints, Ints]:
        """Per channel of the network: the number of its unit, and its place in the order of removal."""
        channels = graph.analysis.channels
        return np.full(channels, -1, dtype=np.int64), np.zeros(channels, dtype=np.int64)

    shared = nothing()  # of units whose readers drop a channel together
    selected: dict[str, tuple[Ints, Ints]] = {}  # reader that selects -> of its units
    for number, unit in enumerate(units):
        reader = graph.grouped.selecting.get(unit.name)
        owner, turn = shared if reader is None else selected.setdefault(reader, nothing())
        numbers = graph.grouped.channels[unit.name]
        order = weakest_first(unit, np.asarray(cutter.scores.values[unit.name]))
        owner[numbers] = number
        turn[numbers[order]] = np.arange(len(order))

    def losses(channels: Ints | None, reader: str | None = None) -> dict[int, Ints]:
        """Unit -> positions of a layer's axis that go, per choice. channels: that at each position, -1 if none."""
        lost: dict[int, Ints] = {}
        if channels is None:
            return lost
        channels = channels[channels >= 0]
        for owner, turn in (shared, *([selected[reader]] if reader in selected else [])):
            owners = owner[channels]
            for number in np.unique(owners[owners >= 0]).tolist():
                gone = np.sort(turn[channels[owners == number]])
                lost[number] = np.searchsorted(gone, counts[number], side="left").astype(np.int64)
        return lost

    terms = []
    for name, whole in graph.cost({}).layers.items():
        layer = graph.layers[name]
        if layer.depthwise:
            inputs = losses(graph.analysis.passes.get(name), graph.selections.readers.get(name))
            outputs = {unit: lost * (layer.outputs // layer.inputs) for unit, lost in inputs.items()}
        else:
            reads = None if name in graph.analysis.find_rule.reading_all else graph.analysis.reads.get(name)
            inputs, outputs = losses(reads, name), losses(graph.analysis.written_by(name))
        # Layers that read or write the unit of a removed branch have no inputs or outputs left, which costs nothing.
        gone = {
            number: counts[number] == unit.width
            for number, unit in enumerate(units)
            if name in branches.get(unit.name, ()) and counts[number][-1] == unit.width
            if number not in inputs and number not in outputs
        }
        if inputs or outputs or gone:
            at = functools.partial(cost.layer, name)
            terms.append(LayerTerm((whole.inputs, whole.outputs), inputs, outputs, at, gone))
    return terms
