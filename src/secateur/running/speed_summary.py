"""What a goal in time came to: the speed-up that was asked, predicted and measured, and the time of every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from secateur.channels.plan import Plan
from secateur.measuring.speedup import Speedup
from secateur.running.folder import SPEED
from secateur.running.run_context import RunContext
from secateur.running.speed_check import is_checked, time_beside

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
            "not measured here: time the network there, with `secateur bench`."
        ]
    found = Speedup(**time["measured"])
    measured = f"{found.ratio:.2f}x ({found.low:.2f} to {found.high:.2f}) measured"
    short = "" if found.high >= time["asked"] else " This is less than asked: no split that was tried is faster."
    return [f"Speed in {time['engine']}, batch {time['batch']}: {asked}, {predicted}, {measured}.{short}"]
