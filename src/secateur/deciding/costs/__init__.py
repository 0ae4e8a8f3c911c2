"""Costs: what a network costs when units keep some of their channels. One cost per file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from secateur.base.registry import Entry, Registry
from secateur.errors import DecideError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph

CostOf = Callable[[Mapping[str, Sequence[int]]], float]  # kept channels of some units -> cost of the network


@dataclass(frozen=True, kw_only=True)
class CostEntry(Entry):
    """A cost by name. `of(graph)` gives the function from kept channels to cost; it may measure first."""

    of: Callable[[ChannelGraph], CostOf]
    measured: bool = False  # it takes time to know, and differs between machines


COSTS: Registry[CostEntry] = Registry("cost", "secateur.deciding.costs", DecideError)


def cost_function(graph: ChannelGraph, cost: str | CostOf) -> CostOf:
    """The cost of a name as a function of kept channels; a function of the user's own is returned as it is."""
    return cost if callable(cost) else COSTS.find(cost).of(graph)


def name_of(cost: str | CostOf) -> str:
    """What a cost is called in tables and files."""
    return getattr(cost, "__name__", "own") if callable(cost) else cost
