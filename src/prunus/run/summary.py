"""A finished run in numbers: before and after, layer by layer, and the time of each phase."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.run.context import RunContext
from prunus.run.folder import SPEED
from prunus.run.report_files import figures_on_test_images
from prunus.run.round import Outcome
from prunus.run.speed_check import is_checked, time_beside
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY, QualityWords
from prunus.timing.latency import Speedup, latency, speedup
from prunus.util.text import big_number

# What a goal in time came to: the speed-up that was asked, predicted and measured, and the time of every layer.

REST = "(the rest)"  # what is not a layer: additions, pooling, overhead


def speed_summary(context: RunContext, plan: Plan, pruned: nn.Module) -> dict[str, Any] | None:
    """The part of a summary about time; None if the goal is another one."""
    table, asked = context.budget.table, context.settings.speedup
    if table is None or asked is None:
        return None
    graph, how = context.graph, table.measured_with
    before, after = table.by_layer(graph), table.by_layer(graph, plan)
    layers = {name: [before[name], after[name]] for name in before}
    layers[REST] = [table.remainder_of(graph), table.remainder_of(graph, plan)]
    timed = time_beside(context, pruned) if is_checked(context) else None
    return {
        "engine": how.engine,
        "batch": how.batch,
        "threads": how.threads,
        "machine": how.machine,
        "asked": asked,
        "predicted": table.predict(graph) / table.predict(graph, plan),
        "measured": None if timed is None else asdict(timed.speedup),
        "seconds": None if timed is None else [timed.before, timed.after],
        "layers": layers,
        "checks": _checks(context),
    }


def _checks(context: RunContext) -> list[dict[str, Any]]:
    """The splits that were timed, in the order of the rounds."""
    folder = context.folder
    names = [f"{folder.round(n).name}/{SPEED}" for n in range(1, folder.finished_rounds() + 1)]
    return [check for name in names if folder.has(name) for check in folder.read(name)["checks"]]


def speed_row(time: Mapping[str, Any]) -> list[str]:
    """The row of the headline: what, before, after, speed-up."""
    title = f"ms, {time['engine']}, batch {time['batch']}"
    if time["measured"] is None:
        before, after = (sum(seconds[side] for seconds in time["layers"].values()) for side in (0, 1))
        return [f"{title}, predicted", f"{1e3 * before:.2f}", f"{1e3 * after:.2f}", f"{time['predicted']:.2f}x"]
    before, after = time["seconds"]
    return [title, f"{1e3 * before:.2f}", f"{1e3 * after:.2f}", str(Speedup(**time["measured"]))]


def speed_notes(time: Mapping[str, Any] | None) -> list[str]:
    """The promise in words: what was asked, predicted and measured."""
    if time is None:
        return []
    asked, predicted = f"{time['asked']:g}x was asked", f"{time['predicted']:.2f}x predicted from the times of layers"
    if time["measured"] is None:
        return [
            f"Speed: {asked}, {predicted}. The times of layers are of another machine ({time['machine']}), so it was "
            "not measured here: time the network there, with `prunus bench`."
        ]
    found = Speedup(**time["measured"])
    measured = f"{found.ratio:.2f}x ({found.low:.2f} to {found.high:.2f}) measured"
    short = "" if found.high >= time["asked"] else " This is less than asked: no split that was tried is faster."
    return [f"Speed in {time['engine']}, batch {time['batch']}: {asked}, {predicted}, {measured}.{short}"]


SUMMARY_FORMAT = "prunus-summary"
BATCHES = (1, 64)
TURNS = 20  # of each network at each batch size


def summarise(
    context: RunContext, plan: Plan, pruned: nn.Module, before: Evaluation, rounds: Sequence[Outcome]
) -> dict[str, Any]:
    """Everything a report needs."""
    graph, original = context.graph, context.original
    cost = graph.cost(plan)
    tests = figures_on_test_images(context, {"before": original, "after": pruned})
    times = _times(context, original, pruned)
    speed = speed_summary(context, plan, pruned)
    after = rounds[-1].after if rounds else before
    return {
        "format": SUMMARY_FORMAT,
        "version": 1,
        "model": type(original).__name__,
        "settings": context.settings.to_dict(),
        "before": {
            "holdout": before.__dict__,
            "test": tests["before"],
            "macs": graph.macs,
            "params": graph.params,
            "bytes": _bytes(original),
            "latency": times.median.get("before"),
            "quartiles": times.quartiles.get("before"),
        },
        "after": {
            "holdout": after.__dict__,
            "test": tests["after"],
            "macs": cost.macs,
            "params": cost.params,
            "bytes": _bytes(pruned),
            "latency": times.median.get("after"),
            "quartiles": times.quartiles.get("after"),
        },
        "speedup": times.speedup,
        "time": speed,
        "removed": {"macs": 1 - cost.macs / graph.macs, "params": 1 - cost.params / graph.params},
        "quality": asdict(context.quality),
        "notes": [*speed_notes(speed), *notes(before, rounds, context.quality, context.settings.solve_only)],
        "rounds": [outcome.to_dict() for outcome in rounds],
        "units": _units(graph, plan),
        "layers": _layers(graph, plan),
        "seconds": _seconds(rounds),
        "versions": {"prunus": version("prunus"), "python": platform.python_version(), "torch": torch.__version__},
    }


def headline(summary: Mapping[str, Any]) -> list[list[str]]:
    """Rows of (what, before, after, change) for a person to read."""
    before, after = summary["before"], summary["after"]
    words = QualityWords(**summary.get("quality", {}))
    rows = []
    for part in ("holdout", "test"):
        for key, title in (("top1", words.name), ("top5", "top-5")):
            was, now = (before[part] or {}).get(key), (after[part] or {}).get(key)
            if was is not None and now is not None and (key == "top1" or was < 0.999):
                name = f"{'held-out' if part == 'holdout' else part} {title}"
                rows.append([name, words.shown(was), words.shown(now), words.change(now - was)])
    for key, title in (("macs", "MACs"), ("params", "weights"), ("bytes", "bytes on disk")):
        rows.append(
            [title, big_number(before[key]), big_number(after[key]), f"-{100 * (1 - after[key] / before[key]):.1f}%"]
        )
    for size, was in (before["latency"] or {}).items():
        now = after["latency"][size]
        faster = Speedup(**summary["speedup"][size])
        rows.append([f"ms, batch {size}", f"{1e3 * was:.2f}", f"{1e3 * now:.2f}", str(faster)])
    if summary.get("time"):
        rows.append(speed_row(summary["time"]))
    return rows


def notes(
    before: Evaluation, rounds: Sequence[Outcome], quality: QualityWords = ACCURACY, solve_only: bool = False
) -> list[str]:
    """What a person should know about repair and retraining, and the loss of quality in words."""
    found = [about(outcome, quality) for about in (_about_repair, _about_retraining) for outcome in rounds]
    said = [words for words in found if words]
    after = rounds[-1].after if rounds else before
    if after.quality < before.quality:
        lost = quality.size(before.quality - after.quality)
        said.append(f"The held-out {quality.name} is {lost} lower than before pruning.")
        if solve_only:
            said.append("The network was repaired and not retrained. A few epochs (--epochs 3) may recover more.")
    return said


def _about_repair(outcome: Outcome, quality: QualityWords) -> str | None:
    """How much of what the cut lost in this round the repair brought back."""
    if outcome.cut is None or outcome.cut.quality >= min(outcome.before.quality, outcome.pruned.quality):
        return None
    lost, back = (quality.size(now.quality - outcome.cut.quality) for now in (outcome.before, outcome.pruned))
    return (
        f"Round {outcome.number}: the cut lost {lost} of held-out {quality.name}, and the repair brought back {back}."
    )


def _about_retraining(outcome: Outcome, quality: QualityWords) -> str | None:
    """A sentence if retraining in this round did not help."""
    was, now = outcome.pruned.quality, outcome.after.quality
    reached = [epoch.holdout.quality for epoch in outcome.retraining if epoch.holdout is not None]
    if outcome.kept_epoch == 0 and reached:
        return (
            f"Round {outcome.number}: no epoch of retraining was as good on the held-out images as the network before "
            f"it ({quality.shown(was)}, at best {quality.shown(max(reached))} retrained), so that one is kept. A lower "
            "learning rate or more epochs may help."
        )
    if outcome.kept_epoch is None and now < was:
        change = f"from {quality.shown(was)} to {quality.shown(now)}"
        return f"Round {outcome.number}: your own fit lowered the held-out {quality.name} {change}."
    return None


@dataclass
class _Times:
    """Seconds of a forward pass of both networks at each batch size, and the speed-ups."""

    median: dict[str, dict[str, float]] = field(default_factory=dict)
    quartiles: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    speedup: dict[str, Any] = field(default_factory=dict)


def _times(context: RunContext, original: nn.Module, pruned: nn.Module) -> _Times:
    """The two networks take turns."""
    found = _Times()
    timings = latency(
        {"before": original, "after": pruned},
        context.graph.example,
        batch_sizes=BATCHES,
        rounds=TURNS,
        progress=lambda done, total: context.say("latency", done, total),
    )
    for timing in timings:
        size = str(timing.batch_size)
        found.median.setdefault(timing.name, {})[size] = timing.median
        found.quartiles.setdefault(timing.name, {})[size] = list(timing.quartiles)
    turns = {(timing.name, timing.batch_size): timing.seconds for timing in timings}
    for batch in BATCHES:
        found.speedup[str(batch)] = asdict(speedup(turns["before", batch], turns["after", batch]))
    return found


def _units(graph: ChannelGraph, plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        name: {"kind": unit.kind, "width": unit.width, "kept": len(plan.keep[name])}
        for name, unit in graph.units.items()
    }


def _layers(graph: ChannelGraph, plan: Plan) -> dict[str, dict[str, list[int]]]:
    """Layer -> inputs, outputs, MACs and weights, each before and after."""
    after = graph.cost(plan).layers
    return {
        name: {
            what: [getattr(layer, what), getattr(after[name], what)] for what in ("inputs", "outputs", "macs", "params")
        }
        for name, layer in graph.layers.items()
    }


def _bytes(model: nn.Module) -> int:
    """Bytes of the tensors that are saved."""
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def _seconds(rounds: Sequence[Outcome]) -> dict[str, float]:
    total: dict[str, float] = {}
    for outcome in rounds:
        phases: Mapping[str, float] = outcome.seconds
        for phase, seconds in phases.items():
            total[phase] = round(total.get(phase, 0.0) + seconds, 3)
    return total
