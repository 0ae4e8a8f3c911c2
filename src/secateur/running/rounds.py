"""One round: score, split, prune, repair, retrain. Each step writes its result to the folder before the next begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.measuring.accuracy import Accuracy
from secateur.repairing.unit_repair import UnitRepair
from secateur.running.folder import ROUND, SENSITIVITY
from secateur.running.pictures import keep_pictures
from secateur.running.round_plan import plan_round
from secateur.running.round_repair import cut_accuracy, repair_round, repair_units
from secateur.running.round_retrain import retrain
from secateur.running.run_context import RunContext, Stopwatch
from secateur.scoring.metrics import metric_of
from secateur.scoring.score import score
from secateur.scoring.scores import Scores, load_scores, save_scores
from secateur.training.history import Epoch, from_dict


@dataclass(frozen=True)
class Outcome:
    """The result of a round. Accuracies, or whatever quality the task has, are on the held-out images."""

    number: int
    macs: int
    params: int
    before: Accuracy  # at the start of the round
    pruned: Accuracy  # pruned (and repaired), not retrained
    after: Accuracy  # retrained
    chosen: dict[str, int]  # unit -> channels removed in this round
    seconds: dict[str, float]  # phase -> seconds
    last: bool = False  # nothing more can be removed
    retraining: tuple[Epoch, ...] = ()  # epoch by epoch; empty if a function of the user's own retrains
    cut: Accuracy | None = None  # pruned, not repaired; None without a repair
    layer_errors: dict[str, list[float]] = field(default_factory=dict)  # layer -> error before and after its repair
    kept_epoch: int | None = None  # the best epoch, whose weights the round ends with; 0: as pruned and repaired
    alpha: float | None = None  # of Eqn. 3, as given or solved for the number of rounds; None if no unit was ranked

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, words: dict[str, Any]) -> Outcome:
        """The inverse of `to_dict`."""
        known = [name for name in ("before", "cut", "pruned", "after") if words.get(name) is not None]
        accuracies = {name: Accuracy(**words[name]) for name in known}
        epochs = tuple(from_dict(epoch) for epoch in words.get("retraining", ()))
        return cls(**{**words, **accuracies, "retraining": epochs})


def run_round(
    context: RunContext, number: int, current: nn.Module, so_far: Plan, before: Accuracy
) -> tuple[Outcome, nn.Module, Plan]:
    """One round from the network `current`, which `so_far` leads to. What is in the folder already is not repeated."""
    folder, watch = context.folder, Stopwatch()
    graph = trace(current, context.graph.example, context.settings.streams)
    unit_repair = functools.cache(lambda: repair_units(context, graph))  # made only if needed, and once
    scores = watch("score", lambda: _score(context, number, graph, unit_repair))
    plan = plan_round(context, number, graph, scores, watch, unit_repair)
    keep_pictures(context, number, graph, scores, plan)
    chosen = {name: count for name, count in plan.removed().items() if count}
    phase = "prune" if context.settings.repair == "none" else "repair"
    errors: dict[str, list[float]] = {}
    pruned = watch(phase, lambda: repair_round(context, number, graph, plan, so_far, errors))
    as_cut = cut_accuracy(context, graph, plan)
    repaired = context.evaluate(pruned, context.data.holdout)
    composed = so_far.then(plan)
    epochs = _epochs(context, number, composed, last=not chosen)
    done = watch("retrain", lambda: retrain(context, number, pruned, epochs))
    trained, history = done.model, done.history
    if history:  # epochs from before an interruption count as well
        watch.seconds["retrain"] = max(watch.seconds["retrain"], round(sum(epoch.seconds for epoch in history), 3))
    folder.save_model(trained, composed, number)
    # Read it back, so that a resumed run and an unbroken one continue from the same bits.
    untouched = trained is pruned and context.settings.fit is None  # the user's own may train in place
    trained, composed = folder.load_model(context.original, number)
    after = repaired if untouched else context.evaluate(trained, context.data.holdout)
    cost = context.graph.cost(composed)
    outcome = Outcome(
        number=number,
        macs=cost.macs,
        params=cost.params,
        before=before,
        pruned=repaired,
        after=after,
        chosen=chosen,
        seconds=watch.seconds,
        last=not chosen,
        retraining=history,
        cut=as_cut,
        layer_errors=errors,
        kept_epoch=done.kept,
        alpha=_alpha(context, number),
    )
    folder.write(f"{folder.round(number).name}/{ROUND}", outcome.to_dict())
    folder.wait_for_writer()
    folder.forget(folder.round(number) / "checkpoint")
    return outcome, trained, composed


def _alpha(context: RunContext, number: int) -> float | None:
    """The alpha that units were ranked with in this round."""
    name = f"{context.folder.round(number).name}/{SENSITIVITY}"
    return context.folder.parse(name, lambda words: words["alpha"]) if context.folder.has(name) else None


def _score(context: RunContext, number: int, graph: ChannelGraph, unit_repair: Callable[[], UnitRepair]) -> Scores:
    folder, settings = context.folder.round(number), context.settings
    if (folder / "scores.json").exists():
        return next(iter(load_scores(folder).values()))
    metric = settings.metric
    assert metric is not None  # filled in when the run starts
    from_repair = isinstance(metric, str) and metric_of(metric).needs == "reader_inputs"
    with generators_kept(settings.seed + number):  # a loader that shuffles with them gives the same order again
        found: Scores = score(
            graph,
            unit_repair() if from_repair else context.data.score_on,
            metric=metric,
            num_images=None if from_repair else settings.num_images,
            seed=settings.seed + number,
            task=context.task,
            progress=lambda done, total: context.say(f"round {number}: score", done, total),
            **settings.metric_options,
        )
    if context.folder.writes:
        save_scores({found.metric: found}, folder)
    return found


def _epochs(context: RunContext, number: int, composed: Plan, *, last: bool) -> int | None:
    """The number of epochs that this round retrains; None: the preset's."""
    settings = context.settings
    last = last or settings.ratio is not None or context.met(composed, number)
    return settings.last_epochs if last and settings.last_epochs is not None else settings.epochs
