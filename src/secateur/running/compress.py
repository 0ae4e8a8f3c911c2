"""The main job: rounds of score, sensitivity, decide, prune and retrain until the goal is met."""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph, trace
from secateur.channels.plan import Plan
from secateur.errors import DataError, DecideError
from secateur.measuring.accuracy import Accuracy, evaluate, too_good
from secateur.measuring.batches import Batches, device_of, unpack
from secateur.measuring.processes import rank_and_world
from secateur.running.folder import BASE, SUMMARY, RunFolder
from secateur.running.rounds import Outcome, Phase, Tools, run_round
from secateur.running.settings import Goal, Settings, goal_of
from secateur.running.summary import summarise

logger = logging.getLogger(__name__)

Fit = Callable[[nn.Module, Batches, Batches], nn.Module]
Evaluate = Callable[[nn.Module, Batches], Accuracy]
Metric = str | Callable[..., Any]

MOST_ROUNDS = 100
CHANCE = 1.5  # a network within so much of guessing has nothing to lose


@dataclass(frozen=True)
class Compressed:
    """The smaller network, the plan that leads to it from the original, and what it took."""

    model: nn.Module
    plan: Plan
    rounds: tuple[Outcome, ...]
    summary: dict[str, Any]
    folder: Path | None


def compress(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    target: float | None = None,
    *,
    test: Batches | None = None,
    score_on: Batches | None = None,
    example: Any = None,
    settings: Settings | None = None,
    metric: Metric | None = None,
    fit: Fit | None = None,
    evaluate: Evaluate = evaluate,
    folder: str | Path | None = None,
    about: dict[str, Any] | None = None,
    progress: Phase | None = None,
    **changes: Any,
) -> Compressed:
    """Prune a trained network until the goal is met; `model` itself is not changed.

        result = secateur.compress(model, train, holdout, target=0.5)
        result.model, result.summary["after"]["holdout"]

    train: batches of (images, labels) to retrain on; `score_on` to score on (default: the same).
    holdout: labelled images that all decisions read. test: read once, at the end, for the report only.
    target: the fraction of MACs to remove; other goals and everything else by name as in `Settings` (macs=, params=,
        max_drop=, ratio=, metric=, alpha=, k=, rounds=, epochs=, ...), or a `Settings`.
    metric, fit, evaluate: your own functions instead of secateur's; fit(model, train, holdout) returns a new model.
    folder: the run's folder. Called again with the same arguments, a killed run goes on and ends where an unbroken one
        would have ended. Without it, a temporary one is used.
    """
    chosen = _settings(settings, target, metric, changes)
    with tempfile.TemporaryDirectory() as spare:
        run = RunFolder(folder or spare, writes=rank_and_world()[0] == 0)
        tools = Tools(train, score_on if score_on is not None else train, holdout, metric, fit, evaluate, progress)
        result = _run(model, example, chosen, run, tools, test, about or {})
    return result if folder is not None else Compressed(result.model, result.plan, result.rounds, result.summary, None)


def _settings(settings: Settings | None, target: float | None, metric: Any, changes: dict[str, Any]) -> Settings:
    base = settings or Settings()
    if target is not None:
        changes = {**changes, "target": target}
    if metric is not None:
        changes = {**changes, "metric": metric if isinstance(metric, str) else getattr(metric, "__name__", "own")}
    try:
        return replace(base, **changes)
    except TypeError as error:
        names = ", ".join(Settings.__dataclass_fields__)
        raise DecideError(f"{error}; the settings are {names}") from error


def _run(
    model: nn.Module,
    example: Any,
    settings: Settings,
    run: RunFolder,
    tools: Tools,
    test: Batches | None,
    about: dict[str, Any],
) -> Compressed:
    started = time.perf_counter()
    original = copy.deepcopy(model)
    example = example if example is not None else first_image(tools.train, device_of(model))
    graph = trace(original, example, settings.streams)
    goal = goal_of(settings, graph)
    run.start({"settings": settings.to_dict(), "fingerprint": graph.fingerprint, **about})
    before = _base(run, tools, original)
    check_base(before, _classes(original, example))
    rounds, current, plan = _resume(run, original, graph)
    while not _finished(goal, settings, graph, rounds) and len(rounds) < MOST_ROUNDS:
        found = rounds[-1].after if rounds else before
        outcome, current, plan = run_round(
            run, len(rounds) + 1, original, current, plan, graph, goal, found, settings, tools
        )
        rounds.append(outcome)
        if not _allowed(outcome, before, settings):
            rounds, current, plan = _step_back(run, original, graph, rounds)
            break
    summary = _summary(run, graph, plan, original, current, before, rounds, settings, tools, test, example)
    summary["seconds"]["this_call"] = round(time.perf_counter() - started, 2)
    return Compressed(current, plan, tuple(rounds), summary, run.path)


def _base(run: RunFolder, tools: Tools, model: nn.Module) -> Accuracy:
    if not run.has(BASE):
        tools.say("evaluate", 0, 1)
        found = tools.evaluate(model, tools.holdout)
        tools.say("evaluate", 1, 1)
        run.write(BASE, {"holdout": found.__dict__})
        return found
    return Accuracy(**run.read(BASE)["holdout"])


def check_base(before: Accuracy, classes: int) -> None:
    """Warn where held-out accuracy cannot tell good decisions from bad ones."""
    if before.images == 0:
        raise DataError("the held-out set has no labelled images, and decisions need some")
    words = too_good(before)
    if words:
        logger.warning("%s", words)
    if before.top1 * classes < CHANCE:
        logger.warning(
            "the network scores %.1f%% on the held-out images, about what guessing among %d classes gives: check the "
            "weights, the labels and the normalisation of the images before pruning it",
            100 * before.top1,
            classes,
        )


def _classes(model: nn.Module, example: Any) -> int:
    last = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return last[-1].out_features if last else 2


def first_image(loader: Batches, device: torch.device) -> Tensor:
    """The first image of a loader, as a batch of one."""
    for number, batch in enumerate(loader):
        images, _ = unpack(batch, number)
        if not isinstance(images, Tensor):
            raise DataError("pass example= : the batches hold more than one tensor of images")
        return images[:1].to(device)
    raise DataError("the loader gave no images")


def _resume(run: RunFolder, original: nn.Module, graph: ChannelGraph) -> tuple[list[Outcome], nn.Module, Plan]:
    done = run.finished_rounds()
    rounds = [Outcome.from_dict(run.read(f"round-{n:02d}/round.json")) for n in range(1, done + 1)]
    if done == 0:
        return [], original, Plan.of(graph, {})
    model, plan = run.load_model(original, done)
    return rounds, model, plan


def _finished(goal: Goal, settings: Settings, graph: ChannelGraph, rounds: list[Outcome]) -> bool:
    if settings.ratio is not None:
        return len(rounds) >= 1
    if rounds and rounds[-1].last:
        return True
    if goal.left is None or not rounds:
        return False
    whole = graph.macs if goal.cost == "macs" else graph.params
    left = rounds[-1].macs if goal.cost == "macs" else rounds[-1].params
    return left <= goal.left + 0.005 * whole


def _allowed(outcome: Outcome, before: Accuracy, settings: Settings) -> bool:
    return settings.max_drop is None or before.top1 - outcome.after.top1 <= settings.max_drop + 1e-9


def _step_back(
    run: RunFolder, original: nn.Module, graph: ChannelGraph, rounds: list[Outcome]
) -> tuple[list[Outcome], nn.Module, Plan]:
    """The last round lost more than max_drop: the round before is the result."""
    kept = rounds[:-1]
    logger.info("round %d loses more than max_drop; the result is that of round %d", len(rounds), len(kept))
    if not kept:
        return [], original, Plan.of(graph, {})
    model, plan = run.load_model(original, len(kept))
    return kept, model, plan


def _summary(
    run: RunFolder,
    graph: ChannelGraph,
    plan: Plan,
    original: nn.Module,
    current: nn.Module,
    before: Accuracy,
    rounds: list[Outcome],
    settings: Settings,
    tools: Tools,
    test: Batches | None,
    example: Any,
) -> dict[str, Any]:
    if run.has(SUMMARY):
        return run.read(SUMMARY)
    run.save_model(current, plan)
    summary = summarise(graph, plan, original, current, before, rounds, settings, tools, test, example)
    run.write(SUMMARY, summary)
    return summary
