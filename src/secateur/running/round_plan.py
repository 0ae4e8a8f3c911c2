"""The plan of a round: the split decides, and what held-out images say is kept in the folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from secateur.base.batches import Batches
from secateur.channels.files import PLAN_FILE
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.deciding.candidates import candidates, scored
from secateur.deciding.costs import CostOf
from secateur.deciding.costs.latency import table_cost
from secateur.deciding.goal import Budget
from secateur.deciding.sensitivity import Sensitivity, sensitivity
from secateur.deciding.settings import SplitSettings
from secateur.deciding.splits import SPLITS, SplitTask
from secateur.deciding.splits.uniform import uniform
from secateur.measuring.partial_forward import Cut
from secateur.running.folder import SENSITIVITY
from secateur.running.run_context import RunContext, Stopwatch
from secateur.running.speed_check import plan_in_time
from secateur.scoring.scores import Scores


def plan_round(
    context: RunContext,
    number: int,
    graph: ChannelGraph,
    scores: Scores,
    watch: Stopwatch,
    unit_repair: Callable[[], Cut],
) -> Plan:
    """The round's plan, in the numbering of the network that the round starts from.

    unit_repair: repairs each unit of that network separately; called only if units are ranked after their repair.
    """
    settings = context.settings
    if settings.ratio is not None:
        names = scored(graph, scores, candidates(graph, settings.exclude, settings.only))
        plan = uniform(graph, scores, settings.ratio, units=names)
    else:
        assert settings.split is not None  # filled in when the run starts
        budget = context.budget.aim(context.budget.of(graph)({}), (settings.rounds or 1) - number + 1)
        rank = _rank(context, number, graph, scores, unit_repair)
        task = SplitTask(
            graph, scores, budget, settings, lambda s: watch("sensitivity", lambda: rank(s)), context.widths
        )
        split = SPLITS.find(settings.split)

        def decide(budget: Budget, aligned: int) -> Plan:
            return split.plan(replace(task, budget=budget, settings=replace(settings, round_to=aligned)))

        plan = watch("decide", lambda: plan_in_time(context, number, graph, scores, budget, decide))
    folder = context.folder
    folder.write_text(f"{folder.round(number).name}/step-{PLAN_FILE}", plan.to_json())
    return plan


def _rank(
    context: RunContext, number: int, graph: ChannelGraph, scores: Scores, unit_repair: Callable[[], Cut]
) -> Callable[[SplitSettings], Sensitivity]:
    """Ranks units on held-out images, or reads what an interrupted run has found."""
    folder, name = context.folder, f"{context.folder.round(number).name}/{SENSITIVITY}"

    def rank(settings: SplitSettings) -> Sensitivity:
        if folder.has(name):
            return folder.parse(name, Sensitivity.from_dict)
        found = sensitivity(
            graph,
            scores,
            context.data.holdout,
            replace(settings, measure=_measure(context, settings), cost=_cost(context, graph, settings)),
            ratios=(settings.trial_ratio,),  # the other points of Li et al.'s curves decide nothing
            repair=unit_repair() if settings.trials == "repaired" else None,
            widths=context.widths,
            progress=lambda done, total: context.say(f"round {number}: sensitivity", done, total),
        )
        folder.write(name, found.to_dict())
        return found

    return rank


def _cost(context: RunContext, graph: ChannelGraph, settings: SplitSettings) -> str | CostOf:
    """What units are compared at: time is that of the run's own table."""
    if settings.cost != "latency" or context.table is None:
        return settings.cost
    return table_cost(graph, context.table)


def _measure(context: RunContext, settings: SplitSettings) -> Any:
    """What units are ranked by: the user's own evaluation, if there is one, measures accuracy and loss here too."""
    own, measure = context.settings.evaluate, settings.measure
    if own is None or callable(measure):
        return measure

    def by_own_evaluation(model: nn.Module, holdout: Batches) -> float:
        found = context.evaluate(model, holdout)
        return found.top1 if measure == "accuracy" else -found.loss

    by_own_evaluation.__name__ = str(getattr(own, "__name__", "own"))
    return by_own_evaluation
