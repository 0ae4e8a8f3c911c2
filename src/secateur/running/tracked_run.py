"""What a run sends to a tracker: epochs, rounds, plans and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from secateur.channels.plan import Plan
from secateur.measuring.accuracy import Accuracy
from secateur.running.folder import RunFolder
from secateur.running.rounds import Outcome
from secateur.running.run_context import RunContext
from secateur.running.settings import Settings
from secateur.training.trackers import Log, tracking


@contextmanager
def tracked(settings: Settings, folder: RunFolder, kept: bool) -> Iterator[Log]:
    """The run's tracker; the first of several processes has one. kept: whether the folder outlives the run."""
    name = settings.tracker if folder.writes else None
    with tracking(name, folder.path if kept else None, settings.to_dict()) as log:
        yield log


def track_base(context: RunContext, before: Accuracy) -> None:
    """The original network."""
    figures = {f"round/holdout {context.quality.name}": before.top1, "round/macs": context.graph.macs}
    context.track({**figures, "round/params": context.graph.params}, 0)


def track_round(context: RunContext, outcome: Outcome, plan: Plan) -> None:
    """A round and the plan that leads from the original network to its end: the channels that each unit keeps."""
    name = context.quality.name
    context.track(
        {
            f"round/holdout {name}": outcome.after.top1,
            f"round/holdout {name} as cut": None if outcome.cut is None else outcome.cut.top1,
            f"round/holdout {name} before retraining": outcome.pruned.top1,
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
