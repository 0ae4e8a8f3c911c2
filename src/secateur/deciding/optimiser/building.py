"""From a network, its scores and a cost to a problem: what each layer loses by each choice of each unit."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from secateur.channels.graph import ChannelGraph
from secateur.channels.units import Unit
from secateur.deciding.budget import Cutter
from secateur.deciding.costs import CostOf, LayeredCost
from secateur.deciding.optimiser.problem import Choices, Floats, Ints, LayerTerm, Problem
from secateur.deciding.widths import weakest_first

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
            inputs = losses.of(graph.found.passes.get(name), graph.selections.readers.get(name))
            outputs = {unit: lost * (layer.outputs // layer.inputs) for unit, lost in inputs.items()}
        else:
            reads = None if name in graph.found.find_rule.reading_all else graph.found.reads.get(name)
            inputs, outputs = losses.of(reads, name), losses.of(graph.found.writes.get(name))
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
        self.unit = np.full(graph.found.channels, -1, dtype=np.int64)
        self.turn = np.zeros(graph.found.channels, dtype=np.int64)
