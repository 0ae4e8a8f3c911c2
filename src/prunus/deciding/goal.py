"""Goals: where pruning ends."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING

from prunus.deciding.costs import CostOf, cost_function, name_of, table_cost
from prunus.errors import DecideError
from prunus.util.options import normalise, option, parse_memory
from prunus.util.text import bytes_text

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.timing.latency_table import LatencyTable

TOLERANCE = 0.005  # a budget counts as met within this fraction of the original network's cost


def parse_number(text: str) -> float:
    """'63M' as 63e6; K, M, G and B are thousands, millions and billions."""
    scale = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}.get(text[-1:].upper(), 1.0)
    try:
        return float(text[:-1] if scale > 1 else text) * scale
    except ValueError as error:
        raise DecideError(f"expected a number such as 63M, 400K or 2.3G, got {text!r}") from error


@dataclass(frozen=True)
class Goal:
    """Where pruning ends: one of speedup, target, macs, params, max_memory and ratio. max_drop can be added, or be the
    only goal.

    Attributes:
        speedup: How many times as fast the network becomes, measured in an engine.
        max_drop: Points of held-out accuracy that may be lost; pruning stops before the accuracy drops by more. Of a
            task whose quality is not in per cent, it is in the unit of the quality.
        target: Fraction of the MACs to remove.
        macs, params: MACs or weights to keep, as a number or as text such as "63M".
        max_memory: Bytes of activations for one image at their peak, as a number or as text such as "256K".
        ratio: Fraction of the channels to remove from every unit, in one round.
    """

    speedup: float | None = option(
        None, "How many times as fast, measured in --engine; for example 1.5", group="Goal", everyday=True, above=1
    )
    max_drop: float | None = option(
        None,
        "Points of held-out accuracy (or of the task's quality) that may be lost",
        group="Goal",
        everyday=True,
        least=0,
        below=100,
    )
    target: float | None = option(
        None, "Fraction of the MACs to remove, for example 0.5", group="Goal", everyday=True, above=0, below=1
    )
    macs: float | None = option(None, "MACs to keep, for example 63M", group="Goal", above=0, parse=parse_number)
    params: float | None = option(None, "Weights to keep, for example 400K", group="Goal", above=0, parse=parse_number)
    max_memory: float | None = option(
        None,
        "Peak of the activations of one image, for example 256K bytes",
        group="Goal",
        above=0,
        parse=partial(parse_memory, least=1),
    )
    ratio: float | None = option(
        None, "Fraction of channels to remove from every unit, in one round", group="Goal", above=0, below=1
    )

    def __post_init__(self) -> None:
        """Numbers may be given as text, as in macs="63M"."""
        normalise(self)

    @property
    def given(self) -> list[str]:
        return [field.name for field in fields(Goal) if getattr(self, field.name) is not None]

    def budget(self, graph: ChannelGraph, table: LatencyTable | None = None) -> Budget:
        """The goal in numbers for a network; a latency target needs a table. A goal that is met already is an error."""
        given = [name for name in self.given if name != "max_drop"]
        if len(given) > 1:
            raise DecideError(f"give one goal, not {len(given)}: {', '.join(given)}")
        if not self.given:
            raise DecideError("give a goal: target, speedup, macs, params, max_memory, max_drop or ratio")
        if self.target is not None:
            return Budget("macs", (1 - self.target) * graph.macs, graph.macs)
        if self.speedup is not None:
            if table is None:
                raise DecideError("a speed-up needs a table of the layers' times: see prunus.timing.layer_timing")
            whole = table.predict(graph, {})
            return Budget("latency", whole / self.speedup, whole, table)
        for cost, left in (("macs", self.macs), ("params", self.params), ("memory", self.max_memory)):
            if left is not None:
                whole = graph.memory.peak() if cost == "memory" else getattr(graph, cost)
                if left >= whole:
                    has = f"takes {bytes_text(whole)}, and may take {bytes_text(left)}"
                    has = has if cost == "memory" else f"has {whole:,} {cost}, and the goal is {left:,.0f}"
                    raise DecideError(f"the network meets the goal already: it {has}")
                return Budget(cost, float(left), whole)
        if table is not None:  # the fastest that loses no more than max_drop
            return Budget("latency", None, table.predict(graph, {}), table)
        return Budget("macs", None, graph.macs)


@dataclass(frozen=True)
class Budget:
    """The cost that a network should be left with."""

    cost: str | CostOf  # by name, or a function of kept channels
    left: float | None  # None: as little as max_drop allows
    whole: float  # cost of the original network
    table: LatencyTable | None = None  # times of layers, if the cost is time

    def of(self, graph: ChannelGraph) -> CostOf:
        """The cost as a function of the kept channels of a network: of the original one, or of a pruned one."""
        return cost_function(graph, self.cost) if self.table is None else table_cost(graph, self.table)

    def met(self, cost: float) -> bool:
        """Whether a network of this cost is within 0.5% of the budget."""
        return self.left is not None and cost <= self.left + TOLERANCE * self.whole

    def aim(self, now: float, rounds_left: int) -> Budget:
        """The budget of the next round: an even share of the way from the cost `now`."""
        left = None if self.left is None else now - (now - self.left) / max(1, rounds_left)
        return replace(self, left=left)

    def out_of_reach(self, least: float) -> str:
        """The message for a budget that cannot be met. least: the lowest cost that can be had."""
        left = self.left or 0.0
        if self.table is not None:
            return (
                f"a speed-up of {self.whole / left:.2f}x is out of reach: by the times of its layers, the fastest that "
                f"pruning can make the network is {self.whole / least:.2f}x. Ask for less, or exclude fewer units."
            )
        if name_of(self.cost) == "memory":
            return (
                f"{bytes_text(left)} of activations are out of reach: with every unit at its floor, "
                f"{bytes_text(least)} of {bytes_text(self.whole)} are left. Ask for less, or exclude fewer units; "
                'channels that run through additions are removed with streams="coupled"'
            )
        return (
            f"removing {1 - left / self.whole:.1%} of the {name_of(self.cost)} is out of reach: with every unit at its "
            f"floor (2 channels, 10%) {1 - least / self.whole:.1%} can be removed. Ask for less, or exclude fewer "
            "units."
        )
