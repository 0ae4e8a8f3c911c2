"""Which units take part in pruning, how many channels they may lose, and which ones go first.

`amounts` are the numbers that save the same cost everywhere (FLOSS and n_l of the paper).
"""

from __future__ import annotations

import fnmatch
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from prunus.deciding.costs import CostOf
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.traced import check_graph
from prunus.graph.units import Indices, Unit
from prunus.scoring.scores import Scores, Vector, check_scores
from prunus.util.registry import nearest

logger = logging.getLogger(__name__)


def candidates(graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = ()) -> list[str]:
    """Names of the units that may be pruned.

    Patterns match names of units and of their layers ("layer1.*", "*:in"). Without `only`, the classifier's selection
    from a stream and units between two linear layers are left out. Linear layers over tokens are like convolutions.
    """
    chosen = []
    for name, unit in graph.units.items():
        names = [name, name.partition(":")[0]]
        if _matches(names, exclude) or (only and not _matches(names, only)):
            continue
        linear = [_classifies(graph, reader.module) for reader in unit.readers]
        left_alone = unit.kind == "stream" and linear == [True]
        left_alone |= all((*linear, *(_classifies(graph, writer.module) for writer in unit.writers)))
        if only or not left_alone:
            chosen.append(name)
    if not chosen:
        raise DecideError(_why_none(graph, exclude, only))
    return chosen


def scored(graph: ChannelGraph, scores: Scores, names: Sequence[str]) -> list[str]:
    """The units among `names` that have scores; an error if the scores are not those of this network."""
    known = [name for name in names if name in scores.values]
    if not known:
        raise DecideError("the scores have none of the graph's units; score the network that you prune")
    for name in known:
        if len(scores.values[name]) != graph.units[name].width:
            raise DecideError(
                f"unit {name!r} has {graph.units[name].width} channels and {len(scores.values[name])} scores; "
                "score the network that you prune"
            )
    return known


def check_patterns(
    graph: ChannelGraph, exclude: Sequence[str] = (), only: Sequence[str] = (), original: Iterable[str] = ()
) -> None:
    """DecideError if a pattern matches nothing, with the nearest names; a warning if it excludes what is not pruned.

    original: units of the original network, if `graph` is that of a network that has been pruned before.
    """
    units = [*dict.fromkeys([*graph.units, *original])]
    names = [*dict.fromkeys([*units, *(name.partition(":")[0] for name in units)])]
    for option, patterns in (("only", only), ("exclude", exclude)):
        for pattern in patterns:
            if _matches(names, [pattern]) or (option == "exclude" and _matches([*graph.frozen], [pattern])):
                continue
            layer = next((name for name in graph.layers if fnmatch.fnmatch(name, pattern)), None)
            if option == "exclude" and layer is not None:
                logger.warning(
                    "exclude: %r matches %s, which has no unit of its own: it excludes nothing", pattern, layer
                )
                continue
            frozen = next((name for name in graph.frozen if fnmatch.fnmatch(name, pattern)), None)
            if frozen is not None:
                raise DecideError(f"{option}: {frozen} cannot be pruned: {graph.frozen[frozen]}")
            near = nearest(pattern, names)
            hint = f"The nearest names are {', '.join(near)}" if near else f"Names are such as {', '.join(names[:5])}"
            if not pattern.endswith("*") and any(name.startswith(f"{pattern.rstrip('.')}.") for name in names):
                hint = f"For all layers inside it, write '{pattern}.*'"
            raise DecideError(
                f"{option}: the pattern {pattern!r} matches no unit and no layer that can be pruned. {hint}. "
                "`prunus inspect` lists all of them."
            )


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in names)


def _classifies(graph: ChannelGraph, name: str) -> bool:
    """Whether a layer is linear and works on whole images: those of transformers work on every token."""
    layer = graph.layers.get(name)
    return isinstance(graph.model.get_submodule(name), nn.Linear) and (layer is None or layer.positions == 1)


def _why_none(graph: ChannelGraph, exclude: Sequence[str], only: Sequence[str]) -> str:
    if exclude or only:
        return "no unit is left to prune: the patterns exclude all of them. `prunus inspect` lists units."
    name = type(graph.model).__name__
    if all(layer.kind in ("linear", "product") for layer in graph.layers.values()):
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


LEAST_CHANNELS = 2
LEAST_SHARE = 0.1
TO_THE_FLOOR = 1e9  # a factor that takes every unit to its floor

Kept = dict[str, list[int]]  # unit -> channels that it keeps


def kernel_step(width: int) -> int:
    """The number of channels whose multiples suit the kernels of engines, for a unit of this width.

    Kernels compute 8 or 16 channels at a time, and a width between two multiples costs as much as the next one, or
    leaves the fast layout. Narrow units would have too few choices left: they get 4, and below 8 channels any width.
    """
    return 8 if width >= 32 else 4 if width >= 8 else 1


def floor_of(unit: Unit, round_to: int = 1, width: int | None = None) -> int:
    """The smallest number of channels that a unit may keep: max(2, 10%), in whole granules and multiples of `round_to`.

    width: the unit's number of channels in the original network, if this network has been pruned before.
    """
    least = max(LEAST_CHANNELS, math.ceil(LEAST_SHARE * (width or unit.width)))
    step = math.lcm(unit.granule, round_to)
    return min(unit.width, step * math.ceil(least / step))


def weakest_first(unit: Unit, values: Vector) -> Indices:
    """Channels in the order of removal: the weakest of every block, then the second weakest of every block, ..."""
    ranks = np.empty(unit.width, dtype=np.int64)
    for block in range(unit.granule):
        inside = np.flatnonzero(unit.blocks == block)
        ranks[inside[np.argsort(values[inside], kind="stable")]] = np.arange(len(inside))
    return np.lexsort((values, ranks))  # by rank in the block, then by value: every block loses the same number


def error_of(keep: Mapping[str, Sequence[int]], scores: Scores) -> float:
    """The sum over units of the score of the strongest channel that goes: with scores that are errors, the error."""
    lost = [np.delete(scores.values[name], kept) for name, kept in keep.items() if name in scores.values]
    return sum(float(each.max()) for each in lost if each.size)


@dataclass(frozen=True)
class WidthLimits:
    """The widths that units may be pruned to."""

    round_to: int | None = 1  # the width of a pruned unit is a multiple of this; None: of what suits kernels
    original: Mapping[str, int] = field(default_factory=dict)  # unit -> width in the original network, for the floors
    known: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # unit -> widths whose cost is known, if not all
    blocks: bool = False  # units that can vanish may lose all of their channels

    def __post_init__(self) -> None:
        if self.round_to is not None and self.round_to < 1:
            raise DecideError(f"round_to must be a whole number of channels, at least 1; got {self.round_to}")

    def multiple(self, unit: Unit) -> int:
        """The number of which the width of a pruned unit is a multiple, besides its granule."""
        return kernel_step(self.original.get(unit.name, unit.width)) if self.round_to is None else self.round_to

    def choices(self, unit: Unit) -> list[int]:
        """The numbers of channels that the unit may lose, in ascending order, starting with 0."""
        step = math.lcm(unit.granule, self.multiple(unit))
        floor = floor_of(unit, self.multiple(unit), self.original.get(unit.name))
        left: Iterable[int] = range(step * (unit.width // step), floor - 1, -step)
        if unit.name in self.known:
            left = {*left} & {*self.known[unit.name]}
        everything = {unit.width} if self.blocks and unit.can_vanish else set()
        return sorted({0, *(unit.width - n for n in left), *everything})

    def nearest(self, unit: Unit, exact: float, least: int = 0) -> int:
        """The choice nearest to `exact` that is at least `least`; ties go to the even number of steps."""
        double = 2 * math.lcm(unit.granule, self.multiple(unit))
        choices = [n for n in self.choices(unit) if n >= least]
        return min(choices, key=lambda n: (abs(n - exact), n % double), default=0)


@dataclass(frozen=True)
class Cutter:
    """Turns numbers of removed channels into kept channels: the weakest go first, within the width limits."""

    graph: ChannelGraph
    scores: Scores
    limits: WidthLimits = field(default_factory=WidthLimits)

    def __post_init__(self) -> None:
        check_graph(self.graph)
        check_scores(self.scores)

    def keep(self, unit: str, removed: int) -> list[int]:
        """The channels that a unit keeps when it loses its `removed` weakest ones."""
        order = weakest_first(self.graph.units[unit], self.scores.values[unit])
        return sorted(order[removed:].tolist())

    def scaled(self, amounts: Mapping[str, float], factor: float) -> Kept:
        """Kept channels when every unit loses `factor` times its amount, rounded to an allowed number."""
        removed = {name: self.limits.nearest(self.graph.units[name], n * factor) for name, n in amounts.items()}
        return {name: self.keep(name, count) for name, count in removed.items() if count > 0}

    def fit(self, amounts: Mapping[str, float], cost: CostOf, budget: float) -> Kept | None:
        """Scale all amounts by the smallest factor that meets the budget, then undo steps that are not needed.

        None if even the floors do not meet the budget.
        """

        def enough(factor: float) -> bool:
            return cost(self.scaled(amounts, factor)) <= budget

        if not enough(TO_THE_FLOOR):
            return None
        low, high = 0.0, 1.0
        while not enough(high):
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        keep = self.scaled(amounts, high)
        for name in sorted(keep, key=lambda n: -len(keep[n])):  # the widest unit first gets a step back
            unit = self.graph.units[name]
            fewer = [n for n in self.limits.choices(unit) if n < unit.width - len(keep[name])]
            more = {**keep, name: self.keep(name, fewer[-1])} if fewer else keep
            keep = more if cost(more) <= budget else keep
        return keep

    def plan(self, keep: Mapping[str, list[int]]) -> Plan:
        """The plan that keeps these channels; `graph.balance` makes it one that the network can carry out."""
        return Plan.of(self.graph, self.graph.balance(keep))


@dataclass(frozen=True)
class Amount:
    """The number of channels that one unit would lose."""

    unit: str
    channels: int  # n_l, in whole granules
    floss: float  # cost saved by one channel (Eqn. 2)
    stopped: bool  # the floor keeps it from saving as much as the others


def amounts(cutter: Cutter, names: Sequence[str], *, alpha: float, cost: CostOf) -> dict[str, Amount]:
    """FLOSS_l = C(M) - C(M without one channel of l);  n_l = round(alpha * FLOSS_max / FLOSS_l), whole granules.

    These are Eqns. 2 and 3 of the paper. If a unit loses g channels at a time (a granule, or a multiple of round_to),
    FLOSS_l is what the first g save, divided by g. Measured time falls in steps, and the first g may save nothing: if
    removing half of the channels saves more per channel, that counts. Units that would go below their floor stop there,
    and are marked.
    """
    if not 0 < alpha < math.inf:
        raise DecideError(f"alpha must be above 0 (the paper uses 2 to 4), got {alpha}")
    limits, whole = cutter.limits, cost({})
    floss = {}
    for name in names:
        unit = cutter.graph.units[name]
        first = next((n for n in limits.choices(unit) if n > 0), unit.granule)
        counts = {first, limits.nearest(unit, unit.width / 2, least=first) or first}
        floss[name] = max(0.0, *((whole - cost({name: cutter.keep(name, n)})) / n for n in counts))
    most = max(floss.values())
    if most <= 0:
        raise DecideError("no unit saves anything when it loses a channel")
    result = {}
    for name in names:
        if floss[name] > 0:
            unit, exact = cutter.graph.units[name], alpha * most / floss[name]
            # Multiples of round_to are coarse. A unit whose amount rounds to 0 loses one step, or it could never be
            # pruned.
            channels = limits.nearest(unit, exact, least=int(limits.multiple(unit) > 1))
            half_a_step = math.lcm(unit.granule, limits.multiple(unit)) / 2
            result[name] = Amount(name, channels, floss[name], exact > channels + half_a_step)
    return result
