"""The promise of a goal in time is checked: the pruned network is timed beside the original one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from secateur.base.batches import device_of
from secateur.base.distributed import from_first
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.deciding.goal import Budget
from secateur.errors import DecideError
from secateur.measuring.latency import latency
from secateur.measuring.layer_timing.machine import machine_of
from secateur.measuring.speedup import Speedup, speedup
from secateur.measuring.turns import processor_time
from secateur.running.folder import SPEED
from secateur.running.run_context import RunContext

logger = logging.getLogger(__name__)

TRIES = 5  # splits at most
CLOSE = 1.02  # a network up to this much faster than asked is good enough
MARGIN = 0.997  # a tightened budget is a little smaller than the shortfall says
MOST_TURNS, FEWEST_TURNS, SECONDS = 25, 9, 20.0  # of each network, and about how long they may take


@dataclass(frozen=True)
class Check:
    """One split and what was measured of it."""

    left: float  # budget of the split, seconds per batch
    predicted: float  # speed-up by the table
    measured: Speedup

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, words: dict[str, Any]) -> Check:
        """The inverse of `to_dict`."""
        return cls(words["left"], words["predicted"], Speedup(**words["measured"]))


@dataclass(frozen=True)
class TimedPair:
    """Median seconds per batch of the original and the pruned network, which took turns, and the speed-up."""

    before: float
    after: float
    speedup: Speedup


def is_checked(context: RunContext) -> bool:
    """Whether the speed can be measured here: the times of the layers are of this kind of machine."""
    table = context.budget.table
    if table is None:
        return False
    how = table.measured_with
    return machine_of(device_of(context.original)) == (how.machine, how.instructions)


def time_beside(context: RunContext, small: nn.Module) -> TimedPair:
    """Time the original and a pruned network in the run's engine, in turns; the first process measures."""
    table = context.budget.table
    assert table is not None
    how = table.measured_with

    def measure() -> TimedPair:
        before, after = latency(
            {"before": context.original, "after": small},
            context.graph.example,
            engine=how.engine,
            batch_sizes=(how.batch,),
            rounds=int(min(MOST_TURNS, max(FEWEST_TURNS, SECONDS / (2 * table.whole)))),
            threads=how.threads,
            cpu_time=processor_time(device_of(small), how.threads),
        )
        return TimedPair(before.median, after.median, speedup(before.seconds, after.seconds))

    return from_first(measure)


def plan_in_time(
    context: RunContext, number: int, graph: ChannelGraph, budget: Budget, split: Callable[[Budget], Plan]
) -> Plan:
    """The plan of a split, timed; the split is repeated with another budget if the network is too slow or too fast.

    Of the plans that are as fast as asked, the one with the largest budget is taken, or else the fastest. What was
    measured is in the folder, so that a run that continues makes the same plan.
    """
    asked, table = context.settings.speedup, budget.table
    plan = split(budget)
    if table is None or asked is None or not is_checked(context) or not _meets_goal(context, graph, plan):
        return plan
    folder, name = context.folder, f"{context.folder.round(number).name}/{SPEED}"
    known = folder.parse(name, lambda w: [Check.from_dict(c) for c in w["checks"]]) if folder.has(name) else []
    tried: list[tuple[Check, Plan]] = []
    while len(tried) < TRIES:
        context.say(f"round {number}: speed", len(tried), None)
        if len(tried) < len(known):
            check = known[len(tried)]
        else:
            timed = time_beside(context, prune(graph, plan, check=False))
            check = Check(budget.left or 0.0, table.whole / table.predict(graph, plan), timed.speedup)
        tried.append((check, plan))
        folder.write(name, {"checks": [c.to_dict() for c, _ in tried]})
        if asked <= check.measured.ratio <= CLOSE * asked:
            break
        budget = replace(budget, left=_next_left(tried, asked))
        try:
            plan = split(budget)
        except DecideError:  # out of reach
            break
        if any(plan.keep == before.keep for _, before in tried):
            break
    return _chosen(tried, asked)


def _meets_goal(context: RunContext, graph: ChannelGraph, plan: Plan) -> bool:
    """Whether this is the last round: earlier rounds go a part of the way."""
    return context.budget.met(context.budget.of(graph)(plan.keep))


def _next_left(tried: list[tuple[Check, Plan]], asked: float) -> float:
    """The budget that would have given the speed-up, if time is in proportion; between the known ones."""
    fast = [check for check, _ in tried if check.measured.ratio >= asked]
    slow = [check for check, _ in tried if check.measured.ratio < asked]
    check = tried[-1][0]
    left = check.left * check.measured.ratio / asked * MARGIN
    if fast and slow:
        low, high = max(c.left for c in fast), min(c.left for c in slow)
        if not low < left < high:
            return (low + high) / 2
    return left


def _chosen(tried: list[tuple[Check, Plan]], asked: float) -> Plan:
    good = [(check.left, plan) for check, plan in tried if check.measured.ratio >= asked]
    if good:
        return max(good, key=lambda pair: pair[0])[1]
    check, plan = max(tried, key=lambda pair: pair[0].measured.ratio)
    logger.warning(
        "the pruned network is %.2fx as fast as the original one; %.2fx was asked, and no faster split was found",
        check.measured.ratio,
        asked,
    )
    return plan
