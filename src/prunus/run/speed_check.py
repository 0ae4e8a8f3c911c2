"""A latency target is checked: the pruned network is timed beside the original one."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from prunus.deciding.goal import Budget
from prunus.deciding.splits import SplitInputs
from prunus.deciding.widths import error_of
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.plan import Plan
from prunus.run.context import RunContext, SharedNetwork
from prunus.run.folder import SPEED, TABLE, RunFolder
from prunus.run.settings import Settings
from prunus.timing.engines import default_engine
from prunus.timing.latency import Speedup, latency, processor_time, ready_to_time, speedup
from prunus.timing.latency_table import LatencyTable, machine_of, open_table
from prunus.timing.layer_timing import latency_table
from prunus.util.batches import device_of
from prunus.util.processes import from_first

logger = logging.getLogger(__name__)

TRIES = 6  # networks to time at most; half of them with aligned widths
MOST_SPLITS = 16  # in each search; one that is known already is not timed again
ALIGNED = 16  # channels that kernels handle at a time, at most
CLOSE = 1.02  # a network up to this much faster than asked is good enough
LEAST_GAIN = 1.02  # a smaller speed-up says little about the next budget
MARGIN = 0.997  # a tightened budget is a little smaller than the shortfall says
MOST_TIGHTER = 4  # budgets that are tried after a winner was too slow when it was measured again
MOST_TURNS, FEWEST_TURNS, SECONDS = 25, 9, 20.0  # of each network, and about how long they may take

Decide = Callable[[Budget, int], Plan]  # budget, number of which widths are multiples -> plan


@dataclass(frozen=True)
class Check:
    """One split and what was measured of it."""

    left: float  # budget of the split, seconds per batch
    spent: float  # predicted seconds per batch
    aligned: int  # widths are multiples of this
    error: float  # of the plan, as the split counts it
    predicted: float  # speed-up by the table
    measured: Speedup
    again: Speedup | None = None  # with new turns, before the split was accepted: the first measurement chose it

    @property
    def latest(self) -> Speedup:
        return self.again or self.measured


@dataclass(frozen=True)
class SpeedChecks:
    """speed.json: the splits that were timed, in their order."""

    checks: tuple[Check, ...]


def times_for(settings: Settings, graph: ChannelGraph, folder: RunFolder, shared: SharedNetwork) -> LatencyTable | None:
    """The latency table of a run: from its folder, from a file, or measured here by the first process.

    None if the run needs none. An interrupted run reads the table that it began with, so that it makes the same plan.
    """
    if not settings.needs_times:
        return None

    def find() -> LatencyTable:
        path = folder.path / TABLE if folder.has(TABLE) else shared.find(TABLE) or settings.latency_table
        if path is not None:
            return open_table(path, graph)
        return latency_table(graph, settings.engine or default_engine(), settings.batch, settings.threads)

    return from_first(find)


def is_checked(context: RunContext) -> bool:
    """Whether the speed can be measured here: the times of the layers are of this kind of machine."""
    table = context.budget.table
    if table is None:
        return False
    how = table.measured_with
    return machine_of(device_of(context.original)) == (how.machine, how.instructions)


def measured_speedup(context: RunContext, small: nn.Module) -> Speedup:
    """The speed-up of a pruned network in the run's engine, in turns with the original; the first process measures."""
    table = context.budget.table
    assert table is not None
    how = table.measured_with

    def measure() -> Speedup:
        original = context.shared.prepared(how.engine, how.batch, how.threads)
        with ready_to_time([context.original], how.threads):
            before, after = latency(
                {"before": original, "after": small},
                context.graph.example,
                engine=how.engine,
                batch_sizes=(how.batch,),
                rounds=int(min(MOST_TURNS, max(FEWEST_TURNS, SECONDS / (2 * table.whole)))),
                threads=how.threads,
                cpu_time=processor_time(device_of(small), how.threads),
            )
        return speedup(before.seconds, after.seconds)

    return from_first(measure)


def plan_in_time(
    context: RunContext, place: str, label: str, inputs: SplitInputs, split: Callable[[SplitInputs], Plan]
) -> tuple[Plan, Check | None]:
    """The plan of a split, timed; the split is repeated with another budget if the network is too slow or too fast.

    Layers of aligned widths stay in the layout of fast kernels, which times of single layers do not show. So aligned
    widths are tried as well.
    Of the plans that are as fast as asked, the one of the smallest error is the winner. The best of several noisy
    measurements is partly luck, so the winner is measured again; if it is too slow, the next plan or a tighter budget
    follows. If no plan is fast enough, the fastest by the lower end of its interval is taken. What was measured is in
    the folder (`place`), so that a run that continues makes the same plan.

    Returns:
        The plan, and what was measured of it; None if it was not timed.
    """
    step, name = inputs.settings.round_to or 1, f"{place}/{SPEED}"

    def decide(budget: Budget, aligned: int) -> Plan:
        return split(replace(inputs, budget=budget, settings=replace(inputs.settings, round_to=aligned)))

    plan = split(inputs)
    if not is_checked(context) or not context.budget.met(inputs.cost(plan.keep)):  # earlier rounds go a part of the way
        return plan, None
    known = known_checks(context.folder, place)
    tried: list[tuple[Check, Plan]] = []

    def time_now(plan: Plan) -> Speedup:
        return measured_speedup(context, prune(inputs.graph, plan, check=False))

    def write() -> None:
        context.folder.write(name, SpeedChecks(tuple(each for each, _ in tried)))

    def measure(plan: Plan, left: float, aligned: int) -> Check:
        context.say(f"{label}: speed", len(tried), None)
        if len(tried) < len(known):
            check = known[len(tried)]
        else:
            spent = inputs.cost(plan.keep)
            error, predicted = error_of(plan.keep, inputs.scores), context.budget.whole / spent
            check = Check(left, spent, aligned, error, predicted, time_now(plan))
        tried.append((check, plan))
        write()
        return check

    asked = context.settings.speedup or 1.0
    aligned = math.lcm(step, ALIGNED)
    if aligned != step:
        _search(inputs.budget, aligned, TRIES // 2, decide, measure, asked)
    _search(inputs.budget, step, TRIES - len(tried), decide, measure, asked)
    for tighter in range(MOST_TIGHTER + 1):
        while (winner := _winner([check for check, _ in tried], asked)) is not None:
            check, plan = tried[winner]
            if check.again is None:
                check = replace(check, again=time_now(plan))
                tried[winner] = check, plan
                write()
            if check.latest.ratio >= asked:
                return plan, check
        refuted = [check for check, _ in tried if check.again is not None]
        if not refuted or tighter == MOST_TIGHTER:
            break
        last = refuted[-1]
        for shrink in range(1, MOST_SPLITS):  # small steps of the budget may lead to the same plan
            left = last.spent * min(1.0, last.latest.ratio / asked) * MARGIN**shrink
            try:
                plan = decide(replace(inputs.budget, left=left), last.aligned)
            except DecideError:  # out of reach
                break
            if all(plan.keep != other.keep for _, other in tried):
                measure(plan, left, last.aligned)
                break
    check, plan = max(tried, key=lambda pair: pair[0].latest.low)
    # Not a warning: streams treated in the other way may be fast enough. A goal that is not reached is in the result.
    logger.info("%s: no split is %.2fx as fast; the fastest is %.2fx", label, asked, check.latest.ratio)
    return plan, check


def _winner(checks: list[Check], asked: float) -> int | None:
    """The place of the split to accept or to measure again; None if all are too slow.

    One that is fast enough by the lower end of its interval and has the smallest error; or else the one with the
    highest lower end. A second measurement refutes the first one.
    """
    able = [n for n, check in enumerate(checks) if min(check.measured.ratio, check.latest.ratio) >= asked]
    sure = [n for n in able if checks[n].latest.low >= asked]
    if sure:
        return min(sure, key=lambda n: checks[n].error)
    return max(able, key=lambda n: checks[n].latest.low, default=None)


def known_checks(folder: RunFolder, place: str) -> tuple[Check, ...]:
    """The plans that have been timed so far, by the folder of a round or of one of its trials."""
    name = f"{place}/{SPEED}"
    return folder.record(name, SpeedChecks).checks if folder.has(name) else ()


def _search(
    budget: Budget, aligned: int, tries: int, decide: Decide, measure: Callable[[Plan, float, int], Check], asked: float
) -> None:
    """Measure plans of some widths until one is as fast as asked and hardly faster, or no better budget is known.

    A budget that leads to a plan that is known already says where not to look: the next one is halfway between the
    budgets that are too small and too large.
    """
    checks: list[tuple[Check, Plan]] = []
    fast, slow = 0.0, math.inf  # the largest budget that is fast enough, the smallest that is not
    for _ in range(MOST_SPLITS):
        try:
            plan = decide(budget, aligned)
        except DecideError:  # out of reach
            return
        left = budget.left or 0.0
        known = next((check for check, one in checks if one.keep == plan.keep), None)
        check = known or measure(plan, left, aligned)
        if known is None:
            checks.append((check, plan))
        enough = check.measured.ratio >= asked
        fast, slow = (max(fast, left), slow) if enough else (fast, min(slow, left))
        if (enough and check.measured.ratio <= CLOSE * asked) or len(checks) == tries:
            return
        if known is not None and not 0 < fast < slow < math.inf:
            return
        left = _next_left([check for check, _ in checks], asked) if known is None else (fast + slow) / 2
        budget = replace(budget, left=left)


def _next_left(checks: list[Check], asked: float) -> float:
    """The budget that would have given the speed-up if measured time were linear in predicted time, through the
    original network and the last one; between the budgets that are known to be too small and too large."""
    fast = [check.spent for check in checks if check.measured.ratio >= asked]
    slow = [check.spent for check in checks if check.measured.ratio < asked]
    last = checks[-1]
    whole, saved = last.spent * last.predicted, 1 - 1 / max(last.measured.ratio, LEAST_GAIN)
    left = max(0.5 * last.spent, whole - (whole - last.spent) * (1 - 1 / asked) / saved) * MARGIN
    if fast and slow and not max(fast) < left < min(slow):
        return (max(fast) + min(slow)) / 2
    return left
