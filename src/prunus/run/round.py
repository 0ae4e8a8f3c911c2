"""One round: measure, decide, prune, repair, retrain. Each step writes its result to the folder before the next begins.

Measuring knows no goal: `Measurements` has the scores of channels and the ranking of units. `make_candidate` decides on
a plan for one budget, from what was measured, and makes the network of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import distributed as dist
from torch import nn

from prunus.deciding.costs import table_cost
from prunus.deciding.goal import Budget
from prunus.deciding.sensitivity import Sensitivity, sensitivity
from prunus.deciding.settings import SPLITS, SplitSettings
from prunus.deciding.splits import SplitInputs, uniform
from prunus.errors import DataError, RunError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.files import PLAN_FILE
from prunus.graph.plan import Plan, same_origin
from prunus.graph.units import Unit
from prunus.plots.choices import some_images
from prunus.plots.run_pictures import NUM_IMAGES, PICTURES, take_pictures, to_bytes
from prunus.repairing.repair import REPAIRS
from prunus.repairing.unit_repair import UnitRepair, repair_each
from prunus.run.context import ImageQuality, RunContext, class_names
from prunus.run.folder import ROUND_FILE, SENSITIVITY_FILE
from prunus.run.speed_check import Check, plan_in_time
from prunus.scoring.metrics import metric_of
from prunus.scoring.passes import sampled
from prunus.scoring.score import score
from prunus.scoring.scores import Scores, Vector, load_scores, save_scores
from prunus.tasks.evaluate import Evaluation, unpack_for
from prunus.train.checkpoint import Epoch
from prunus.train.fit import fit, steps_of_epochs
from prunus.train.mimic import mimic
from prunus.train.rate_test import best_rate, try_rates
from prunus.train.settings import DEFAULT_PRESET, preset_of
from prunus.train.trackers import epoch_figures
from prunus.util.batches import Batches
from prunus.util.files import write_atomically
from prunus.util.processes import processes
from prunus.util.state import generators_kept

logger = logging.getLogger(__name__)

UNIT_IMAGES = 500  # each unit is repaired separately: few images are enough to compare units
RATE, MIMIC = "rate.json", "mimic"
AFTER_REPAIR = 0.01  # highest rate of the test after the repair solve: from 0.03 on, the first epoch undoes the repair


@dataclass(frozen=True)
class Outcome:
    """The result of a round, as in round.json. Accuracies, or whatever quality the task has, are held-out ones."""

    number: int
    macs: int
    params: int
    before: Evaluation  # at the start of the round
    pruned: Evaluation  # pruned (and repaired), not retrained
    after: Evaluation  # retrained
    chosen: dict[str, int]  # unit -> channels removed in this round
    seconds: dict[str, float]  # phase -> seconds
    last: bool = False  # nothing more can be removed
    retraining: tuple[Epoch, ...] = ()  # epoch by epoch; empty if a user-provided function retrains
    cut: Evaluation | None = None  # pruned, not repaired; None without a repair
    layer_errors: dict[str, list[float]] = field(default_factory=dict)  # layer -> error before and after its repair
    kept_epoch: int | None = None  # the best epoch, whose weights the round ends with; 0: as pruned and repaired
    alpha: float | None = None  # of Eqn. 3, as given or solved for the number of rounds; None if no unit was ranked
    mimicked: Evaluation | None = None  # after mimicking the original network; None if it was not done
    mimic_losses: tuple[float, ...] = ()  # held-out, before and after each part of it


class PhaseClock:
    """Seconds spent in each phase; a phase inside another one counts for itself only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent, inner = time.perf_counter() - start, self._inner.pop()
            self._inner[-1] += spent
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + spent - inner, 3)


def run_round(
    context: RunContext,
    earlier: Sequence[Outcome],
    current: nn.Module,
    so_far: Plan,
    before: Evaluation,
    candidate: Candidate | None = None,
) -> tuple[Outcome, nn.Module, Plan]:
    """One round from the network `current`, which `so_far` leads to. What is in the folder already is not repeated.

    Args:
        earlier: The rounds before this one.
        before: The quality of `current`.
        candidate: The pruned and repaired network of this round, if it was chosen among several.

    Returns:
        The outcome, the round's network, and the plan that leads to it from the original one.
    """
    folder, settings, data = context.folder, context.settings, context.data
    number = len(earlier) + 1
    if candidate is None:
        graph = context.graph
        if current is not context.original:
            graph = trace(current, graph.example, **graph.ways)
        measured = Measurements(context, number, graph, PhaseClock())
        rounds_left = (settings.rounds or 1) - number + 1
        budget = context.budget.aim(context.budget.of(graph)({}), rounds_left)
        candidate = make_candidate(measured, budget, so_far)
    measured, plan, pruned = candidate.measured, candidate.plan, candidate.model
    graph, clock = measured.graph, measured.clock
    folder.write_text(folder.in_round(number, f"step-{PLAN_FILE}"), plan.to_json())
    if number == 1:
        _keep_pictures(context, graph, measured.scores, plan)
    chosen = {name: count for name, count in plan.removed().items() if count}
    cut = None
    if REPAIRS.find(settings.repair).needs_images:
        cut = context.evaluate(prune(graph, plan, check=False), data.holdout, f"{measured.label}: evaluate")
    repaired = candidate.quality.evaluation
    composed = so_far.then(plan)
    is_last = not chosen or settings.ratio is not None or context.met(composed, number)
    epochs = settings.last_epochs if is_last and settings.last_epochs is not None else settings.epochs
    mimicked, losses = None, tuple[float, ...]()
    if settings.mimic:
        with clock("mimic"):
            pruned, mimicked, losses = _mimic(context, number, candidate, composed)
    with clock("retrain"):
        done = sum(len(outcome.retraining) for outcome in earlier)
        trained, history, kept = _retrain(context, number, pruned, epochs, done)
    if history:  # epochs from before an interruption count as well
        clock.seconds["retrain"] = max(clock.seconds["retrain"], round(sum(epoch.seconds for epoch in history), 3))
    folder.save_model(trained, composed, number)
    untouched = trained is pruned and settings.fit is None  # a user-provided one may train in place
    known = (mimicked or repaired) if untouched else None
    # Read it back, so that a resumed run and an unbroken one continue from the same bits.
    trained, composed = folder.load_model(context.original, number, context.graph)
    cost, ranking = context.graph.cost(composed), folder.in_round(number, SENSITIVITY_FILE)
    outcome = Outcome(
        number=number,
        macs=cost.macs,
        params=cost.params,
        before=before,
        pruned=repaired,
        after=known or context.evaluate(trained, data.holdout, f"{measured.label}: evaluate"),
        chosen=chosen,
        seconds=clock.seconds,
        last=not chosen,
        retraining=history,
        cut=cut,
        layer_errors=candidate.errors,
        kept_epoch=kept,
        alpha=folder.record(ranking, Sensitivity).alpha if folder.has(ranking) else None,
        mimicked=mimicked,
        mimic_losses=losses,
    )
    folder.write(folder.in_round(number, ROUND_FILE), outcome)
    folder.wait_for_writer()
    for part in ("checkpoint", MIMIC):
        folder.forget(folder.round(number) / part)
    return outcome, trained, composed


# -- what is measured once, and what is decided for a goal


@dataclass(frozen=True)
class Measurements:
    """What is measured of a round's network once, whatever is then decided for how many goals.

    Each is measured when it is first asked for. What an interrupted run has measured is read from its folder.
    """

    context: RunContext
    number: int  # of the round
    graph: ChannelGraph
    clock: PhaseClock
    trial: str = ""  # one of several trials of a round has a folder of its own in the round's
    # The same network with other units: one pass over the images serves both, and units that both have are scored once.
    other: Measurements | None = None

    @property
    def place(self) -> str:
        return self.context.folder.in_round(self.number, self.trial).rstrip("/")

    @property
    def label(self) -> str:
        return f"round {self.number}" + (f", {self.trial} streams" if self.trial else "")

    @cached_property
    def scores(self) -> Scores:
        context, place = self.context, self.place
        folder = context.folder.path / place
        if (folder / "scores.json").exists():
            return next(iter(load_scores(folder).values()))
        known = context.shared.find(f"{place}/scores.json")
        with self.clock("score"):
            scores = self._score() if known is None else next(iter(load_scores(known.parent).values()))
        if context.folder.writes:
            save_scores({scores.metric: scores}, folder)
        return scores

    def _score(self) -> Scores:
        context, settings, other = self.context, self.context.settings, self.other
        metric, seed = settings.metric, settings.seed + self.number
        assert metric is not None  # filled in when the run starts
        from_repair = isinstance(metric, str) and metric_of(metric).needs == "reader_inputs"
        known: dict[str, Vector] = {}
        if from_repair and other is not None:
            units = {name: unit for name, unit in self.graph.units.items() if name in other.graph.units}
            same = {name for name, unit in units.items() if _same_unit(unit, other.graph.units[name])}
            known = {name: values for name, values in other.scores.values.items() if name in same}
        source = self.unit_repair if from_repair else context.data.score_on
        if known:
            source = UnitRepair(replace(self.unit_repair.seen, known=frozenset(known)))
        with generators_kept(seed):  # a loader that shuffles with them gives the same order again
            scores: Scores = score(
                self.graph,
                source,
                metric=metric,
                num_images=None if from_repair else settings.num_images,
                seed=seed,
                task=context.task,
                progress=lambda done, total: context.say(f"{self.label}: score", done, total),
                **settings.metric_options,
            )
        return replace(scores, values={**known, **scores.values}) if known else scores

    @cached_property
    def unit_repair(self) -> UnitRepair:
        """Each unit repaired separately: to score channels, and to rank units after their repair."""
        if self.other is not None and (seen := self.other.unit_repair.seen.of(self.graph)) is not None:
            return UnitRepair(seen)
        return repair_each(
            self.graph,
            repair_images(self.context, most=UNIT_IMAGES),
            seed=self.context.settings.seed,
            progress=lambda done, total: self.context.say(f"{self.label}: score", done, total),
        )

    def rank(self, settings: SplitSettings) -> Sensitivity:
        """What held-out images say of each unit. A round ranks once: at the alpha that is asked for first."""
        context, folder = self.context, self.context.folder
        name = folder.in_round(self.number, SENSITIVITY_FILE)
        if folder.has(name):
            return folder.record(name, Sensitivity)
        if settings.cost == "latency" and context.table is not None:
            settings = replace(settings, cost=table_cost(self.graph, context.table))
        provided, measure = context.settings.evaluate, settings.measure
        if provided is not None and not callable(measure):  # it measures accuracy and loss here too

            def by_provided_evaluation(model: nn.Module, holdout: Batches) -> float:
                evaluation = context.evaluate(model, holdout)
                return evaluation.quality if measure == "accuracy" else -evaluation.loss

            by_provided_evaluation.__name__ = str(getattr(provided, "__name__", "own"))
            settings = replace(settings, measure=by_provided_evaluation)
        with self.clock("sensitivity"):
            ranking = sensitivity(
                self.graph,
                self.scores,
                context.data.holdout,
                settings,
                ratios=(settings.trial_ratio,),  # the other points of Li et al.'s curves decide nothing
                repair=self.unit_repair if settings.trials == "repaired" else None,
                widths=context.widths,
                progress=lambda done, total: context.say(f"{self.label}: sensitivity", done, total),
            )
        folder.write(name, ranking)
        return ranking


def _same_unit(here: Unit, there: Unit) -> bool:
    """Whether units of two graphs are the same: the same layers read the same channels."""
    return (
        (here.width, here.granule) == (there.width, there.granule)
        and [reader.module for reader in here.readers] == [reader.module for reader in there.readers]
        and all(
            np.array_equal(a.channels, b.channels) and np.array_equal(a.inputs, b.inputs)
            for a, b in zip(here.readers, there.readers, strict=True)
        )
    )


@dataclass(frozen=True)
class Candidate:
    """A network that a round may have: a plan, carried out and repaired."""

    measured: Measurements
    plan: Plan  # in the numbering of the measured network
    model: nn.Module
    errors: dict[str, list[float]]  # layer -> error before and after its repair
    quality: ImageQuality  # held-out
    check: Check | None = None  # what was measured of the plan, for a latency target


def make_candidate(
    measured: Measurements,
    budget: Budget,
    so_far: Plan | None = None,
    *,
    ratio: float | None = None,
    timed: bool = True,
    step: int | None = None,
    plan: Plan | None = None,
) -> Candidate:
    """The network for one budget, or for a share of every unit: pruned, repaired and evaluated.

    `so_far` leads to the measured network. A latency target is `timed`, or the table alone decides. Widths are
    multiples of `step`, or as the settings say. A `plan` that is known already is not made again.
    """
    context, settings, scores, check = measured.context, measured.context.settings, measured.scores, None
    if plan is None:
        settings = replace(settings, round_to=step or settings.round_to)
        inputs = SplitInputs(measured.graph, scores, budget, settings, measured.rank, context.widths)
        ratio = ratio or settings.ratio
        with measured.clock("decide"):
            if ratio is not None:
                plan = uniform(inputs.graph, inputs.scores, ratio, units=inputs.names, round_to=settings.round_to)
            else:
                assert settings.split is not None  # filled in when the run starts
                split = SPLITS.find(settings.split).plan
                if timed:
                    plan, check = plan_in_time(context, measured.place, measured.label, inputs, split)
                else:
                    plan = split(inputs)
    so_far = so_far or Plan.of(measured.graph, {})
    with measured.clock("prune" if settings.repair == "none" else "repair"):
        model, errors = _repair(context, measured.label, measured.graph, plan, so_far)
    with measured.clock("evaluate"):
        quality = context.evaluate_images(model, context.data.holdout, f"{measured.label}: evaluate")
    return Candidate(measured, plan, model, errors, quality, check)


def _keep_pictures(context: RunContext, graph: ChannelGraph, scores: Scores, plan: Plan) -> None:
    """Write pictures of a few channels on a few held-out images. Inputs that are not images have no pictures."""
    path = context.folder.round(1) / PICTURES
    if not context.folder.writes or path.exists():
        return
    try:
        few = some_images(context.data.holdout, context.settings.seed, NUM_IMAGES, context.task)
    except DataError as error:  # batches that only the user-provided evaluation can read
        logger.info("no pictures for the report: %s", error)
        return
    if few is None:
        return
    names: Sequence[str] | None = [f"image {number + 1}" for number in few[1]]
    if context.task.label_kind == "classes":
        names = class_names(context.data.holdout, max(few[1]) + 1)
    pictures = take_pictures(graph, scores, plan, *few, names)
    if pictures.units:
        write_atomically(path, to_bytes(pictures))


# -- repair


def _repair(
    context: RunContext, label: str, graph: ChannelGraph, plan: Plan, so_far: Plan
) -> tuple[nn.Module, dict[str, list[float]]]:
    """The round's network, pruned by `plan` and repaired. `graph` is of the network that `so_far` leads to.

    Without retraining, everything that the rounds have cut is repaired from the original network at once: its outputs
    are the target and its weights the start, so that errors of earlier repairs are not passed on. A retrained network
    no longer has the original's features; then the network at the start of the round is the target.

    Returns:
        The network, and the relative error of each layer before and after its repair, if the repair knows them.
    """
    settings, errors = context.settings, dict[str, list[float]]()
    method = REPAIRS.find(settings.repair)
    if method.needs_images and not settings.retrains:
        graph, plan = context.graph, so_far.then(plan)
    options: dict[str, Any] = {"memory": settings.memory} if method.needs_images else {}
    if method.tells_errors:
        options["on_layer"] = lambda name, before, after: errors.update({name: [before, after]})
    repaired = method.run(
        graph,
        plan,
        repair_images(context) if method.needs_images else None,
        **options,
        seed=settings.seed,
        progress=lambda done, total: context.say(f"{label}: repair", done, total),
    )
    return repaired, errors


def repair_images(context: RunContext, most: int | None = None) -> Iterator[Any]:
    """Unlabelled images, a stratified sample (folders are sorted by class). All processes have all of them."""
    settings, task = context.settings, context.task
    count = min(n for n in (settings.num_repair_images, most) if n is not None)
    with generators_kept(settings.seed):
        some = sampled(context.data.score_on, count, settings.seed, task)
        mine = ((unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(some))
        if processes() == 1:
            yield from mine
            return
        everyone: list[Any] = [None] * processes()
        dist.all_gather_object(everyone, list(mine))
    for share in everyone:
        yield from share


# -- mimicking and retraining


def _mimic(
    context: RunContext, number: int, repaired: Candidate, plan: Plan
) -> tuple[nn.Module, Evaluation, tuple[float, ...]]:
    """The network that mimics the original, its held-out quality, and the losses; the repaired one if that is better.

    The repaired network is saved first (`plan` leads to it): an interruption does not lose it.
    """
    folder, settings, data = context.folder, context.settings, context.data
    folder.save_model(repaired.model, plan, number)
    done = mimic(
        repaired.model,
        context.original,
        data.train,
        data.holdout,
        settings.mimic,
        task=context.task,
        seed=settings.seed + number,
        checkpoint_dir=folder.round(number) / MIMIC,
        progress=lambda phase, done, total, note: context.say(f"round {number}: {phase}", done, total, note),
    )
    quality, before = context.evaluate(done.model, data.holdout), repaired.quality.evaluation
    if quality.quality < before.quality:
        return repaired.model, before, done.losses
    return done.model, quality, done.losses


def _retrain(
    context: RunContext, number: int, pruned: nn.Module, epochs: int, done: int
) -> tuple[nn.Module, tuple[Epoch, ...], int | None]:
    """The network after `epochs` of retraining; earlier rounds had `done`. The best epoch by held-out quality is kept.

    Returns:
        The network, its history, and the epoch that was kept, where `pruned` is epoch 0: None if it was not retrained,
        or by a user-provided function.
    """
    settings, data, folder = context.settings, context.data, context.folder
    if settings.fit is not None:
        with generators_kept(settings.seed + number):
            return _checked_fit(settings.fit(pruned, data.train, data.holdout), pruned), (), None
    if epochs == 0:
        return pruned, (), None
    common: dict[str, Any] = {  # settings of `fit` for the test of rates and the training alike
        "teacher": context.original if settings.has_teacher else None,
        "seed": settings.seed + number,
        "first_epoch": done,  # a loader's order and crops follow the number of the epoch, not this seed
        "task": settings.task,
        **settings.fine_tuning,
    }
    schedule = preset_of(settings.preset, epochs=epochs, lr=settings.lr)
    # A rate or preset that the user named is not changed. Otherwise a short test chooses the rate.
    if settings.lr is None and settings.preset == DEFAULT_PRESET:
        if settings.repair == "solve":
            schedule = preset_of(schedule, lr=AFTER_REPAIR)
        name = folder.in_round(number, RATE)
        if not folder.has(name):
            tries = try_rates(
                pruned,
                data.train,
                data.holdout,
                schedule,
                evaluate=context.evaluate,
                progress=lambda done, total: context.say(f"round {number}: learning rate", done, total),
                **common,
            )
            folder.write(name, {"lr": best_rate(tries), "tries": tries})
            folder.wait_for_writer()
        # Read from the file, also when it was just written: all processes must train at one rate.
        schedule = preset_of(schedule, lr=folder.parse(name, lambda record: float(record["lr"])))
    fitted = fit(
        pruned,
        data.train,
        data.holdout,
        preset=schedule,
        keep_best=True,
        checkpoint_dir=folder.round(number) / "checkpoint",
        evaluate=context.evaluate,
        progress=steps_of_epochs(context.say, f"round {number}: retrain"),
        on_epoch=lambda epoch: context.track(epoch_figures(epoch, context.quality), done + epoch.number),
        **common,
    )
    return fitted.model, fitted.history, fitted.kept


def _checked_fit(returned: Any, pruned: nn.Module) -> nn.Module:
    """What user-provided retraining returned, if it is a network of the same shape."""
    if not isinstance(returned, nn.Module):
        hint = "; if it trains the network in place, end it with `return model`" if returned is None else ""
        kind = "None" if returned is None else f"a {type(returned).__name__}"
        raise RunError(f"your fit function must return the retrained network, but returned {kind}{hint}")
    got, given = ({n: list(t.shape) for n, t in model.state_dict().items()} for model in (returned, pruned))
    odd = next((name for name in {**got, **given} if got.get(name) != given.get(name)), None)
    if odd is not None:
        raise RunError(
            f"your fit function must return the network that it was given, retrained: {odd} is "
            f"{got.get(odd, 'missing')} in the network that it returned, and {given.get(odd, 'missing')} in the one "
            "that it was given"
        )
    same_origin(returned, pruned)  # it may be a network built anew
    return returned
