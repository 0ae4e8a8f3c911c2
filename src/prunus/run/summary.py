"""A finished run in numbers: summary.json, and what it says to people. The dataclasses are the file."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prunus.deciding.goal import TOLERANCE
from prunus.graph.memory import peak_of
from prunus.graph.plan import Plan
from prunus.graph.units import Keep
from prunus.run.context import RunContext
from prunus.run.final_timing import EngineSpeed, time_in_engines
from prunus.run.folder import CONFIG, SUMMARY
from prunus.run.qualities import Int8Quality, in_integers, quality_on_test
from prunus.run.round import Outcome
from prunus.run.search import Search, search_of
from prunus.run.settings import Settings, within
from prunus.run.speed_check import Check, is_checked, known_checks
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import QualityText
from prunus.timing.engines import default_engine
from prunus.util.files import read_object
from prunus.util.processes import from_first
from prunus.util.text import big_number, bytes_text, percent
from prunus.util.typed_json import from_data, read_record

FORMAT, VERSION = "prunus-summary", 2
IN_INTEGERS = " in 8-bit integers"
REST = "(the rest)"  # what is not a layer: additions, pooling, overhead
Pair = tuple[int, int]  # before, after


@dataclass(frozen=True)
class NetworkFigures:
    """Quality and size of a network, before or after pruning."""

    holdout: Evaluation
    test: Evaluation | None
    macs: int
    params: int
    bytes: int  # of the tensors that are saved
    memory: int | None = None  # bytes of activations for one image at their peak; None if it is not known
    int8: Int8Quality | None = None  # in 8-bit integers, if the engine computes in them


QualityFigures = NetworkFigures | Int8Quality


@dataclass(frozen=True)
class UnitFigures:
    """Number of channels of a unit, before and after."""

    kind: str
    width: int
    kept: int


@dataclass(frozen=True)
class LayerFigures:
    """One layer, before and after."""

    inputs: Pair
    outputs: Pair
    macs: Pair
    params: Pair


@dataclass(frozen=True)
class SpeedFigures:
    """A latency target: the speed-up that was asked and predicted, and the time of every layer."""

    engine: str
    batch: int
    threads: int
    machine: str
    asked: float
    predicted: float
    here: bool  # whether the times of layers are of this kind of machine, so that the speed-up can be measured
    layers: Mapping[str, tuple[float, float]]  # predicted seconds per batch, before and after
    checks: tuple[Check, ...] = ()  # the splits that were timed, in the order of the rounds


@dataclass(frozen=True)
class GoalResult:
    """The goal, and what the run came to."""

    kind: str  # speedup, target, macs, params, max_memory, ratio or max_drop
    asked: float
    value: float  # that was reached, in the same unit; a predicted speed-up if it could not be measured
    reached: bool  # a speed-up also counts if its interval contains what was asked
    text: str  # one sentence


@dataclass(frozen=True)
class Summary:
    """summary.json, without its format and version."""

    model: str  # the class of the network
    settings: Mapping[str, Any]
    before: NetworkFigures
    after: NetworkFigures
    speeds: tuple[EngineSpeed, ...]  # the asked engine and batch first; empty if nothing was timed
    goal: GoalResult
    time: SpeedFigures | None  # None without a latency target
    removed: Mapping[str, float]  # fraction of MACs and of weights
    quality: QualityText
    notes: tuple[str, ...]  # about speed, repair, retraining and lost quality
    rounds: tuple[Outcome, ...]
    units: Mapping[str, UnitFigures]
    layers: Mapping[str, LayerFigures]
    seconds: Mapping[str, float]  # phase -> seconds
    versions: Mapping[str, str]


def summarise(
    context: RunContext, plan: Plan, pruned: nn.Module, before: Evaluation, rounds: Sequence[Outcome]
) -> Summary:
    """Everything a report needs. The two networks are timed in turns, and the test images are read here alone."""
    graph, original, settings = context.graph, context.original, context.settings
    cost, models = graph.cost(plan), {"before": original, "after": pruned}
    tests, integers = quality_on_test(context, models), in_integers(context, models)

    def figures(name: str, holdout: Evaluation, macs: int, params: int, keep: Keep) -> NetworkFigures:
        size = sum(t.numel() * t.element_size() for t in models[name].state_dict().values())
        small = integers.quality.get(name)
        return NetworkFigures(holdout, tests[name], macs, params, size, peak_of(graph, keep), small)

    seconds: dict[str, float] = {}
    for outcome in rounds:
        for phase, taken in outcome.seconds.items():
            seconds[phase] = round(seconds.get(phase, 0.0) + taken, 3)
    speed = _speed(context, plan)
    speeds: tuple[EngineSpeed, ...] = ()
    untimed: tuple[str, ...] = ()
    if settings.timing or settings.for_time:  # a latency target is nothing without its measured time
        made = [network.prepared for network in integers.networks.values()]
        ready = {str(settings.engine): (made[0], made[1])} if made else {}
        speeds, untimed = from_first(
            lambda: time_in_engines(
                original,
                pruned,
                graph.example,
                engine=settings.engine or default_engine(),
                batch=settings.batch,
                threads=settings.threads,
                others=settings.timing,
                ready=ready,
                progress=lambda done, total: context.say("timing", done, total),
            )
        )
    was = figures("before", before, graph.macs, graph.params, {})
    now = figures("after", rounds[-1].after if rounds else before, cost.macs, cost.params, plan.keep)
    units = {name: UnitFigures(unit.kind, unit.width, len(plan.keep[name])) for name, unit in graph.units.items()}
    gone = 1 - sum(unit.kept for unit in units.values()) / sum(unit.width for unit in units.values())
    columns = ("inputs", "outputs", "macs", "params")
    return Summary(
        model=type(original).__name__,
        settings=settings.to_dict(),
        before=was,
        after=now,
        speeds=speeds,
        goal=goal_result(settings, was, now, context.quality, gone, speeds, speed, search_of(context.folder)),
        time=speed,
        removed={"macs": 1 - cost.macs / graph.macs, "params": 1 - cost.params / graph.params},
        quality=context.quality,
        notes=(
            *untimed,
            *integers.notes,
            *_notes(before, rounds, context.quality, settings.solve_only and not settings.mimic),
        ),
        rounds=tuple(rounds),
        units=units,
        layers={
            name: LayerFigures(*((getattr(layer, what), getattr(cost.layers[name], what)) for what in columns))
            for name, layer in graph.layers.items()
        },
        seconds=seconds,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    return {"prunus": version("prunus"), "python": platform.python_version(), "torch": torch.__version__}


def _speed(context: RunContext, plan: Plan) -> SpeedFigures | None:
    """What a latency target came to; None if the goal is another one."""
    table, asked = context.budget.table, context.settings.speedup
    if table is None or asked is None:
        return None
    graph, how = context.graph, table.measured_with
    before, after = table.by_layer(graph), table.by_layer(graph, plan)
    rounds = range(1, context.folder.finished_rounds() + 1)
    return SpeedFigures(
        engine=how.engine,
        batch=how.batch,
        threads=how.threads,
        machine=how.machine,
        asked=asked,
        predicted=table.predict(graph) / table.predict(graph, plan),
        here=is_checked(context),
        layers={
            **{name: (before[name], after[name]) for name in before},
            REST: (table.remainder_of(graph), table.remainder_of(graph, plan)),
        },
        checks=tuple(
            check for number in rounds for check in known_checks(context.folder, context.folder.round(number).name)
        ),
    )


# -- runs that go on from others


@dataclass(frozen=True)
class Beginning:
    """The original network of a run that goes on from a pruned one, and how far the runs before it had come."""

    before: NetworkFigures  # of the original network
    speeds: tuple[EngineSpeed, ...]  # of the network that the run started from, relative to the original

    @classmethod
    def of_run(cls, folder: Path) -> Beginning | None:
        if not (folder / SUMMARY).exists():
            return None
        summary = read_record(folder / SUMMARY, Summary, FORMAT, VERSION)
        config = read_object(folder / CONFIG) if (folder / CONFIG).exists() else {}
        return cls.of(config, summary)

    @classmethod
    def of(cls, config: Mapping[str, Any], summary: Summary) -> Beginning:
        """The original network of a run, and the speed of its result relative to that.

        The speed-up over several runs is the product of theirs, and so are the ends of its interval.
        """
        recorded = (config.get("start") or {}).get("original")
        if recorded is None:
            return cls(summary.before, summary.speeds)
        earlier: Beginning = from_data(cls, recorded)
        known = {(each.engine, each.batch, each.threads): each for each in earlier.speeds}
        speeds = []
        for each in summary.speeds:
            first = known.get((each.engine, each.batch, each.threads))
            if first is not None:
                ratio, low, high = first.ratio * each.ratio, first.low * each.low, first.high * each.high
                speeds.append(replace(each, before=each.after * ratio, ratio=ratio, low=low, high=high))
        return cls(earlier.before, tuple(speeds))


# -- the goal


def goal_result(
    settings: Settings,
    before: NetworkFigures,
    after: NetworkFigures,
    quality: QualityText,
    gone: float,
    speeds: Sequence[EngineSpeed] = (),
    time: SpeedFigures | None = None,
    search: Search | None = None,
) -> GoalResult:
    """What the goal came to, where a fraction `gone` of all channels was removed.

    The asked engine and batch are the first of `speeds`. `search` says how sure the drop of its result is.
    """
    was, now = (each.int8 or each for each in (before, after))  # what the engine computes is what is shipped
    drop, most = quality.factor * (was.holdout.quality - now.holdout.quality), settings.max_drop
    kept, name = within(drop, most), f"held-out {quality.name}{IN_INTEGERS if after.int8 else ''}"
    limit = f"{most:g} {quality.difference_unit}".rstrip() + f" of {name}" if most is not None else ""
    kind = next((name for name in settings.given if name != "max_drop"), "max_drop")
    asked, why = float(getattr(settings, kind)), ""
    if kind == "speedup":
        value, met, text, why = _speed_reached(settings, asked, speeds, time)
    elif kind == "target":
        value = 1 - after.macs / before.macs
        met, text = value >= asked - TOLERANCE, f"{percent(value)} of the MACs removed, {percent(asked)} asked"
    elif kind in ("macs", "params"):
        value, whole = float(getattr(after, kind)), getattr(before, kind)
        what = {"macs": "MACs", "params": "weights"}[kind]
        met, text = value <= asked + TOLERANCE * whole, f"{big_number(value)} {what} left, {big_number(asked)} asked"
    elif kind == "max_memory":
        value = float(after.memory or 0)
        met = value <= asked
        text = f"{bytes_text(value)} of activations at their peak, {bytes_text(asked)} asked"
    elif kind == "ratio":
        value, met = gone, gone > 0
        text = f"{percent(value)} of all channels removed, {percent(asked)} of every unit asked"
    else:
        value, met = drop, gone > 0
        lost = f"{quality.size(drop / quality.factor)} of {name} {'lost' if drop >= 0 else 'gained'}"
        text, point = f"{lost}, at most {most:g} allowed", None if search is None else search.result
        if point is not None and point.error is not None and point.bound is not None and after.int8 is None:
            text += (
                f" (standard error {point.error:.2g}; on other images at most {point.bound:.2g} with 95% confidence)"
            )
    if not gone and most is not None:
        text = f"nothing was removed, because every cut that was tried loses more than {limit}"
    elif not kept:
        text += f"; it loses more than {limit}"
    elif not met and most is not None and kind != "max_drop":
        text += f"; a larger cut would lose more than {limit}"
    elif not met and why:
        text += f"; {why}"
    reached = met and kept
    return GoalResult(kind, asked, value, reached, f"Goal {'reached' if reached else 'not reached'}: {text}.")


def _speed_reached(
    settings: Settings, asked: float, speeds: Sequence[EngineSpeed], time: SpeedFigures | None
) -> tuple[float, bool, str, str]:
    """The speed-up, whether it is what was asked, both in words, and why it may be less."""
    if time is not None and not time.here:
        elsewhere = f"predicted from the times of layers on another machine ({time.machine})"
        text = f"{time.predicted:.2f}x {elsewhere}, {asked:g}x asked; time it there with `prunus bench`"
        return time.predicted, time.predicted >= asked * (1 - TOLERANCE), text, ""
    speed = speeds[0] if speeds and (speeds[0].engine, speeds[0].batch) == (settings.engine, settings.batch) else None
    if speed is None:  # the engine failed
        predicted = 1.0 if time is None else time.predicted
        return predicted, False, f"{predicted:.2f}x predicted, {asked:g}x asked; it could not be measured", ""
    text = f"{speed.ratio:.2f}x as fast in {speed.place}, {asked:g}x asked"
    if speed.ratio < asked <= speed.high:
        text += f", which the interval {speed.low:.2f} to {speed.high:.2f} contains"
    return speed.ratio, speed.high >= asked, text, "no split that was tried is faster"


# -- for people to read


def first_line(summary: Summary) -> str:
    """The result in one line: how fast, and how good on test images, or else on held-out ones."""
    quality = summary.quality
    before, after = (each.int8 or each for each in (summary.before, summary.after))
    if not removes_anything(summary):
        text = "nothing was removed: the network is as it was"
    elif summary.speeds:
        text = str(summary.speeds[0])
    else:
        text = f"{percent(summary.removed['macs'])} of the MACs removed, speed not measured"
    part, was, now = reported(before, after)
    how = IN_INTEGERS if summary.after.int8 else ""
    return f"{text}, {quality.shown(was.quality)} -> {quality.shown(now.quality)} {part} {quality.name}{how}"


def reported(before: QualityFigures, after: QualityFigures) -> tuple[str, Evaluation, Evaluation]:
    """The evaluations to report, and on which images: the test images, if there are any."""
    if before.test is not None and after.test is not None:
        return "test", before.test, after.test
    return "held-out", before.holdout, after.holdout


def removes_anything(summary: Summary) -> bool:
    return any(unit.kept < unit.width for unit in summary.units.values())


def read_summary(record: Mapping[str, Any]) -> Summary:
    return from_data(Summary, {key: value for key, value in record.items() if key not in ("format", "version")})


def qualities(summary: Summary) -> list[tuple[str, str, Evaluation, Evaluation]]:
    """What was measured before and after: of which images, whether in 8-bit integers, and both evaluations."""
    found = []
    for was, now, how in ((summary.before, summary.after, ""), (summary.before.int8, summary.after.int8, " in int8")):
        if was is not None and now is not None:
            found.append(("held-out", how, was.holdout, now.holdout))
            if was.test is not None and now.test is not None:
                found.append(("test", how, was.test, now.test))
    return found


def headline(summary: Summary) -> list[list[str]]:
    """Rows of (what, before, after, change): speed first."""
    before, after, quality = summary.before, summary.after, summary.quality
    rows = [
        [f"ms in {each.place}", f"{1e3 * each.before:.3g}", f"{1e3 * each.after:.3g}", each.change]
        for each in summary.speeds
    ]
    for part, how, was, now in qualities(summary):
        pairs = {quality.name: (was.quality, now.quality)}
        for name, old in was.details.items():
            if name in now.details and old < 0.999:  # nothing can be said where nearly all images have it
                pairs["top-5" if name == "top5" else name] = old, now.details[name]
        for title, (old, new) in pairs.items():
            rows.append([f"{part} {title}{how}", quality.shown(old), quality.shown(new), quality.change(new - old)])
    costs = {"MACs": "macs", "weights": "params", "bytes on disk": "bytes", "bytes of activations": "memory"}
    for title, cost in costs.items():
        old, new = getattr(before, cost), getattr(after, cost)
        if old and new:  # the memory of networks that were not traced is unknown
            change = "unchanged" if new == old else f"-{100 * (1 - new / old):.1f}%"
            rows.append([title, big_number(old), big_number(new), change])
    return rows


def _notes(before: Evaluation, rounds: Sequence[Outcome], quality: QualityText, solve_only: bool) -> list[str]:
    """What a user should know about repair and retraining, and the loss of quality in words."""
    notes = []
    for outcome in rounds:
        cut = outcome.cut
        if cut is not None and cut.quality < min(outcome.before.quality, outcome.pruned.quality):
            lost, back = (quality.size(now.quality - cut.quality) for now in (outcome.before, outcome.pruned))
            notes.append(
                f"Round {outcome.number}: the cut lost {lost} of held-out {quality.name}, and the repair brought back "
                f"{back}."
            )
    for outcome in rounds:
        if outcome.mimicked is not None:
            gained = quality.change(outcome.mimicked.quality - outcome.pruned.quality)
            losses = f"{outcome.mimic_losses[0]:.3g} to {min(outcome.mimic_losses):.3g}"
            notes.append(
                f"Round {outcome.number}: mimicking the original changed the held-out {quality.name} by {gained}, and "
                f"the held-out loss from {losses}."
            )
    for outcome in rounds:  # retraining that did not help
        was, now = (outcome.mimicked or outcome.pruned).quality, outcome.after.quality
        reached = [epoch.holdout.quality for epoch in outcome.retraining if epoch.holdout is not None]
        if outcome.kept_epoch == 0 and reached:
            notes.append(
                f"Round {outcome.number}: no epoch of retraining was as good on the held-out images as the network "
                f"before it ({quality.shown(was)}, at best {quality.shown(max(reached))} retrained), so that one is "
                "kept. A lower learning rate or more epochs may help."
            )
        elif outcome.kept_epoch is None and now < was:
            change = f"from {quality.shown(was)} to {quality.shown(now)}"
            notes.append(f"Round {outcome.number}: your own fit lowered the held-out {quality.name} {change}.")
    after = rounds[-1].after if rounds else before
    if after.quality < before.quality:
        lost = quality.size(before.quality - after.quality)
        notes.append(f"The held-out {quality.name} is {lost} lower than before pruning.")
        if solve_only:
            notes.append(
                "The network was repaired and not retrained. A few hundred steps without labels (mimic=600), or a few "
                "epochs (epochs=3), may recover more."
            )
    return notes
