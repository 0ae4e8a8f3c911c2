"""A finished run in numbers: summary.json, and what it says to people. The dataclasses are the file."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from prunus.graph.plan import Plan
from prunus.run.classes import quality_on_test
from prunus.run.context import RunContext
from prunus.run.round import Outcome
from prunus.run.speed_check import Check, is_checked, known_checks, time_beside
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import QualityText
from prunus.timing.latency import Speedup, latency, speedup
from prunus.util.text import big_number
from prunus.util.typed_json import from_data

FORMAT, VERSION = "prunus-summary", 1
BATCHES = (1, 64)
TURNS = 20  # of each network at each batch size
REST = "(the rest)"  # what is not a layer: additions, pooling, overhead
Pair = tuple[int, int]  # before, after


@dataclass(frozen=True)
class NetworkFigures:
    """Quality, size and speed of a network, before or after pruning."""

    holdout: Evaluation
    test: Evaluation | None
    macs: int
    params: int
    bytes: int  # of the tensors that are saved
    latency: Mapping[str, float]  # batch size -> median seconds of a forward pass
    quartiles: Mapping[str, tuple[float, float]]  # of these seconds


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
    """A latency target: the speed-up that was asked, predicted and measured, and the time of every layer."""

    engine: str
    batch: int
    threads: int
    machine: str
    asked: float
    predicted: float
    measured: Speedup | None  # None if the times of layers are of another machine
    seconds: tuple[float, float] | None  # per batch, measured, before and after
    layers: Mapping[str, tuple[float, float]]  # predicted seconds per batch, before and after
    checks: tuple[Check, ...] = ()  # the splits that were timed, in the order of the rounds


@dataclass(frozen=True)
class Summary:
    """summary.json, without its format and version."""

    model: str  # the class of the network
    settings: Mapping[str, Any]
    before: NetworkFigures
    after: NetworkFigures
    speedup: Mapping[str, Speedup]  # batch size -> speed relative to the original
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
    tests = quality_on_test(context, models)
    timings = latency(
        models,
        graph.example,
        batch_sizes=BATCHES,
        rounds=TURNS,
        progress=lambda done, total: context.say("latency", done, total),
    )
    turns = {(timing.name, timing.batch_size): timing for timing in timings}

    def figures(name: str, holdout: Evaluation, macs: int, params: int) -> NetworkFigures:
        return NetworkFigures(
            holdout=holdout,
            test=tests[name],
            macs=macs,
            params=params,
            bytes=sum(t.numel() * t.element_size() for t in models[name].state_dict().values()),
            latency={str(size): turns[name, size].median for size in BATCHES},
            quartiles={str(size): turns[name, size].quartiles for size in BATCHES},
        )

    seconds: dict[str, float] = {}
    for outcome in rounds:
        for phase, taken in outcome.seconds.items():
            seconds[phase] = round(seconds.get(phase, 0.0) + taken, 3)
    speed = _speed(context, plan, pruned)
    columns = ("inputs", "outputs", "macs", "params")
    return Summary(
        model=type(original).__name__,
        settings=settings.to_dict(),
        before=figures("before", before, graph.macs, graph.params),
        after=figures("after", rounds[-1].after if rounds else before, cost.macs, cost.params),
        speedup={str(size): speedup(turns["before", size].seconds, turns["after", size].seconds) for size in BATCHES},
        time=speed,
        removed={"macs": 1 - cost.macs / graph.macs, "params": 1 - cost.params / graph.params},
        quality=context.quality,
        notes=(*_speed_notes(speed), *_notes(before, rounds, context.quality, settings.solve_only)),
        rounds=tuple(rounds),
        units={n: UnitFigures(unit.kind, unit.width, len(plan.keep[n])) for n, unit in graph.units.items()},
        layers={
            name: LayerFigures(*((getattr(layer, what), getattr(cost.layers[name], what)) for what in columns))
            for name, layer in graph.layers.items()
        },
        seconds=seconds,
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of the software that the figures depend on."""
    return {"prunus": version("prunus"), "python": platform.python_version(), "torch": torch.__version__}


def _speed(context: RunContext, plan: Plan, pruned: nn.Module) -> SpeedFigures | None:
    """What a latency target came to; None if the goal is another one."""
    table, asked = context.budget.table, context.settings.speedup
    if table is None or asked is None:
        return None
    graph, how = context.graph, table.measured_with
    before, after = table.by_layer(graph), table.by_layer(graph, plan)
    timed = time_beside(context, pruned) if is_checked(context) else None
    rounds = range(1, context.folder.finished_rounds() + 1)
    return SpeedFigures(
        engine=how.engine,
        batch=how.batch,
        threads=how.threads,
        machine=how.machine,
        asked=asked,
        predicted=table.predict(graph) / table.predict(graph, plan),
        measured=None if timed is None else timed.speedup,
        seconds=None if timed is None else (timed.before, timed.after),
        layers={
            **{name: (before[name], after[name]) for name in before},
            REST: (table.remainder_of(graph), table.remainder_of(graph, plan)),
        },
        checks=tuple(check for number in rounds for check in known_checks(context.folder, f"round-{number:02d}")),
    )


# -- for people to read


def headline(record: Mapping[str, Any]) -> list[list[str]]:
    """Rows of (what, before, after, change) of what summary.json holds."""
    summary = from_data(Summary, {key: value for key, value in record.items() if key not in ("format", "version")})
    before, after, text = summary.before, summary.after, summary.quality
    rows = []
    for part, was, now in (("held-out", before.holdout, after.holdout), ("test", before.test, after.test)):
        if was is None or now is None:
            continue
        rows.append([f"{part} {text.name}", text.shown(was.quality), text.shown(now.quality)])
        rows[-1].append(text.change(now.quality - was.quality))
        for name in (name for name in was.details if name in now.details):
            old, new = was.details[name], now.details[name]
            if old < 0.999:  # nothing can be said where nearly all images have it
                title = "top-5" if name == "top5" else name
                rows.append([f"{part} {title}", text.shown(old), text.shown(new), text.change(new - old)])
    for title, cost in {"MACs": "macs", "weights": "params", "bytes on disk": "bytes"}.items():
        old, new = getattr(before, cost), getattr(after, cost)
        rows.append([title, big_number(old), big_number(new), f"-{100 * (1 - new / old):.1f}%"])
    for size, seconds in before.latency.items():
        change = str(summary.speedup[size])
        rows.append([f"ms, batch {size}", f"{1e3 * seconds:.2f}", f"{1e3 * after.latency[size]:.2f}", change])
    if summary.time is not None:
        speed = summary.time
        title, change = f"ms, {speed.engine}, batch {speed.batch}", str(speed.measured)
        pair = speed.seconds
        if pair is None:
            pair = sum(s[0] for s in speed.layers.values()), sum(s[1] for s in speed.layers.values())
            title, change = f"{title}, predicted", f"{speed.predicted:.2f}x"
        rows.append([title, f"{1e3 * pair[0]:.2f}", f"{1e3 * pair[1]:.2f}", change])
    return rows


def _speed_notes(speed: SpeedFigures | None) -> list[str]:
    """The latency target in words: what was asked, predicted and measured."""
    if speed is None:
        return []
    asked, predicted = f"{speed.asked:g}x was asked", f"{speed.predicted:.2f}x predicted from the times of layers"
    if speed.measured is None:
        return [
            f"Speed: {asked}, {predicted}. The times of layers are of another machine ({speed.machine}), so it was "
            "not measured here: time the network there, with `prunus bench`."
        ]
    ratio = speed.measured
    measured = f"{ratio.ratio:.2f}x ({ratio.low:.2f} to {ratio.high:.2f}) measured"
    short = "" if ratio.high >= speed.asked else " This is less than asked: no split that was tried is faster."
    return [f"Speed in {speed.engine}, batch {speed.batch}: {asked}, {predicted}, {measured}.{short}"]


def _notes(before: Evaluation, rounds: Sequence[Outcome], quality: QualityText, solve_only: bool) -> list[str]:
    """What a user should know about repair and retraining, and the loss of quality in words."""
    said = []
    for outcome in rounds:
        cut = outcome.cut
        if cut is not None and cut.quality < min(outcome.before.quality, outcome.pruned.quality):
            lost, back = (quality.size(now.quality - cut.quality) for now in (outcome.before, outcome.pruned))
            said.append(
                f"Round {outcome.number}: the cut lost {lost} of held-out {quality.name}, and the repair brought back "
                f"{back}."
            )
    for outcome in rounds:  # retraining that did not help
        was, now = outcome.pruned.quality, outcome.after.quality
        reached = [epoch.holdout.quality for epoch in outcome.retraining if epoch.holdout is not None]
        if outcome.kept_epoch == 0 and reached:
            said.append(
                f"Round {outcome.number}: no epoch of retraining was as good on the held-out images as the network "
                f"before it ({quality.shown(was)}, at best {quality.shown(max(reached))} retrained), so that one is "
                "kept. A lower learning rate or more epochs may help."
            )
        elif outcome.kept_epoch is None and now < was:
            change = f"from {quality.shown(was)} to {quality.shown(now)}"
            said.append(f"Round {outcome.number}: your own fit lowered the held-out {quality.name} {change}.")
    after = rounds[-1].after if rounds else before
    if after.quality < before.quality:
        lost = quality.size(before.quality - after.quality)
        said.append(f"The held-out {quality.name} is {lost} lower than before pruning.")
        if solve_only:
            said.append("The network was repaired and not retrained. A few epochs (epochs=3) may recover more.")
    return said
