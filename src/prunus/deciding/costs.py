"""Costs: what a network costs when units keep some of their channels. Importing this module does not import torch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prunus.errors import DecideError
from prunus.util.registry import Entry, Registry

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
        """The cost of the network when units keep these channels."""
        return self.total(keep)


@dataclass(frozen=True, kw_only=True)
class CostEntry(Entry):
    """A cost by name. `of(graph)` gives the function from kept channels to cost; it may measure first."""

    of: Callable[[ChannelGraph], CostOf]
    measured: bool = False  # it takes time to know, and differs between machines


COSTS: Registry[CostEntry] = Registry("cost", "prunus.deciding.costs", DecideError)


def cost_function(graph: ChannelGraph, cost: str | CostOf) -> CostOf:
    """The cost of a name as a function of kept channels; a user-provided function is returned as it is."""
    return cost if callable(cost) else COSTS.find(cost).of(graph)


def widths_of(cost: CostOf) -> Mapping[str, tuple[int, ...]]:
    """Unit -> the numbers of channels to which a cost restricts it; empty for a cost that is known everywhere."""
    return cost.widths if isinstance(cost, LayeredCost) else {}


def name_of(cost: str | CostOf) -> str:
    """What a cost is called in tables and files."""
    if isinstance(cost, LayeredCost):
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
    seconds = functools.cache(table.seconds)

    def layer(name: str, inputs: int, outputs: int) -> float:
        if name not in table.layers:  # a function, not a module: its time is part of the remainder
            return 0.0
        selects = name in selecting and inputs < graph.layers[name].inputs
        rest = table.remainder * table.outside_part(name, int(outputs))
        return seconds(name, int(inputs), int(outputs), selects=selects) + rest

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
    help="Multiply-adds of convolutions and linear layers per image",
    of=functools.partial(_counted, "macs"),
)
PARAMS = CostEntry(
    name="params", help="Weights of convolutions and linear layers", of=functools.partial(_counted, "params")
)
LATENCY = CostEntry(
    name="latency",
    help="Seconds per batch, from a table of layer timings measured on this machine",
    of=_measured,
    measured=True,
)
