"""Costs: what a network costs when units keep some of their channels. Importing this module does not import torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from prunus.errors import DecideError
from prunus.util.registry import Entry, Registry
from prunus.util.user_code import cannot_take

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.timing.latency_table import LatencyTable

CostOf = Callable[[Mapping[str, Sequence[int]]], float]  # kept channels of some units -> cost of the network


@dataclass(frozen=True)
class LayeredCost:
    """A cost that adds up over layers, each a function of its numbers of inputs and outputs. It is a `CostOf`.

    Attributes:
        total: Kept channels -> cost of the network, exactly.
        layer: (name, inputs, outputs) -> cost of a layer, element by element for arrays of integers.
        widths: Unit -> the numbers of channels that it may keep; units that are not listed may keep any number.
    """

    total: CostOf
    layer: Callable[[str, Any, Any], Any]
    widths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    name: str = "own"

    def __call__(self, keep: Mapping[str, Sequence[int]]) -> float:
        return self.total(keep)


@dataclass(frozen=True)
class PeakCost:
    """A cost that is the largest of several sums, such as the memory at each call of a network. It is a `CostOf`.

    Attributes:
        sums: Kept channels -> each of the sums.
        one: (number of a sum, kept channels) -> that sum.
    """

    sums: Callable[[Mapping[str, Sequence[int]]], Any]
    one: Callable[[int, Mapping[str, Sequence[int]]], float]
    name: str = "own"

    def __call__(self, keep: Mapping[str, Sequence[int]]) -> float:
        return float(max(self.sums(keep)))

    def largest(self, keep: Mapping[str, Sequence[int]]) -> CostOf:
        """The sum that is the largest for these channels, as a cost."""
        values = list(self.sums(keep))
        return functools.partial(self.one, values.index(max(values)))


@dataclass(frozen=True, kw_only=True)
class CostEntry(Entry):
    """A cost by name. `of(graph)` gives the function from kept channels to cost; it may measure first."""

    of: Callable[[ChannelGraph], CostOf]


def function_cost(function: Callable[..., Any]) -> CostEntry:
    """The cost that a user-provided function is: it takes a graph and returns a function of kept channels."""
    return CostEntry(name=name_of(function), help="User-provided", of=function)


COSTS: Registry[CostEntry] = Registry("cost", "prunus.deciding.costs", DecideError, function_cost)


def cost_function(graph: ChannelGraph, cost: str | CostOf | CostEntry) -> CostOf:
    """The cost as a function of kept channels. What a user-provided function returns must be numbers."""
    entry = COSTS.find(cost) if isinstance(cost, str) else cost
    function: Any = entry.of(graph) if isinstance(entry, CostEntry) else entry
    if isinstance(function, LayeredCost | PeakCost):
        return function
    if not callable(function):
        where = f"{cost} must return one for a graph, and returned" if isinstance(entry, CostEntry) else "got"
        raise DecideError(
            f"a cost is one of {', '.join(COSTS)}, or a function of kept channels (unit -> channels); {where} "
            f"{type(function).__name__}"
        )
    name, trouble = name_of(function), cannot_take(function, {})
    if trouble:
        raise DecideError(f"your cost {name} is called with the kept channels, but: {trouble}")

    @functools.wraps(function, updated=())
    def checked(keep: Mapping[str, Sequence[int]]) -> float:
        value: Any = function(keep)
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            got = f"{value}" if isinstance(value, Real) else type(value).__name__
            raise DecideError(f"your cost {name} must return a finite number for kept channels, and returned {got}")
        return float(value)

    return checked


def widths_of(cost: CostOf) -> Mapping[str, tuple[int, ...]]:
    """Unit -> the numbers of channels to which a cost restricts it; empty for a cost that is known everywhere."""
    return cost.widths if isinstance(cost, LayeredCost) else {}


def name_of(cost: str | CostOf) -> str:
    """What a cost is called in tables and files."""
    if isinstance(cost, LayeredCost | PeakCost | CostEntry):
        return cost.name
    return getattr(cost, "__name__", "own") if callable(cost) else cost


def _counted(what: str, graph: ChannelGraph) -> LayeredCost:
    """MACs or weights in closed form: no model is built."""
    from prunus.graph.cost import cost_of

    return LayeredCost(
        lambda keep: float(getattr(graph.cost(keep), what)),
        lambda name, inputs, outputs: getattr(cost_of(graph.layers[name], inputs, outputs), what),
        name=what,
    )


def table_cost(graph: ChannelGraph, table: LatencyTable) -> LayeredCost:
    """Predicted seconds per batch. Units keep numbers of channels at which their layers were timed.

    What is not a layer counts where its numbers are written: each layer has its part of the remainder.
    """
    import numpy as np

    selecting = {*graph.grouped.selecting.values()}

    def layer(name: str, inputs: int, outputs: int) -> float:
        # A layer without channels is removed with its branch. The time of what is a function is part of the remainder.
        if not inputs or not outputs or name not in table.layers:
            return 0.0
        selects = name in selecting and inputs < graph.layers[name].inputs
        rest = table.remainder * table.outside_part(name, int(outputs))
        return table.layers[name].at(int(inputs), int(outputs), selects=selects) + rest

    return LayeredCost(
        lambda keep: table.predict(graph, keep),
        np.vectorize(layer, otypes=[np.float64], excluded=(0,)),
        table.widths(graph),
        "latency",
    )


def _measured(graph: ChannelGraph) -> LayeredCost:
    """Seconds per batch in eager mode, measured now."""
    from prunus.timing.layer_timing import latency_table

    return table_cost(graph, latency_table(graph))


MACS = CostEntry(
    name="macs",
    help="Multiply-adds of convolutions, linear layers and attention per image",
    of=functools.partial(_counted, "macs"),
)
PARAMS = CostEntry(
    name="params", help="Weights of convolutions and linear layers", of=functools.partial(_counted, "params")
)
MEMORY = CostEntry(
    name="memory",
    help="Peak of the activations in bytes, for one image",
    of=lambda graph: PeakCost(graph.memory.at_calls, graph.memory.at_call, "memory"),
)
LATENCY = CostEntry(
    name="latency", help="Seconds per batch, from a table of layer timings measured on this machine", of=_measured
)
