"""One round: score, sensitivity, decide, prune, repair, retrain. What a step finds is in the folder before the next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.measuring.accuracy import Accuracy
from secateur.repairing.unit_repair import UnitRepair
from secateur.running.folder import ROUND
from secateur.running.pictures import keep_pictures
from secateur.running.round_plan import choose
from secateur.running.round_repair import repaired, unit_repair
from secateur.running.run_context import Clock, Job
from secateur.scoring.metrics import METRICS
from secateur.scoring.score import score
from secateur.scoring.scores import Scores, load_scores, save_scores
from secateur.training.fit import fit
from secateur.training.history import Epoch, from_dict
from secateur.training.presets import preset_of


@dataclass(frozen=True)
class Outcome:
    """What a round did. Accuracies are held-out ones."""

    number: int
    macs: int
    params: int
    before: Accuracy  # as the round found the network
    pruned: Accuracy  # cut (and repaired), not retrained
    after: Accuracy  # retrained
    chosen: dict[str, int]  # unit -> channels lost in this round
    seconds: dict[str, float]  # phase -> seconds
    last: bool = False  # nothing more can be removed
    retraining: tuple[Epoch, ...] = ()  # epoch by epoch; empty where a user's own function retrains

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, words: dict[str, Any]) -> Outcome:
        """Read back what `to_dict` gave."""
        accuracies = {name: Accuracy(**words[name]) for name in ("before", "pruned", "after")}
        epochs = tuple(from_dict(epoch) for epoch in words.get("retraining", ()))
        return cls(**{**words, **accuracies, "retraining": epochs})


def run_round(
    job: Job, number: int, current: nn.Module, so_far: Plan, before: Accuracy
) -> tuple[Outcome, nn.Module, Plan]:
    """One round from the network `current`, which `so_far` leads to; everything that is in the folder is not redone."""
    run, tools, clock = job.run, job.tools, Clock()
    graph = trace(current, job.graph.example, job.settings.streams)
    units = functools.cache(lambda: unit_repair(job, graph))  # made where it is asked for, and once
    scores = clock("score", lambda: _score(job, number, graph, units))
    plan = choose(job, number, graph, scores, clock, units)
    keep_pictures(job, number, graph, scores, plan)
    chosen = {name: count for name, count in plan.removed().items() if count}
    if job.settings.repair == "none":
        pruned = clock("prune", lambda: prune(graph, plan))
    else:
        pruned = clock("repair", lambda: repaired(job, graph, plan, so_far))
    cut = tools.evaluate(pruned, tools.holdout)
    composed = so_far.then(plan)
    epochs = _epochs(job, composed, not chosen)
    trained, history = clock("retrain", lambda: _retrain(job, number, pruned, epochs))
    if history:  # epochs from before a kill count too
        clock.seconds["retrain"] = max(clock.seconds["retrain"], round(sum(epoch.seconds for epoch in history), 3))
    run.save_model(trained, composed, number)
    # Read back, so that a resumed run and an unbroken one go on from the very same bits.
    untouched = trained is pruned
    trained, composed = run.load_model(job.original, number)
    after = cut if untouched else tools.evaluate(trained, tools.holdout)
    cost = job.graph.cost(composed)
    outcome = Outcome(number, cost.macs, cost.params, before, cut, after, chosen, clock.seconds, not chosen, history)
    run.write(f"{run.round(number).name}/{ROUND}", outcome.to_dict())
    run.wait_for_writer()
    run.forget(run.round(number) / "checkpoint")
    return outcome, trained, composed


def _score(job: Job, number: int, graph: ChannelGraph, units: Callable[[], UnitRepair]) -> Scores:
    folder, settings = job.run.round(number), job.settings
    if (folder / "scores.json").exists():
        return next(iter(load_scores(folder).values()))
    metric = job.tools.metric if job.tools.metric is not None else settings.metric
    if isinstance(metric, str) and METRICS.find(metric).needs == "reader_inputs":
        found = score(graph, units(), metric, **settings.metric_options)
    else:
        found = _by_statistics(job, number, graph, metric)
    if job.run.writes:
        save_scores({found.metric: found}, folder)
    return found


def _by_statistics(job: Job, number: int, graph: ChannelGraph, metric: Any) -> Scores:
    settings = job.settings
    with generators_kept(settings.seed + number):  # a loader that shuffles by them comes in the same order again
        found: Scores = score(
            graph,
            job.tools.score_on,
            metric=metric,
            num_images=settings.images,
            seed=settings.seed + number,
            progress=lambda done, total: job.tools.say(f"round {number}: score", done, total or done),
            **settings.metric_options,
        )
    return found


def _epochs(job: Job, composed: Plan, last: bool) -> int | None:
    """How long this round retrains."""
    settings, cost = job.settings, job.graph.cost(composed)
    last = last or settings.ratio is not None or job.goal.met(job.graph, cost.macs, cost.params)
    return settings.last_epochs if last and settings.last_epochs is not None else settings.epochs


def _retrain(job: Job, number: int, pruned: nn.Module, epochs: int | None) -> tuple[nn.Module, tuple[Epoch, ...]]:
    settings, tools = job.settings, job.tools
    if tools.fit is not None:
        with generators_kept(settings.seed + number):
            return tools.fit(pruned, tools.train, tools.holdout), ()
    if epochs == 0:
        return pruned, ()
    phase = f"round {number}: retrain"
    fitted = fit(
        pruned,
        tools.train,
        tools.holdout,
        preset=preset_of(settings.preset, epochs=epochs, lr=settings.lr),
        teacher=job.original if settings.distill else None,
        seed=settings.seed + number,
        checkpoint_dir=job.run.round(number) / "checkpoint",
        evaluate=tools.evaluate,
        progress=lambda news: tools.say(
            phase,
            (news.epoch - 1) * news.steps + news.step,
            news.epochs * news.steps,
            f"loss {news.loss:.3f}, accuracy {100 * news.accuracy:.1f}%, {news.images_per_second:.0f} images/s",
        ),
    )
    return fitted.model, fitted.history
