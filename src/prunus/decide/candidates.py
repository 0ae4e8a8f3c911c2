"""Which units take part in pruning."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.units import Indices, Unit
from prunus.score.scores import Scores, Vector

if TYPE_CHECKING:
    from prunus.decide.splits import SplitTask


def candidates(graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> list[str]:
    """Names of the units that may be pruned.

    Patterns match names of units and of their layers ("layer1.*", "*:in"). Without `only`, the classifier's selection
    from a stream and units between two linear layers are left out.
    """
    chosen = []
    for name, unit in graph.units.items():
        names = [name, name.partition(":")[0]]
        if _matches(names, exclude) or (only and not _matches(names, only)):
            continue
        if only or not _left_alone(graph, unit):
            chosen.append(name)
    if not chosen:
        raise DecideError(_why_none(graph, exclude, only))
    return chosen


def check_patterns(
    graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = (), original: Iterable[str] = ()
) -> None:
    """DecideError if a pattern matches nothing, with the nearest names.

    original: units of the original network, if `graph` is that of a network that has been pruned before.
    """
    units = [*dict.fromkeys([*graph.units, *original])]
    names = [*dict.fromkeys([*units, *(name.partition(":")[0] for name in units)])]
    for option, patterns in (("only", only), ("exclude", exclude)):
        for pattern in patterns:
            if _matches(names, [pattern]) or (option == "exclude" and _matches([*graph.frozen], [pattern])):
                continue
            frozen = next((name for name in graph.frozen if fnmatch.fnmatch(name, pattern)), None)
            if frozen is not None:
                raise DecideError(f"{option}: {frozen} cannot be pruned: {graph.frozen[frozen]}")
            raise DecideError(
                f"{option}: the pattern {pattern!r} matches no unit and no layer that can be pruned. "
                f"{_nearest(pattern, names)}. `prunus inspect` lists all of them."
            )


def _nearest(pattern: str, names: Sequence[str]) -> str:
    inside = [name for name in names if name.startswith(f"{pattern.rstrip('.*')}.")]
    if inside and not pattern.endswith("*"):
        return f"For all layers inside it, write '{pattern}.*'"
    near = difflib.get_close_matches(pattern, names, n=5, cutoff=0.4)
    return f"The nearest names are {', '.join(near)}" if near else f"Names are such as {', '.join(names[:5])}"


def _why_none(graph: ChannelGraph, exclude: Sequence[str], only: Sequence[str]) -> str:
    if exclude or only:
        return "no unit is left to prune: the patterns exclude all of them. `prunus inspect` lists units."
    name = type(graph.model).__name__
    if not any(layer.kind != "linear" for layer in graph.layers.values()):
        return (
            f"{name} has no convolutions that prunus can see, and without patterns only their channels are pruned. "
            "To prune linear layers, name them with only="
        )
    if graph.units:
        return (
            f"no unit of {name} is pruned by default: its units are {', '.join([*graph.units][:5])}, the classifier's "
            "input or between linear layers. To prune them, name them with only="
        )
    reasons = [f"{layer}: {reason}" for layer, reason in [*graph.frozen.items()][:3]]
    return f"{name} has no channels that can be removed. {'; '.join(reasons)}"


def scored(graph: ChannelGraph, scores: Scores, names: Sequence[str]) -> list[str]:
    """The units among `names` that have scores; an error if the scores are not those of this network."""
    found = [name for name in names if name in scores.values]
    if not found:
        raise DecideError("the scores have none of the graph's units; score the network that you prune")
    for name in found:
        if len(scores.values[name]) != graph.units[name].width:
            raise DecideError(
                f"unit {name!r} has {graph.units[name].width} channels and {len(scores.values[name])} scores; "
                "score the network that you prune"
            )
    return found


def names_for(task: SplitTask) -> list[str]:
    """The units that a split may prune."""
    return scored(task.graph, task.scores, candidates(task.graph, task.settings.exclude, task.settings.only))


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in names)


def _left_alone(graph: ChannelGraph, unit: Unit) -> bool:
    readers = [graph.model.get_submodule(reader.module) for reader in unit.readers]
    writers = [graph.model.get_submodule(writer.module) for writer in unit.writers]
    if unit.kind == "stream" and len(readers) == 1 and isinstance(readers[0], nn.Linear):
        return True
    return all(isinstance(layer, nn.Linear) for layer in (*readers, *writers))


# How many channels a unit may lose, and which ones go first.

LEAST_CHANNELS = 2
LEAST_SHARE = 0.1


def floor_of(unit: Unit, round_to: int = 1, width: int | None = None) -> int:
    """The smallest number of channels that a unit may keep: max(2, 10%), in whole granules and multiples of `round_to`.

    width: the unit's number of channels in the original network, if this network has been pruned before.
    """
    least = max(LEAST_CHANNELS, math.ceil(LEAST_SHARE * (width or unit.width)))
    step = math.lcm(unit.granule, round_to)
    return min(unit.width, step * math.ceil(least / step))


@dataclass(frozen=True)
class WidthLimits:
    """The widths that units may be pruned to."""

    round_to: int = 1  # the width of a pruned unit is a multiple of this
    original: Mapping[str, int] = field(default_factory=dict)  # unit -> width in the original network, for the floors
    known: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # unit -> widths whose cost is known, if not all

    def __post_init__(self) -> None:
        """Check `round_to`."""
        if self.round_to < 1:
            raise DecideError(f"round_to must be a whole number of channels, at least 1; got {self.round_to}")

    def choices(self, unit: Unit) -> list[int]:
        """The numbers of channels that the unit may lose, in ascending order, starting with 0."""
        step = math.lcm(unit.granule, self.round_to)
        floor = floor_of(unit, self.round_to, self.original.get(unit.name))
        left: Iterable[int] = range(step * (unit.width // step), floor - 1, -step)
        if unit.name in self.known:
            left = {*left} & {*self.known[unit.name]}
        return sorted({0, *(unit.width - n for n in left)})

    def nearest(self, unit: Unit, exact: float, least: int = 0) -> int:
        """The choice nearest to `exact` that is at least `least`; ties go to the even number of steps."""
        double = 2 * math.lcm(unit.granule, self.round_to)
        choices = [n for n in self.choices(unit) if n >= least]
        return min(choices, key=lambda n: (abs(n - exact), n % double), default=0)


def weakest_first(unit: Unit, values: Vector) -> Indices:
    """Channels in the order of removal: the weakest of every block, then the second weakest of every block, ..."""
    ranks = np.empty(unit.width, dtype=np.int64)
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        ranks[inside[np.argsort(values[inside], kind="stable")]] = np.arange(len(inside))
    return np.lexsort((values, ranks))  # by rank in the block, then by value: every block loses the same number


def kept_after(unit: Unit, values: Vector, removed: int) -> list[int]:
    """The channels that remain when the `removed` weakest ones are gone."""
    return sorted(weakest_first(unit, values)[removed:].tolist())
