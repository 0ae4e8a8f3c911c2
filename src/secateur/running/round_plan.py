"""What a round takes away: how far it is to go, the sensitivity of every unit, and the plan that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from secateur.channels.files import PLAN_FILE
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.amounts import Room, amounts, candidates, cost_by, floor_of, scored
from secateur.deciding.decide import alike, decide, out_of_reach
from secateur.deciding.least_error import least_error
from secateur.deciding.partial_forward import Cut
from secateur.deciding.sensitivity import DECIDING_RATIO, Sensitivity, check_k, sensitivity
from secateur.deciding.uniform import uniform
from secateur.errors import DecideError
from secateur.running.folder import SENSITIVITY
from secateur.running.run_context import Clock, Job
from secateur.running.settings import REBUILT, Goal, Settings, goal_of, only_solved
from secateur.scoring.scores import Scores

Units = Callable[[], Cut]  # repairs each unit of the round's network by itself


def choose(job: Job, number: int, graph: ChannelGraph, scores: Scores, clock: Clock, units: Units) -> Plan:
    """The round's plan, in the numbering of the network that it starts from."""
    settings = job.settings
    if settings.ratio is not None:
        names = scored(graph, scores, candidates(graph, settings.exclude, settings.only))
        plan = uniform(graph, scores, settings.ratio, units=names)
    elif not settings.ranks:
        plan = clock("decide", lambda: _unranked(job, graph, scores, float(_aim(job, number, graph) or 0)))
    else:
        aim = _aim(job, number, graph)
        found = clock("sensitivity", lambda: _sensitivity(job, number, graph, scores, aim, units))
        plan = clock("decide", lambda: _within(job, graph, scores, found, aim))
    job.run.write_text(f"{job.run.round(number).name}/step-{PLAN_FILE}", plan.to_json())
    return plan


def suited(settings: Settings, graph: ChannelGraph) -> Settings:
    """What was left open of the units, where a solve is all that gets the accuracy back (docs/repair.md).

    Channels inside blocks can be rebuilt from their neighbours, those that readers of a stream drop much less so: where
    the target can be met with private units only they lose channels, so that what cannot be rebuilt is least.
    """
    asked = settings.only or settings.rounds or settings.ratio or settings.method != "flops"
    if not only_solved(settings) or asked or settings.asked_of_ranks:
        return settings
    private = tuple(n for n in candidates(graph, settings.exclude) if graph.units[n].kind == "private")
    split: Literal["errors", "alike"] = "errors" if settings.metric in (None, REBUILT) else "alike"
    inside = replace(settings, only=private, method=split)
    try:
        check_reach(graph, goal_of(inside, graph), inside)
    except DecideError:  # no such units, too few, or no target: as usual
        return settings
    return inside if private else settings


def check_reach(graph: ChannelGraph, goal: Goal, settings: Settings) -> None:
    """DecideError where no plan can meet the goal: every unit at its floor, and all readers of a stream alike."""
    names = candidates(graph, settings.exclude, settings.only)
    check_k(settings.k, len(names))
    if goal.left is None:
        return
    keep = {}
    for name in names:
        unit = graph.units[name]
        each = floor_of(unit, settings.round_to) // unit.granule
        first = [np.flatnonzero(unit.blocks == block)[:each] for block in range(unit.granule)]
        keep[name] = np.concatenate(first).tolist()
    cost, whole = cost_by(graph, goal.cost), float(goal.whole(graph))
    least = cost(graph.balance(keep))
    if least > goal.left:
        raise DecideError(out_of_reach(f"removing {1 - goal.left / whole:.1%} of the {goal.cost}", 1 - least / whole))


def _aim(job: Job, number: int, graph: ChannelGraph) -> float | None:
    """Cost to be left after this round: with a number of rounds an even share of the way, else the goal itself."""
    if job.goal.left is None:
        return None
    now = float(job.goal.whole(graph))
    rounds_left = max(1, (job.settings.rounds or 1) - number + 1)
    return now - (now - job.goal.left) / rounds_left


def _unranked(job: Job, graph: ChannelGraph, scores: Scores, aim: float) -> Plan:
    settings = job.settings
    split = least_error if settings.method == "errors" else alike
    names = candidates(graph, settings.exclude, settings.only)
    options: dict[str, Any] = {"round_to": settings.round_to, "widths": job.widths}
    return split(graph, scores, names, aim, cost=job.goal.cost, **options)


def _sensitivity(
    job: Job, number: int, graph: ChannelGraph, scores: Scores, aim: float | None, units: Units
) -> Sensitivity:
    settings, name = job.settings, f"{job.run.round(number).name}/{SENSITIVITY}"
    if job.run.has(name):
        return job.run.parse(name, Sensitivity.from_dict)
    alpha = _alpha(job, graph, scores, aim)
    found = sensitivity(
        graph,
        scores,
        job.tools.holdout,
        "ratio" if settings.method == "ratio" else "flops",
        alpha=alpha,
        k=_k(job, graph, scores, alpha),
        measure=settings.measure,
        cost=settings.cost,
        repair=units() if settings.judge == "repaired" else None,
        exact=settings.exact,
        ratios=(DECIDING_RATIO,),  # the other points of Li et al.'s curves decide nothing
        exclude=settings.exclude,
        only=settings.only,
        round_to=settings.round_to,
        widths=job.widths,
        seed=settings.seed,
        progress=lambda done, total: job.tools.say(f"round {number}: sensitivity", done, total),
    )
    job.run.write(name, found.to_dict())
    return found


def _alpha(job: Job, graph: ChannelGraph, scores: Scores, aim: float | None) -> float:
    """alpha as asked; with a number of rounds, solved from k * alpha * FLOSS_max = cost to go in this round."""
    settings = job.settings
    if aim is None or settings.rounds is None:
        return settings.alpha
    names = candidates(graph, settings.exclude, settings.only)
    cost = cost_by(graph, job.goal.cost)
    found = amounts(graph, scores, names, alpha=1.0, cost=cost, room=Room(settings.round_to, job.widths))
    k = check_k(None if settings.k is None else min(settings.k, len(found)), len(found))
    return max(0.5, (cost({}) - aim) / (k * max(amount.floss for amount in found.values())))


def _k(job: Job, graph: ChannelGraph, scores: Scores, alpha: float) -> int | None:
    """k as asked; units that are at their floor by now cannot be among them."""
    settings = job.settings
    if settings.k is None or settings.method == "ratio":
        return settings.k
    names = scored(graph, scores, candidates(graph, settings.exclude, settings.only))
    room = Room(settings.round_to, job.widths)
    cost = "macs" if settings.cost == "latency" else settings.cost
    found = amounts(graph, scores, names, alpha=alpha, cost=cost_by(graph, cost), room=room)
    return min(settings.k, max(1, sum(amount.channels > 0 for amount in found.values())))


def _within(job: Job, graph: ChannelGraph, scores: Scores, found: Sensitivity, aim: float | None) -> Plan:
    """Algorithm 1's plan; trimmed where it would overshoot, and stretched to the aim where rounds are counted."""
    settings, goal = job.settings, job.goal
    k = None if settings.k is None else min(settings.k, len(found.tried))
    options: dict[str, Any] = {"round_to": settings.round_to, "widths": job.widths}
    if aim is None or (settings.rounds is None and found.method == "flops"):
        plan = decide(graph, scores, found, k, **options)
        if aim is None or cost_by(graph, goal.cost)(plan.keep) > aim:
            return plan
    whole = float(goal.whole(job.graph))
    return decide(graph, scores, found, k, 1 - aim / whole, cost=goal.cost, whole=whole, **options)
