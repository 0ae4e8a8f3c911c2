"""The choices of every unit, and how the cost of a network depends on them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from prunus.decide.amounts import Cutter
from prunus.decide.candidates import weakest_first
from prunus.decide.costs import CostOf, LayeredCost
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Unit

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


# From a network, its scores and a cost to a problem: what each layer loses by each choice of each unit.

MOST_CHOICES = 65  # of a unit at a time; more are searched in two stages
PROBES = 9  # choices of a unit at which a cost is asked that is only known as a whole


def problem_of(cutter: Cutter, counts: Mapping[str, Ints], cost: CostOf) -> Problem:
    """The problem of units that may lose these numbers of channels.

    The outputs of layers that write a stream whose readers select are taken as they are now: how many are left depends
    on which channels all readers drop, not on numbers.
    """
    units = [cutter.graph.units[name] for name in counts]
    every, now = list(counts.values()), cost({})
    if isinstance(cost, LayeredCost):
        own = [np.zeros(len(each)) for each in every]
        layers = _layer_terms(cutter, units, every, cost)
    else:
        own = [_alone(cutter, unit, each, cost, now) for unit, each in zip(units, every, strict=True)]
        layers = []
    choices = [
        Choices(unit.name, each, _errors(cutter, unit, each), alone)
        for unit, each, alone in zip(units, every, own, strict=True)
    ]
    return Problem.of(choices, now, layers)


def some_choices(cutter: Cutter, names: Sequence[str], around: Mapping[str, int] | None = None) -> dict[str, Ints]:
    """Unit -> numbers of channels that it may lose: all, or MOST_CHOICES of them, evenly spread.

    around: instead of an even spread, all choices next to these numbers.
    """
    found = {}
    for name in names:
        every = np.array(cutter.limits.choices(cutter.graph.units[name]), dtype=np.int64)
        if len(every) > MOST_CHOICES and around is None:
            every = every[np.unique(np.linspace(0, len(every) - 1, MOST_CHOICES).round().astype(int))]
        elif len(every) > MOST_CHOICES:
            near = int(np.searchsorted(every, (around or {}).get(name, 0)))
            reach = len(every) // MOST_CHOICES + 1  # of the even spread
            every = np.unique(np.append(every[max(0, near - reach) : near + reach + 1], 0))
        found[name] = every
    return found


def _errors(cutter: Cutter, unit: Unit, counts: Ints) -> Floats:
    """E_u of each choice: the score of the last channel that goes."""
    values = np.asarray(cutter.scores.values[unit.name])
    # With granules the weakest channel of each block is removed, so the errors may be out of order.
    added = np.maximum.accumulate(np.concatenate([[0.0], values[weakest_first(unit, values)]]))
    return np.asarray(added[counts], dtype=np.float64)


def _alone(cutter: Cutter, unit: Unit, counts: Ints, cost: CostOf, now: float) -> Floats:
    """Change of a cost that is only known as a whole: asked at a few choices, linear between them."""
    some = np.unique(np.linspace(0, len(counts) - 1, PROBES).round().astype(int))
    asked = [cost({unit.name: cutter.keep(unit.name, int(counts[i]))}) - now if counts[i] else 0.0 for i in some]
    return np.interp(counts, counts[some], asked)


def _layer_terms(cutter: Cutter, units: list[Unit], counts: list[Ints], cost: LayeredCost) -> list[LayerTerm]:
    graph = cutter.graph
    losses = _Losses(cutter, units, counts)
    terms = []
    for name, whole in graph.cost({}).layers.items():
        layer = graph.layers[name]
        if layer.depthwise:
            inputs = losses.of(graph.analysis.passes.get(name), graph.selections.readers.get(name))
            outputs = {unit: lost * (layer.outputs // layer.inputs) for unit, lost in inputs.items()}
        else:
            reads = None if name in graph.analysis.find_rule.reading_all else graph.analysis.reads.get(name)
            inputs, outputs = losses.of(reads, name), losses.of(graph.analysis.writes.get(name))
        if inputs or outputs:
            at = functools.partial(cost.layer, name)
            terms.append(LayerTerm((whole.inputs, whole.outputs), inputs, outputs, at))
    return terms


class _Losses:
    """How many positions of a layer's axis go with each choice of each unit."""

    def __init__(self, cutter: Cutter, units: list[Unit], counts: list[Ints]) -> None:
        grouped = cutter.graph.grouped
        self.counts = counts
        self.shared = _Turns(cutter.graph)  # of units whose readers drop a channel together
        self.own: dict[str, _Turns] = {}  # reader that selects -> of its units
        for number, unit in enumerate(units):
            reader = grouped.selecting.get(unit.name)
            turns = self.shared if reader is None else self.own.setdefault(reader, _Turns(cutter.graph))
            numbers = grouped.channels[unit.name]
            order = weakest_first(unit, np.asarray(cutter.scores.values[unit.name]))
            turns.unit[numbers] = number
            turns.turn[numbers[order]] = np.arange(len(order))

    def of(self, vector: Ints | None, reader: str | None = None) -> dict[int, Ints]:
        """Unit -> positions of the axis that go, per choice. vector: the channel at each position, -1 if none."""
        if vector is None:
            return {}
        channels = vector[vector >= 0]
        found: dict[int, Ints] = {}
        for turns in (self.shared, self.own.get(reader or "")):
            if turns is not None:
                units = turns.unit[channels]
                for number in np.unique(units[units >= 0]).tolist():
                    gone = np.sort(turns.turn[channels[units == number]])
                    found[number] = np.searchsorted(gone, self.counts[number], side="left").astype(np.int64)
        return found


class _Turns:
    """Per channel of the network: the number of its unit, and its place in the order of removal."""

    def __init__(self, graph: ChannelGraph) -> None:
        self.unit = np.full(graph.analysis.channels, -1, dtype=np.int64)
        self.turn = np.zeros(graph.analysis.channels, dtype=np.int64)
