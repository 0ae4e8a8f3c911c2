"""The main job: rounds of scoring, splitting, pruning, repair and retraining until the goal is met."""

from __future__ import annotations

import copy
import logging
import math
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils._pytree import tree_leaves

from prunus.deciding.sensitivity import NothingToLoseError
from prunus.deciding.splits import check_reach
from prunus.deciding.widths import check_patterns
from prunus.errors import DataError, DecideError, PlanError, RunError
from prunus.graph.files import MODEL_FILE, PLAN_FILE, example_of, save
from prunus.graph.plan import Plan, plans_of, same_origin
from prunus.graph.traced import check_network
from prunus.run.checkup import quality_doubts
from prunus.run.context import Baseline, RunContext, RunData, SharedNetwork, first_image, network_shape
from prunus.run.first_look import look_first
from prunus.run.folder import BASE, NETWORK, ROUND_FILE, SUMMARY, TABLE, RunFolder
from prunus.run.identity import network_digest
from prunus.run.paper import DIFFERENCES, differences
from prunus.run.round import Candidate, Outcome, run_round
from prunus.run.search import choose
from prunus.run.settings import Settings, check_settings, fill_defaults, with_goal, within
from prunus.run.speed_check import times_for
from prunus.run.summary import FORMAT, VERSION, Summary, first_line, headline, read_summary, summarise
from prunus.tasks import task_of
from prunus.tasks.evaluate import Evaluation
from prunus.train.checkpoint import digest
from prunus.train.trackers import tracking
from prunus.util.batches import Batches, check_batches, device_of
from prunus.util.options import replaced
from prunus.util.processes import check_precision, processes, rank_and_world
from prunus.util.progress import PhaseProgress, phases, shown
from prunus.util.state import generators_kept
from prunus.util.text import html_table, short_table
from prunus.util.typed_json import read_record, to_data

if TYPE_CHECKING:
    from prunus.ship.export import Exported


logger = logging.getLogger(__name__)

MOST_ROUNDS = 100

R = TypeVar("R")


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

        result = prunus.compress(model, train, holdout, speedup=1.5)
        result.model, result.speedup, result.summary["after"]["holdout"]["quality"]

    Without a goal: the fastest network that loses at most one point of held-out quality.

    By default the network is repaired by "solve" and not retrained: that takes epochs=. After this repair the split is
    "least_error" with the metric "rebuilt".

    Args:
        model: The trained network.
        train: Batches of images to score, repair and retrain on, with labels or without.
        holdout: Images that all decisions read. Without labels, quality is agreement with `model`.
        test: Read once, at the end, for the report only.
        score_on: Batches to score on; `train` by default.
        example: An input of the network (a tensor, a tuple or a dict); the first training image by default.
        settings: The goal and everything else.
        folder: The run's folder. Called again with the same arguments, an interrupted run continues and ends as an
            uninterrupted one would have. Without it, a temporary folder is used.
        progress: False shows nothing; a function is called with phase, steps done, steps in all and a note. By default
            a run of more than two seconds shows a bar, and off a terminal a line after 5 and then every 30 seconds.
        **changes: Fields of `Settings` by name: target=, speedup=, engine=, batch=, threads=, macs=, params=,
            max_drop=, ratio=, task=, metric=, split=, alpha=, k=, rounds=, repair=, epochs=, fit=, evaluate=, ...
            task= is what the network is for, as a name or a `Task`; classification by default (docs/tasks.md).
    """
    settings = with_goal(replaced(settings or Settings(), changes, DecideError))
    data, settings = checked(model, settings, train, holdout, test, score_on)
    with run_folder(folder) as place, generators_kept(), shown(progress, phases) as show:
        result = run(settings, place, data, show, shared_network(model, example, settings, data))
    return kept_while_used(result, place)


def checked(
    model: nn.Module,
    settings: Settings,
    train: Batches,
    holdout: Batches,
    test: Batches | None = None,
    score_on: Batches | None = None,
) -> tuple[RunData, Settings]:
    """The loaders and settings of a run, if a run can begin with them."""
    check_settings(settings)
    check_network(model)
    for name, loader in {"train": train, "holdout": holdout, "score_on": score_on, "test": test}.items():
        if loader is not None or name in ("train", "holdout"):
            check_batches(loader, name, again=True)
    data = RunData(train, score_on if score_on is not None else train, holdout, test)
    return data, look_first(model, data, settings)


def kept_while_used(result: R, folder: RunFolder) -> R:
    """The result; a temporary folder is removed with it, not before: its report may still be asked for."""
    if folder.is_temporary:
        weakref.finalize(result, shutil.rmtree, folder.path, ignore_errors=True)
    return result


@contextmanager
def run_folder(folder: str | Path | RunFolder | None) -> Iterator[RunFolder]:
    """The run's folder, or a temporary one, the same for all processes."""
    writes = rank_and_world()[0] == 0  # joins the processes
    if isinstance(folder, RunFolder):
        yield RunFolder(folder.path, writes=folder.writes and writes, about=folder.about)
    elif folder is not None:
        if not isinstance(folder, str | Path):
            raise RunError(f"folder must be the path of a folder, got {type(folder).__name__}")
        yield RunFolder(folder, writes=writes)
    else:
        path = [tempfile.mkdtemp(prefix="prunus-") if writes else ""]
        if processes() > 1:
            dist.broadcast_object_list(path)
        try:
            yield RunFolder(path[0], writes=writes, is_temporary=True)
        except BaseException:
            if writes:
                shutil.rmtree(path[0], ignore_errors=True)
            raise
        if processes() > 1:
            dist.barrier()  # others may still read it


def shared_network(model: nn.Module, example: Any, settings: Settings, data: RunData) -> SharedNetwork:
    """What runs of a network share, before anything is known; the example is the first training image by default."""
    if example is None:
        example = first_image(data.train, device_of(model), task_of(settings.task))
    shared = SharedNetwork(copy.deepcopy(model), example)
    same_origin(shared.original, model)
    return shared


def run(
    settings: Settings, folder: RunFolder, data: RunData, progress: PhaseProgress, shared: SharedNetwork
) -> Compressed:
    """One run in its folder. Runs of the same network for other goals have the same `shared`."""
    tracker, place = settings.tracker if folder.writes else None, None if folder.is_temporary else folder.path
    with closing(folder), tracking(tracker, place, settings.to_dict()) as track:
        started = time.perf_counter()
        # From the network that was pruned first to this one, if it was pruned before.
        earlier = next(reversed(plans_of(shared.original)), None)
        if earlier is not None:  # one plan cannot hold both ways to treat streams, norms or attention
            for way, before in earlier.ways.items():
                asked, unasked = (getattr(each, way) for each in (settings, Settings()))
                if asked not in (unasked, before):
                    raise DecideError(
                        f'the network was pruned with {way}="{before}", and one plan cannot hold both ways: '
                        f'leave out {way}="{asked}"'
                    )
            settings = replace(settings, **earlier.ways)
        progress("trace", 0, 1, "")
        graph = shared.graph(settings.streams or ("select" if settings.max_memory is None else "coupled"), settings)
        _from_first(earlier, Plan.of(graph, {}))
        progress("trace", 1, 1, "")
        check_patterns(graph, settings.exclude, settings.only)
        if settings.retrains_at_all:
            check_precision(settings.mixed_precision, torch.accelerator.current_accelerator() or torch.device("cpu"))
        table = times_for(settings, graph, folder, shared)
        inputs = [each for each in tree_leaves(shared.example) if isinstance(each, Tensor)]
        pixels = max((math.prod(each.shape[2:]) for each in inputs), default=0)  # of the largest input
        settings = fill_defaults(settings, graph, pixels, table)
        context = RunContext(
            folder, graph, settings.budget(graph, table), settings, data, progress, track, table, shared
        )
        try:
            check_reach(graph, context.budget, settings)
        except DecideError:
            if settings.streams is not None:
                raise
            check_reach(graph, context.budget, settings, shared.graph("coupled", settings))
        config = {
            "settings": settings.to_dict(),
            "fingerprint": graph.fingerprint,
            "original": network_digest(graph) if earlier is None else earlier.fingerprint,
            "weights": digest(graph.model),
            **folder.about,
        }
        folder.begin(config, vars(data))
        if table is not None and folder.writes and not folder.has(TABLE):
            table.save(folder.path / TABLE)
        before = _base(context)
        first = None
        if settings.streams is None or settings.searches:  # several networks are tried
            context, first = choose(context)
        rounds, current, plan = _rounds(context, before, first)
        if rounds and not _allowed(rounds[-1], before, context):
            last = rounds.pop()
            what = f"the result is that of round {len(rounds)}" if rounds else "the network stays as it is"
            logger.warning("round %d loses more than max_drop: %s", last.number, what)
            current, plan = _left_by(context, len(rounds))
        whole = _from_first(earlier, plan)
        summary = _summary(context, plan, whole, current, before, rounds)
        summary["seconds"]["this_call"] = round(time.perf_counter() - started, 2)
        return Compressed(current, whole, tuple(rounds), summary, place, folder.path)


def _from_first(earlier: Plan | None, plan: Plan) -> Plan:
    """The plan from the network that was pruned first, so that the result does not need the networks in between."""
    if earlier is None:
        return plan
    try:
        return earlier.then(plan)
    except PlanError as error:
        raise PlanError(
            f"the network was pruned before, and no single plan leads from its original to the result: {error}"
        ) from error


def _base(context: RunContext) -> Evaluation:
    """The original network's held-out quality, with a warning if decisions cannot be based on it."""
    folder, graph, name = context.folder, context.graph, context.quality.name
    if folder.has(BASE):
        before = folder.record(BASE, Baseline).holdout
    else:
        before = context.base().evaluation
        folder.write(NETWORK, network_shape(graph))
        folder.write(BASE, Baseline(before, context.quality, graph.macs))
    if before.num_images == 0:
        raise DataError("the held-out set has no labelled images, and decisions need some")
    if context.settings.evaluate is None:
        for sentence in quality_doubts(before, context.original, graph.example, context.task):
            logger.warning("%s", sentence)
    context.track({f"round/holdout {name}": before.quality, "round/macs": graph.macs, "round/params": graph.params}, 0)
    return before


def _rounds(context: RunContext, before: Evaluation, first: Candidate | None) -> tuple[list[Outcome], nn.Module, Plan]:
    """Continue after the finished rounds until the goal is met, too much is lost or nothing can be removed.

    first: the pruned network of the first round, if it was chosen among several.
    """
    folder, settings, name = context.folder, context.settings, context.quality.name
    done = folder.finished_rounds()
    rounds = [folder.record(folder.in_round(number, ROUND_FILE), Outcome) for number in range(1, done + 1)]
    current, plan = _left_by(context, done)
    none_is_allowed = settings.searches and first is None and not rounds
    while len(rounds) < MOST_ROUNDS and not none_is_allowed:
        last = rounds[-1] if rounds else None
        if last is not None and (
            settings.ratio is not None
            or last.last
            or not _allowed(last, before, context)
            or context.met(plan, len(rounds))
        ):
            break
        try:
            now, given = last.after if last else before, None if rounds else first
            outcome, current, plan = run_round(context, rounds, current, plan, now, given)
        except NothingToLoseError:
            if context.budget.left is not None or not rounds:
                raise
            logger.info("every unit is at its floor: the run ends with round %d", len(rounds))
            break
        rounds.append(outcome)
        context.track(
            {
                f"round/holdout {name}": outcome.after.quality,
                f"round/holdout {name} before repair": None if outcome.cut is None else outcome.cut.quality,
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
    return rounds, current, plan


def _left_by(context: RunContext, number: int) -> tuple[nn.Module, Plan]:
    """The network and plan after a round; for 0, those before the first round."""
    if number:
        return context.folder.load_model(context.original, number, context.graph)
    return context.original, Plan.of(context.graph, {})


def _allowed(outcome: Outcome, before: Evaluation, context: RunContext) -> bool:
    return within(context.quality.factor * (before.quality - outcome.after.quality), context.settings.max_drop)


def _summary(
    context: RunContext, plan: Plan, whole: Plan, current: nn.Module, before: Evaluation, rounds: list[Outcome]
) -> dict[str, Any]:
    """The result in numbers. It is written last: a folder with a summary holds a finished run.

    whole: the plan from the network that was pruned first, if the run goes on from a pruned one.
    """
    folder = context.folder
    if not all(folder.has(name) for name in (SUMMARY, MODEL_FILE, PLAN_FILE)):
        folder.save_model(current, whole)
    if folder.has(SUMMARY):
        read_record(folder.path / SUMMARY, Summary, FORMAT, VERSION)  # refuses what does not fit
        return folder.read(SUMMARY)
    folder.write_text(DIFFERENCES, differences(context.settings, folder.about))
    summary = {"format": FORMAT, "version": VERSION, **to_data(summarise(context, plan, current, before, rounds))}
    folder.write(SUMMARY, summary)
    figures = {f"result/speedup {each['engine']} batch {each['batch']}": each["ratio"] for each in summary["speeds"]}
    for side in ("before", "after"):
        test = summary[side]["test"]
        figures[f"result/test {context.quality.name} {side}"] = None if test is None else test["quality"]
    context.track(figures, len(rounds))
    return summary


# -- the result


@dataclass(frozen=True, repr=False)
class Compressed:
    """The smaller network, the plan that leads to it from the original, and the run in numbers.

    Attributes:
        model: The smaller network.
        plan: The channels of the original network that it keeps.
        rounds: The result of each round.
        summary: What summary.json holds; see `prunus.run.summary.Summary`.
        folder: The run's folder; None if it was a temporary one.
    """

    model: nn.Module
    plan: Plan
    rounds: tuple[Outcome, ...]
    summary: dict[str, Any]
    folder: Path | None
    files: Path | None = field(default=None, compare=False)  # the folder, also if it is a temporary one

    @property
    def reached(self) -> bool:
        """Whether the goal was reached; `summary["goal"]["text"]` says it in words."""
        return bool(self.summary["goal"]["reached"])

    @property
    def speedup(self) -> float | None:
        """How many times as fast the network is in the asked engine, as measured; None if it was not timed."""
        speeds = self.summary["speeds"]
        return float(speeds[0]["ratio"]) if speeds else None

    def save(self, path: str | Path) -> None:
        """Write the network and its plan to a folder, for `prunus.load`."""
        save(self.model, self.plan, path)

    def export(self, path: str | Path, **options: Any) -> Exported:
        """Write the network as .onnx, .pt2, .safetensors or .py; see `prunus.export`, which takes the options."""
        from prunus.ship.export import export

        return export(self.model, example_of(self.plan, self.model, Path(path)), path, **options)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the run, one HTML page; by default report.html in the run's folder. Returns its path."""
        from prunus.report.run_page import write_report

        if self.files is None or (path is None and self.folder is None):
            raise RunError("the run has no folder: give report(path), or compress(..., folder=) for one that stays")
        return write_report(self.files, path)

    def __repr__(self) -> str:
        summary = read_summary(self.summary)
        title = f"{first_line(summary)}\n{summary.goal.text}"
        return short_table(title, ("", "before", "after", ""), headline(summary), most=20)

    def _repr_html_(self) -> str:
        summary = read_summary(self.summary)
        lead = f"<b>{escape(first_line(summary))}</b><br>{escape(summary.goal.text)}"
        return html_table(lead, [("", "before", "after", ""), *headline(summary)])
