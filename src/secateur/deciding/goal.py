"""Goals: where pruning ends."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from secateur.base.options import option
from secateur.errors import DecideError

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph

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
    """Where pruning ends: one of target, macs, params and ratio. max_drop can be added to them, or be the only goal.

    target: fraction of the MACs to remove. macs, params: MACs or weights to keep. ratio: fraction of the channels to
    remove from every unit, in one round. max_drop: points of held-out accuracy that may be lost; pruning stops before
    the accuracy drops by more.
    """

    target: float | None = option(
        None, "Fraction of the MACs to remove; 0.5 if no goal is given", group="Goal", everyday=True, above=0, below=1
    )
    max_drop: float | None = option(
        None, "Points of held-out accuracy that may be lost", group="Goal", everyday=True, least=0, below=100
    )
    macs: float | None = option(None, "MACs to keep, for example 63M", group="Goal", above=0, parse=parse_number)
    params: float | None = option(None, "Weights to keep, for example 400K", group="Goal", above=0, parse=parse_number)
    ratio: float | None = option(
        None, "Fraction of channels to remove from every unit, in one round", group="Goal", above=0, below=1
    )

    @property
    def given(self) -> list[str]:
        """The names of the goals that are set."""
        return [field.name for field in fields(Goal) if getattr(self, field.name) is not None]

    def budget(self, graph: ChannelGraph) -> Budget:
        """The goal in numbers for a network. A goal that the network already meets is an error."""
        given = [name for name in self.given if name != "max_drop"]
        if len(given) > 1:
            raise DecideError(f"give one goal, not {len(given)}: {', '.join(given)}")
        if not self.given:
            raise DecideError("give a goal: target, macs, params, max_drop or ratio")
        if self.target is not None:
            return Budget("macs", (1 - self.target) * graph.macs, graph.macs)
        for name in ("macs", "params"):
            left, whole = getattr(self, name), getattr(graph, name)
            if left is not None:
                if left >= whole:
                    raise DecideError(
                        f"the network meets the goal already: it has {whole:,} {name}, and the goal is {left:,.0f}"
                    )
                return Budget(name, float(left), whole)
        return Budget("macs", None, graph.macs)


@dataclass(frozen=True)
class Budget:
    """The cost that a network should be left with."""

    cost: str  # name of a cost in closed form
    left: float | None  # None: as little as max_drop allows
    whole: float  # cost of the original network

    def met(self, totals: Any) -> bool:
        """Whether a network with these totals (an object with `macs` and `params`) is within 0.5% of the budget."""
        return self.left is not None and float(getattr(totals, self.cost)) <= self.left + TOLERANCE * self.whole

    def aim(self, now: float, rounds_left: int) -> Budget:
        """The budget of the next round: an even share of the way from the cost `now`."""
        left = None if self.left is None else now - (now - self.left) / max(1, rounds_left)
        return Budget(self.cost, left, self.whole)
