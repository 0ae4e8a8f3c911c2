"""One round: score, split, prune, repair, retrain. Each step writes its result to the folder before the next begins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import distributed as dist
from torch import nn

from prunus.decide.candidates import candidates, scored
from prunus.decide.costs import CostOf
from prunus.decide.costs.latency import table_cost
from prunus.decide.goal import Budget
from prunus.decide.sensitivity import Sensitivity, sensitivity
from prunus.decide.settings import SplitSettings
from prunus.decide.splits import SPLITS, SplitTask
from prunus.decide.splits.uniform import uniform
from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph, prune, trace
from prunus.graph.files import PLAN_FILE
from prunus.graph.plan import Plan, same_origin
from prunus.repair.repair import REPAIRS
from prunus.repair.unit_repair import UnitRepair, repair_each
from prunus.run.context import RunContext, Stopwatch
from prunus.run.folder import ROUND, SENSITIVITY
from prunus.run.report_files import keep_pictures
from prunus.run.settings import DEFAULT_REPAIR
from prunus.run.speed_check import plan_in_time
from prunus.score.metrics import metric_of
from prunus.score.passes import sampled
from prunus.score.score import score
from prunus.score.scores import Scores, load_scores, save_scores
from prunus.tasks.evaluate import Evaluation, unpack_for
from prunus.tasks.partial_forward import Cut
from prunus.train.checkpoint import Epoch, from_dict
from prunus.train.fit import fit, steps_of_epochs
from prunus.train.rate_test import best_rate, try_rates
from prunus.train.settings import DEFAULT_PRESET, Preset, preset_of
from prunus.train.trackers import epoch_figures
from prunus.util.batches import Batches
from prunus.util.processes import processes
from prunus.util.state import generators_kept

# The plan of a round: the split decides, and what held-out images say is kept in the folder.


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
        return found.quality if measure == "accuracy" else -found.loss

    by_own_evaluation.__name__ = str(getattr(own, "__name__", "own"))
    return by_own_evaluation


# Repair inside a run: which images, towards which network, and the same in every process.

UNIT_IMAGES = 500  # each unit is repaired separately: few images are enough to compare units


def repair_round(
    context: RunContext, number: int, graph: ChannelGraph, plan: Plan, so_far: Plan, errors: dict[str, list[float]]
) -> nn.Module:
    """The round's network, pruned by `plan` and repaired. `graph` is of the network that `so_far` leads to.

    errors: filled with the relative error of each layer before and after its repair, if the repair knows them.

    Without retraining, everything that the rounds have cut is repaired from the original network at once: its outputs
    are the target and its weights the start, so that errors of earlier repairs are not passed on. A retrained network
    no longer has the original's features; then the network at the start of the round is the target.
    """
    settings = context.settings
    method = REPAIRS.find(_how(context))
    if method.needs_images and not settings.retrains:
        graph, plan = context.graph, so_far.then(plan)
    options: dict[str, Any] = {"memory": settings.memory} if method.needs_images else {}
    if method.tells_errors:
        options["on_layer"] = lambda name, before, after: errors.update({name: [before, after]})
    return method.run(
        graph,
        plan,
        _images(context) if method.needs_images else None,
        **options,
        seed=settings.seed,
        progress=lambda done, total: context.say(f"round {number}: repair", done, total),
    )


def cut_accuracy(context: RunContext, graph: ChannelGraph, plan: Plan) -> Evaluation | None:
    """Held-out accuracy of the round's network as it is cut, without a repair; None if nothing is repaired."""
    if not REPAIRS.find(_how(context)).needs_images:
        return None
    return context.evaluate(prune(graph, plan, check=False), context.data.holdout)


def repair_units(context: RunContext, graph: ChannelGraph) -> UnitRepair:
    """Each unit of a round's network repaired separately: to score channels, and to rank units after their repair."""
    how = _how(context)
    if REPAIRS.find(how).reader_changes is None:  # this repair cannot be applied to one unit
        how = "solve"
    return repair_each(graph, _images(context, most=UNIT_IMAGES), how=how, seed=context.settings.seed)


def _how(context: RunContext) -> str:
    return context.settings.repair or DEFAULT_REPAIR


def _images(context: RunContext, most: int | None = None) -> Iterator[Any]:
    """Unlabelled images, a stratified sample (folders are sorted by class). All processes have all of them."""
    settings = context.settings
    count = min(n for n in (settings.num_repair_images, most) if n is not None)
    with generators_kept(settings.seed):
        some, task = sampled(context.data.score_on, count, settings.seed, context.task), context.task
        mine = ((unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(some))
        if processes() == 1:
            yield from mine
            return
        everyone: list[Any] = [None] * processes()
        dist.all_gather_object(everyone, list(mine))
    for share in everyone:
        yield from share


# Retraining inside a run: the rate, the best epoch, and words about what it did.

RATE = "rate.json"
AFTER_REPAIR = 0.01  # highest rate of the test after the repair solve: from 0.03 on, the first epoch undoes the repair


@dataclass(frozen=True)
class Retrained:
    """A retrained network, its training epoch by epoch, and the epoch that was kept."""

    model: nn.Module
    history: tuple[Epoch, ...] = ()
    kept: int | None = (
        None  # 0: the network before retraining; None: it was not retrained, or by the user's own function
    )


def retrain(context: RunContext, number: int, pruned: nn.Module, epochs: int | None) -> Retrained:
    """The network of a round after retraining: its best epoch by held-out quality, where `pruned` is epoch 0.

    epochs: None takes the preset's.
    """
    settings, data = context.settings, context.data
    if settings.fit is not None:
        with generators_kept(settings.seed + number):
            return Retrained(_own_fit(settings.fit(pruned, data.train, data.holdout), pruned))
    if epochs == 0:
        return Retrained(pruned)
    done = context.folder.epochs_before(number)
    shared: dict[str, Any] = {
        "teacher": context.original if settings.has_teacher else None,
        "seed": settings.seed + number,
        "first_epoch": done,  # a loader's order and crops follow the number of the epoch, not this seed
        "task": settings.task,
        **settings.fine_tuning,
    }
    named = preset_of(settings.preset, epochs=epochs, lr=settings.lr)
    fitted = fit(
        pruned,
        data.train,
        data.holdout,
        preset=_schedule(context, number, pruned, named, shared),
        keep_best=True,
        checkpoint_dir=context.folder.round(number) / "checkpoint",
        evaluate=context.evaluate,
        progress=steps_of_epochs(context.say, f"round {number}: retrain"),
        on_epoch=lambda epoch: context.track(epoch_figures(epoch, context.quality), done + epoch.number),
        **shared,
    )
    return Retrained(fitted.model, fitted.history, fitted.kept)


def _own_fit(found: Any, pruned: nn.Module) -> nn.Module:
    """What the user's own retraining returned, if it is a network of the same shape."""
    if not isinstance(found, nn.Module):
        hint = "; if it trains the network in place, end it with `return model`" if found is None else ""
        raise RunError(f"your fit function must return the retrained network, but returned {_kind(found)}{hint}")
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in (found, pruned)]
    if shapes[0] != shapes[1]:
        odd = next(name for name in {**shapes[0], **shapes[1]} if shapes[0].get(name) != shapes[1].get(name))
        raise RunError(
            f"your fit function must return the network that it was given, retrained: {odd} is "
            f"{_size(shapes[0].get(odd))} in the network that it returned, and {_size(shapes[1].get(odd))} in the one "
            "that it was given"
        )
    same_origin(found, pruned)  # it may be a network built anew
    return found


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _size(shape: Any) -> str:
    return "missing" if shape is None else str(list(shape))


def _schedule(
    context: RunContext, number: int, pruned: nn.Module, schedule: Preset, shared: Mapping[str, Any]
) -> Preset:
    """The schedule with the rate that a short test chooses; a rate or preset that the user named is not changed.

    shared: settings of `fit` for the test and the training alike.
    """
    settings, folder = context.settings, context.folder
    if settings.lr is not None or settings.preset != DEFAULT_PRESET:
        return schedule
    if settings.repair == DEFAULT_REPAIR:
        schedule = preset_of(schedule, lr=AFTER_REPAIR)
    name = f"{folder.round(number).name}/{RATE}"
    if not folder.has(name):
        tries = try_rates(
            pruned,
            context.data.train,
            context.data.holdout,
            schedule,
            evaluate=context.evaluate,
            progress=lambda done, total: context.say(f"round {number}: learning rate", done, total),
            **shared,
        )
        folder.write(name, {"lr": best_rate(tries), "tries": [asdict(one) for one in tries]})
        folder.wait_for_writer()
    # Read from the file, also when it was just written: all processes must train at one rate.
    return preset_of(schedule, lr=folder.parse(name, lambda words: float(words["lr"])))


@dataclass(frozen=True)
class Outcome:
    """The result of a round. Accuracies, or whatever quality the task has, are on the held-out images."""

    number: int
    macs: int
    params: int
    before: Evaluation  # at the start of the round
    pruned: Evaluation  # pruned (and repaired), not retrained
    after: Evaluation  # retrained
    chosen: dict[str, int]  # unit -> channels removed in this round
    seconds: dict[str, float]  # phase -> seconds
    last: bool = False  # nothing more can be removed
    retraining: tuple[Epoch, ...] = ()  # epoch by epoch; empty if a function of the user's own retrains
    cut: Evaluation | None = None  # pruned, not repaired; None without a repair
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
        accuracies = {name: Evaluation(**words[name]) for name in known}
        epochs = tuple(from_dict(epoch) for epoch in words.get("retraining", ()))
        return cls(**{**words, **accuracies, "retraining": epochs})


def run_round(
    context: RunContext, number: int, current: nn.Module, so_far: Plan, before: Evaluation
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
