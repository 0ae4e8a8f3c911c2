"""The main job: rounds of scoring, splitting, pruning, repair and retraining until the goal is met."""

from __future__ import annotations

import copy
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from prunus.decide.candidates import check_patterns
from prunus.decide.ranked_plan import check_reach
from prunus.decide.sensitivity import NothingToLoseError
from prunus.errors import DataError, DecideError
from prunus.graph.channel_graph import trace
from prunus.graph.plan import Plan
from prunus.graph.traced import check_network
from prunus.run.context import Reports, RunContext, RunData
from prunus.run.folder import ANSWERS, BASE, CONFIG, DATA, NETWORK, ROUND, SUMMARY, TABLE, RunFolder, reporting
from prunus.run.identity import (
    classes_of,
    describe,
    first_image,
    network_answers,
    pixels,
    refuse_other_data,
    refuse_other_network,
)
from prunus.run.report_files import network_shape
from prunus.run.round import Outcome, run_round
from prunus.run.settings import Settings, check_settings, fill_defaults, recovery
from prunus.run.speed_check import times_for, with_table_settings
from prunus.run.summary import SUMMARY_FORMAT, headline, summarise
from prunus.tasks import task_of
from prunus.tasks.evaluate import Evaluation, too_good
from prunus.train.checkpoint import digest
from prunus.train.trackers import Log, tracking
from prunus.util.batches import Batches, check_batches, device_of
from prunus.util.options import replaced
from prunus.util.processes import all_or_none, check_precision, processes, rank_and_world
from prunus.util.progress import PhaseProgress
from prunus.util.state import generators_kept
from prunus.util.text import short_table

# What a run sends to a tracker: epochs, rounds, plans and the result.


@contextmanager
def tracked(settings: Settings, folder: RunFolder, kept: bool) -> Iterator[Log]:
    """The run's tracker; the first of several processes has one. kept: whether the folder outlives the run."""
    name = settings.tracker if folder.writes else None
    with tracking(name, folder.path if kept else None, settings.to_dict()) as log:
        yield log


def track_base(context: RunContext, before: Evaluation) -> None:
    """The original network."""
    figures = {f"round/holdout {context.quality.name}": before.quality, "round/macs": context.graph.macs}
    context.track({**figures, "round/params": context.graph.params}, 0)


def track_round(context: RunContext, outcome: Outcome, plan: Plan) -> None:
    """A round and the plan that leads from the original network to its end: the channels that each unit keeps."""
    name = context.quality.name
    context.track(
        {
            f"round/holdout {name}": outcome.after.quality,
            f"round/holdout {name} as cut": None if outcome.cut is None else outcome.cut.quality,
            f"round/holdout {name} before retraining": outcome.pruned.quality,
            "round/macs": outcome.macs,
            "round/params": outcome.params,
            "round/macs removed": 1 - outcome.macs / context.graph.macs,
            "round/channels removed": sum(outcome.chosen.values()),
            "round/seconds": sum(outcome.seconds.values()),
            **{f"plan/{unit}": len(kept) for unit, kept in plan.keep.items()},
        },
        outcome.number,
    )


def track_result(context: RunContext, summary: Mapping[str, Any]) -> None:
    """The end: test quality and speed-up."""
    figures: dict[str, float | None] = {}
    for side in ("before", "after"):
        test = summary[side]["test"]
        figures[f"result/test {context.quality.name} {side}"] = None if test is None else test["top1"]
    for size, found in (summary.get("speedup") or {}).items():
        figures[f"result/speedup batch {size}"] = found["ratio"]
    context.track(figures, len(summary["rounds"]))


logger = logging.getLogger(__name__)

MOST_ROUNDS = 100
CHANCE = 1.5  # accuracy below this many times that of guessing: the network has nothing to lose


@dataclass(frozen=True, repr=False)
class Compressed:
    """The smaller network, the plan that leads to it from the original, and the run in numbers."""

    model: nn.Module
    plan: Plan
    rounds: tuple[Outcome, ...]
    summary: dict[str, Any]
    folder: Path | None

    def __repr__(self) -> str:
        """A short table: quality and cost before and after."""
        title = f"Compressed {type(self.model).__name__} in {len(self.rounds)} round(s)"
        return short_table(title, ("", "before", "after", ""), headline(self.summary))


def compress(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    *,
    test: Batches | None = None,
    score_on: Batches | None = None,
    example: Any = None,
    settings: Settings | None = None,
    folder: str | Path | RunFolder | None = None,
    progress: PhaseProgress | bool | None = None,
    **changes: Any,
) -> Compressed:
    """Prune a trained network until the goal is met; `model` itself is not changed.

        result = prunus.compress(model, train, holdout, target=0.5)
        result.model, result.summary["after"]["holdout"]

    task (in settings): what the network is for, as a name or a `Task`; classification by default (docs/tasks.md).
    train: batches of (images, labels) to retrain on. score_on: batches to score on (the same by default).
    holdout: labelled images that all decisions read. test: read once, at the end, for the report only.
    example: an input of the network (a tensor, a tuple or a dict); the first training image by default.
    settings, changes: the goal and everything else, as a `Settings` or as its fields by name: target=, speedup=,
        engine=, batch=, threads=, macs=, params=, max_drop=, ratio=, task=, metric=, split=, alpha=, k=, rounds=,
        repair=, epochs=, fit=, evaluate=, ...
        By default the repair is "solve", and the network is retrained only if epochs= or another setting of the
        retraining is given. After this repair the split is "least_error" with the metric "rebuilt".
    folder: the run's folder. Called again with the same arguments, an interrupted run continues and ends as an
        uninterrupted one would have. Without it, a temporary folder is used.
    progress: False shows nothing; your own function is called with phase, steps done, steps in all and a note. By
        default a run of more than two seconds shows a bar, and off a terminal a line every half minute.
    """
    chosen: Settings = replaced(settings or Settings(), changes, DecideError)
    check_settings(chosen)
    check_network(model)
    for name, loader in {"train": train, "holdout": holdout, "score_on": score_on, "test": test}.items():
        if loader is not None or name in ("train", "holdout"):
            check_batches(loader, name)
    data = RunData(train, score_on if score_on is not None else train, holdout, test)
    with (
        _run_folder(folder) as place,
        generators_kept(),
        reporting(progress, place) as report,
        tracked(chosen, place, kept=folder is not None) as track,
    ):
        result = _run(model, example, chosen, place, data, Reports(report, track))
    return result if folder is not None else replace(result, folder=None)


@contextmanager
def _run_folder(folder: str | Path | RunFolder | None) -> Iterator[RunFolder]:
    """The run's folder, or a temporary one, the same for all processes."""
    writes = rank_and_world()[0] == 0  # joins the processes
    if folder is not None:
        place = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        yield place.for_writer(writes)
        return
    with tempfile.TemporaryDirectory() as spare:
        path = [spare]
        if processes() > 1:
            dist.broadcast_object_list(path)
        yield RunFolder(path[0], writes=writes)
        if processes() > 1:
            dist.barrier()  # others may still read it


def _run(
    model: nn.Module,
    example: Any,
    settings: Settings,
    folder: RunFolder,
    data: RunData,
    reports: Reports,
) -> Compressed:
    started = time.perf_counter()
    original = copy.deepcopy(model)
    example = example if example is not None else first_image(data.train, device_of(model), task_of(settings.task))
    graph = trace(original, example, settings.streams)
    check_patterns(graph, settings.exclude, settings.only)
    begun = folder.read(CONFIG).get("settings") if folder.has(CONFIG) else None
    settings = recovery(settings, begun if isinstance(begun, dict) else None)
    if settings.retrains or settings.last_epochs:
        check_precision(settings.mixed_precision, torch.accelerator.current_accelerator() or torch.device("cpu"))
    table = times_for(settings, graph, folder)
    settings = with_table_settings(settings, table)
    settings = fill_defaults(settings, graph, pixels(example), table)
    context = RunContext(folder, original, graph, settings.budget(graph, table), settings, data, reports, table)
    check_reach(graph, context.budget, settings)
    _start(context)
    before = _base(context)
    check_base(before, classes_of(original, example) if context.measures_accuracy else None)
    track_base(context, before)
    rounds, current, plan = _rounds(context, before)
    if rounds and not _allowed(rounds[-1], before, context):
        rounds, current, plan = _step_back(context, rounds)
    summary = _summary(context, plan, current, before, rounds)
    summary["seconds"]["this_call"] = round(time.perf_counter() - started, 2)
    return Compressed(current, plan, tuple(rounds), summary, folder.path)


def _start(context: RunContext) -> None:
    """Begin the run in its folder, or continue it if network, weights, settings and data are the same."""
    folder, data = context.folder, context.data
    images = describe(data) if folder.writes else {}
    answers = network_answers(context.original, context.graph.example) if folder.writes else None
    network = {"fingerprint": context.graph.fingerprint, "weights": digest(context.original), ANSWERS: answers}
    folder.start({"settings": context.settings.to_dict(), **network, DATA: images})

    def compare() -> None:
        refuse_other_network(folder, answers)
        refuse_other_data(folder, images, data)

    all_or_none(lambda: compare() if folder.writes else None)
    if context.table is not None and not folder.has(TABLE):
        folder.write_text(TABLE, context.table.to_json())


def _rounds(context: RunContext, before: Evaluation) -> tuple[list[Outcome], nn.Module, Plan]:
    """Continue after the finished rounds until the goal is met, too much is lost or nothing can be removed."""
    rounds, current, plan = _resume(context)
    while not _finished(context, rounds, plan, before) and len(rounds) < MOST_ROUNDS:
        try:
            outcome, current, plan = run_round(
                context, len(rounds) + 1, current, plan, rounds[-1].after if rounds else before
            )
        except NothingToLoseError:
            if context.budget.left is not None or not rounds:
                raise
            logger.info("every unit is at its floor: the run ends with round %d", len(rounds))
            break
        rounds.append(outcome)
        track_round(context, outcome, plan)
    return rounds, current, plan


def _base(context: RunContext) -> Evaluation:
    """The original network's held-out quality."""
    if context.folder.has(BASE):
        return context.folder.parse(BASE, lambda words: Evaluation(**words["holdout"]))
    context.say("evaluate", 0, 1)
    found = context.evaluate(context.original, context.data.holdout)
    context.say("evaluate", 1, 1)
    about = {"quality": vars(context.quality), "macs": context.graph.macs}
    context.folder.write(NETWORK, network_shape(context.graph))
    context.folder.write(BASE, {"holdout": vars(found), **about})
    return found


def check_base(before: Evaluation, classes: int | None) -> None:
    """Warn if held-out accuracy cannot tell good decisions from bad ones. classes: None for any other quality."""
    if before.num_images == 0:
        raise DataError("the held-out set has no labelled images, and decisions need some")
    if classes is None:
        return
    if words := too_good(before):
        logger.warning("%s", words)
    if before.quality * classes < CHANCE:
        logger.warning(
            "the network scores %.1f%% on the held-out images, about what guessing among %d classes gives: check the "
            "weights, the labels and the normalisation of the images before pruning it",
            100 * before.quality,
            classes,
        )


def _resume(context: RunContext) -> tuple[list[Outcome], nn.Module, Plan]:
    folder = context.folder
    done = folder.finished_rounds()
    rounds = [folder.parse(f"{folder.round(n).name}/{ROUND}", Outcome.from_dict) for n in range(1, done + 1)]
    return rounds, *_left_by(context, done)


def _left_by(context: RunContext, number: int) -> tuple[nn.Module, Plan]:
    """The network and plan after a round; for 0, those before the first round."""
    if number:
        return context.folder.load_model(context.original, number)
    return context.original, Plan.of(context.graph, {})


def _finished(context: RunContext, rounds: list[Outcome], plan: Plan, before: Evaluation) -> bool:
    if not rounds:
        return False
    if context.settings.ratio is not None or rounds[-1].last or not _allowed(rounds[-1], before, context):
        return True
    return context.met(plan, len(rounds))


def _allowed(outcome: Outcome, before: Evaluation, context: RunContext) -> bool:
    most = context.settings.max_drop
    return most is None or context.quality.factor * (before.quality - outcome.after.quality) <= most + 1e-7


def _step_back(context: RunContext, rounds: list[Outcome]) -> tuple[list[Outcome], nn.Module, Plan]:
    """The last round lost more than max_drop: the round before is the result."""
    kept = rounds[:-1]
    logger.info("round %d loses more than max_drop; the result is that of round %d", len(rounds), len(kept))
    return kept, *_left_by(context, len(kept))


def _summary(
    context: RunContext, plan: Plan, current: nn.Module, before: Evaluation, rounds: list[Outcome]
) -> dict[str, Any]:
    """The result in numbers. It is written last: a folder with a summary holds a finished run."""
    folder = context.folder
    if not folder.has(SUMMARY) or not folder.has_model():
        folder.save_model(current, plan)
    else:
        all_or_none(lambda: folder.check_result(context.original) if folder.writes else None)
    if folder.has(SUMMARY):
        return folder.parse(SUMMARY, _checked_summary)
    summary = summarise(context, plan, current, before, rounds)
    folder.write(SUMMARY, summary)
    track_result(context, summary)
    return summary


def _checked_summary(words: dict[str, Any]) -> dict[str, Any]:
    if words.get("format") != SUMMARY_FORMAT:
        raise ValueError(f'"format" is {words.get("format")!r}, not {SUMMARY_FORMAT!r}; it has been replaced')
    return {**words, "seconds": {**words["seconds"]}}
