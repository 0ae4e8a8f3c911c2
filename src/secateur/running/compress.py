"""The main job: rounds of score, sensitivity, decide, prune and retrain until the goal is met."""

from __future__ import annotations

import copy
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._pytree import tree_leaves

from secateur.base.batches import Batches, call, device_of, logits_of, unpack
from secateur.base.distributed import processes
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.processes import rank_and_world
from secateur.channels.graph import trace
from secateur.channels.plan import Plan
from secateur.deciding.sensitivity import NothingToLoseError
from secateur.errors import DataError, DecideError
from secateur.measuring.accuracy import Accuracy, evaluate, too_good
from secateur.running.folder import BASE, ROUND, SUMMARY, RunFolder
from secateur.running.round_plan import check_reach, suited
from secateur.running.rounds import Outcome, run_round
from secateur.running.run_context import Job, Phase, Tools
from secateur.running.settings import Settings, check_settings, filled, goal_of
from secateur.running.summary import summarise
from secateur.scoring.metrics import METRICS
from secateur.training.checkpoint import digest

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
    metric, fit, evaluate: your own functions instead of secateur's; fit(model, train, holdout) returns a new model,
        evaluate(model, loader) an Accuracy, whose top1 may be any figure of which more is better.
    folder: the run's folder. Called again with the same arguments, a killed run goes on and ends where an unbroken one
        would have ended. Without it, a temporary one is used.
    """
    chosen = _settings(settings, target, metric, changes)
    check_settings(chosen)
    if not callable(metric) and chosen.metric is not None:
        METRICS.check(chosen.metric)
    tools = Tools(train, score_on if score_on is not None else train, holdout, metric, fit, evaluate, progress)
    with _place(folder) as path, generators_kept():
        result = _run(
            model, example, chosen, RunFolder(path, writes=rank_and_world()[0] == 0), tools, test, about or {}
        )
    return result if folder is not None else replace(result, folder=None)


@contextmanager
def _place(folder: str | Path | None) -> Iterator[Path]:
    """The run's folder, or a temporary one, the same for all processes."""
    if folder is not None:
        yield Path(folder)
        return
    rank_and_world()  # joins the processes
    with tempfile.TemporaryDirectory() as spare:
        path = [spare]
        if processes() > 1:
            dist.broadcast_object_list(path)
        yield Path(path[0])
        if processes() > 1:
            dist.barrier()  # others may still read it


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
    settings = filled(suited(settings, graph), _pixels(example))
    job = Job(run, original, graph, goal_of(settings, graph), settings, tools)
    check_reach(graph, job.goal, settings)
    run.start({"settings": settings.to_dict(), "fingerprint": graph.fingerprint, "weights": digest(original), **about})
    before = _base(run, tools, original)
    check_base(before, _classes(original, example))
    rounds, current, plan = _rounds(job, before)
    if rounds and not _allowed(rounds[-1], before, settings):
        rounds, current, plan = _step_back(job, rounds)
    summary = _summary(job, plan, current, before, rounds, test, example)
    summary["seconds"]["this_call"] = round(time.perf_counter() - started, 2)
    return Compressed(current, plan, tuple(rounds), summary, run.path)


def _rounds(job: Job, before: Accuracy) -> tuple[list[Outcome], nn.Module, Plan]:
    """Go on from the rounds that are finished until the goal is met, too much is lost or nothing is left to take."""
    rounds, current, plan = _resume(job)
    while not _finished(job, rounds, before) and len(rounds) < MOST_ROUNDS:
        try:
            outcome, current, plan = run_round(
                job, len(rounds) + 1, current, plan, rounds[-1].after if rounds else before
            )
        except NothingToLoseError:
            if job.goal.left is not None or not rounds:
                raise
            logger.info("every unit is at its floor: the run ends with round %d", len(rounds))
            break
        rounds.append(outcome)
    return rounds, current, plan


def _base(run: RunFolder, tools: Tools, model: nn.Module) -> Accuracy:
    if not run.has(BASE):
        tools.say("evaluate", 0, 1)
        found = tools.evaluate(model, tools.holdout)
        tools.say("evaluate", 1, 1)
        run.write(BASE, {"holdout": found.__dict__})
        return found
    return run.parse(BASE, lambda words: Accuracy(**words["holdout"]))


def check_base(before: Accuracy, classes: int) -> None:
    """Warn where held-out accuracy cannot tell good decisions from bad ones."""
    if before.num_images == 0:
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


def _pixels(example: Any) -> int:
    """Of one image; of the largest of a network's inputs."""
    return max((math.prod(x.shape[2:]) for x in tree_leaves(example) if isinstance(x, Tensor)), default=0)


@torch.no_grad()
def _classes(model: nn.Module, example: Any) -> int:
    with evaluating(model):
        return int(logits_of(call(model, copy.deepcopy(example))).shape[-1])


def first_image(loader: Batches, device: torch.device) -> Tensor:
    """The first image of a loader, as a batch of one."""
    for number, batch in enumerate(loader):
        images, _ = unpack(batch, number)
        if not isinstance(images, Tensor):
            raise DataError("pass example= : the batches hold more than one tensor of images")
        return images[:1].to(device)
    raise DataError("the loader gave no images")


def _resume(job: Job) -> tuple[list[Outcome], nn.Module, Plan]:
    done = job.run.finished_rounds()
    rounds = [job.run.parse(f"{job.run.round(n).name}/{ROUND}", Outcome.from_dict) for n in range(1, done + 1)]
    return rounds, *_left_by(job, done)


def _left_by(job: Job, number: int) -> tuple[nn.Module, Plan]:
    """The network and plan that a round left; those before the first round for 0."""
    return job.run.load_model(job.original, number) if number else (job.original, Plan.of(job.graph, {}))


def _finished(job: Job, rounds: list[Outcome], before: Accuracy) -> bool:
    if not rounds:
        return False
    if job.settings.ratio is not None or rounds[-1].last or not _allowed(rounds[-1], before, job.settings):
        return True
    return job.goal.met(job.graph, rounds[-1].macs, rounds[-1].params)


def _allowed(outcome: Outcome, before: Accuracy, settings: Settings) -> bool:
    return settings.max_drop is None or before.top1 - outcome.after.top1 <= settings.max_drop + 1e-9


def _step_back(job: Job, rounds: list[Outcome]) -> tuple[list[Outcome], nn.Module, Plan]:
    """The last round lost more than max_drop: the round before is the result."""
    kept = rounds[:-1]
    logger.info("round %d loses more than max_drop; the result is that of round %d", len(rounds), len(kept))
    return kept, *_left_by(job, len(kept))


def _summary(
    job: Job,
    plan: Plan,
    current: nn.Module,
    before: Accuracy,
    rounds: list[Outcome],
    test: Batches | None,
    example: Any,
) -> dict[str, Any]:
    """The result in numbers. The summary is written last: where it is, the run is finished."""
    if not job.run.has(SUMMARY) or not job.run.has_model():
        job.run.save_model(current, plan)
    if job.run.has(SUMMARY):
        return job.run.read(SUMMARY)
    summary = summarise(job, plan, current, before, rounds, test, example)
    job.run.write(SUMMARY, summary)
    return summary
