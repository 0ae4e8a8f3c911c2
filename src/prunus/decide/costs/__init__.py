"""Costs: what a network costs when units keep some of their channels. One cost per file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prunus.errors import DecideError
from prunus.util.registry import Entry, Registry

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph

CostOf = Callable[[Mapping[str, Sequence[int]]], float]  # kept channels of some units -> cost of the network


@dataclass(frozen=True)
class LayeredCost:
    """A cost that adds up over layers, each a function of its numbers of inputs and outputs. It is a `CostOf`.

    total: kept channels -> cost of the network, exactly.
    layer: (name, inputs, outputs) -> cost of a layer, element by element for arrays of integers.
    widths: unit -> the numbers of channels that it may keep; units that are not listed may keep any number.
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


COSTS: Registry[CostEntry] = Registry("cost", "prunus.decide.costs", DecideError)


def cost_function(graph: ChannelGraph, cost: str | CostOf) -> CostOf:
    """The cost of a name as a function of kept channels; a function of the user's own is returned as it is."""
    return cost if callable(cost) else COSTS.find(cost).of(graph)


def widths_of(cost: CostOf) -> Mapping[str, tuple[int, ...]]:
    """Unit -> the numbers of channels to which a cost restricts it; empty for a cost that is known everywhere."""
    return cost.widths if isinstance(cost, LayeredCost) else {}


def name_of(cost: str | CostOf) -> str:
    """What a cost is called in tables and files."""
    if isinstance(cost, LayeredCost):
        return cost.name
    return getattr(cost, "__name__", "own") if callable(cost) else cost
