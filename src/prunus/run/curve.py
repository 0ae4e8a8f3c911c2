"""Quality over speed: a run for each of several speed-ups. What does not depend on the goal is measured once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from prunus.errors import DecideError
from prunus.run.compress import Compressed, checked, kept_while_used, run, run_folder, shared_network
from prunus.run.context import RunData
from prunus.run.folder import RunFolder
from prunus.run.settings import SPEEDUPS, Settings, goals_of
from prunus.run.summary import Summary, read_summary, reported
from prunus.util.batches import Batches
from prunus.util.files import write_atomically
from prunus.util.options import replaced
from prunus.util.progress import PhaseProgress, phases, shown
from prunus.util.state import generators_kept
from prunus.util.text import html_table, short_table
from prunus.util.typed_json import to_data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

FORMAT, VERSION, CURVE, PICTURE = "prunus-curve", 1, "curve.json", "curve"
TITLES = ("asked", "measured", "95% interval", "quality", "change", "MACs removed", "goal")


@dataclass(frozen=True)
class CurvePoint:
    asked: float  # speed-up
    ratio: float  # the speed-up that was measured, and the ends of its 95% interval
    low: float
    high: float
    quality: float  # of the pruned network, on the test images if there are any, or else on the held-out ones
    change: float  # from the original network's
    macs_removed: float  # share
    reached: bool  # whether the goal was reached
    folder: str  # name of the run's folder in the curve's


@dataclass(frozen=True, repr=False)
class Curve:
    """Quality over measured speed-up, and the run behind each point.

    Attributes:
        results: Asked speed-up -> the run, as `prunus.compress` returns it.
        missed: Asked speed-ups that are out of reach -> why.
        folder: The curve's folder, with a folder for each run; None if it was a temporary one.
    """

    results: Mapping[float, Compressed]
    missed: Mapping[float, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def reached(self) -> bool:
        return not self.missed and all(result.reached for result in self.results.values())

    @property
    def summary(self) -> Summary:
        """Of the first run: what all runs have in common is there."""
        return read_summary(next(iter(self.results.values())).summary)

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        """The runs in numbers, in the order of the speed-ups that were asked for."""
        points = []
        for asked, result in self.results.items():
            summary = read_summary(result.summary)
            was, now = (each.quality for each in reported(summary.before, summary.after)[1:])
            speed, gone, reached = summary.speeds[0], summary.removed["macs"], summary.goal.reached
            measured = (speed.ratio, speed.low, speed.high)
            points.append(CurvePoint(asked, *measured, now, now - was, gone, reached, folder_name(asked)))
        return tuple(points)

    def rows(self) -> list[tuple[str, ...]]:
        """The table of the curve as text, under `TITLES`."""
        quality = self.summary.quality
        reached = [
            (
                f"{point.asked:g}x",
                f"{point.ratio:.2f}x",
                f"{point.low:.2f} to {point.high:.2f}",
                quality.shown(point.quality),
                quality.change(point.change),
                f"{100 * point.macs_removed:.1f}%",
                "reached" if point.reached else "not reached",
            )
            for point in self.points
        ]
        return [*reached, *((f"{asked:g}x", "", "", "", "", "", "out of reach") for asked in self.missed)]

    @property
    def title(self) -> str:
        """What was measured, where, and the original network's quality."""
        summary = self.summary
        (part, base, _), speed = reported(summary.before, summary.after), summary.speeds[0]
        where = f"{speed.engine}, batch {speed.batch}, {speed.threads} thread{'s' * (speed.threads > 1)}"
        return f"{summary.model} in {where}: {part} {summary.quality.name} {summary.quality.shown(base.quality)} before"

    def figure(self) -> Figure:
        """Quality over measured speed-up, with its 95% interval, from the original network at 1."""
        from prunus.plots.style import PAGE, RULE, figure, legend, line, styled

        summary, points = self.summary, self.points
        base, *values = (
            summary.quality.factor * value
            for value in (reported(summary.before, summary.after)[1].quality, *(point.quality for point in points))
        )
        ratios = [point.ratio for point in points]
        dots = [{**line(number), "linestyle": "none"} for number in range(2)]
        spread = [[each.ratio - each.low for each in points], [each.high - each.ratio for each in points]]
        order = np.argsort([1.0, *ratios])
        fig, axes = figure(PAGE, 3.6)
        with styled():
            axes.plot(np.array([1.0, *ratios])[order], np.array([base, *values])[order], color=RULE, zorder=1)
            axes.errorbar(ratios, values, xerr=spread, label="pruned", capsize=2, elinewidth=1, **dots[0])
            axes.plot([1.0], [base], label="original network", **dots[1])
            for ratio, value in zip(ratios, values, strict=True):
                axes.annotate(f"{value:.4g}", (ratio, value), (4, 5), textcoords="offset points", fontsize=7.5)
            axes.set_xlabel("measured speed-up")
            axes.set_ylabel(summary.quality.axis)
            axes.set_title(self.title)
            axes.margins(0.08, 0.15)
            legend(fig, axes, where="below", columns=2)
        return fig

    def to_dict(self) -> dict[str, Any]:
        """What curve.json holds: plain values."""
        summary = self.summary
        record = {
            "format": FORMAT,
            "version": VERSION,
            "model": summary.model,
            "measured": {name: getattr(summary.speeds[0], name) for name in ("engine", "batch", "threads", "clock")},
            "quality": summary.quality,
            "part": "holdout" if summary.before.test is None else "test",
            "original": reported(summary.before, summary.after)[1].quality,
            "points": self.points,
            "missed": {f"{asked:g}": why for asked, why in self.missed.items()},
        }
        plain: dict[str, Any] = to_data(record)
        return plain

    def write(self, folder: str | Path) -> None:
        from prunus.plots.style import save

        write_atomically(Path(folder) / CURVE, f"{json.dumps(self.to_dict(), indent=2)}\n".encode())
        save(self.figure(), folder, PICTURE)

    def __repr__(self) -> str:
        return short_table(self.title, TITLES, self.rows())

    def _repr_html_(self) -> str:
        """The same for notebooks, with the picture."""
        from prunus.plots.style import as_svg

        svg = as_svg(self.figure(), PICTURE)
        return html_table(f"<b>{escape(self.title)}</b>", [TITLES, *self.rows()]) + svg[svg.index("<svg") :]


def curve(
    model: nn.Module,
    train: Batches,
    holdout: Batches,
    speedups: Sequence[float] = SPEEDUPS,
    *,
    test: Batches | None = None,
    score_on: Batches | None = None,
    example: Any = None,
    settings: Settings | None = None,
    folder: str | Path | None = None,
    progress: PhaseProgress | bool | None = None,
    **changes: Any,
) -> Curve:
    """Prune a trained network for each of several speed-ups; `model` itself is not changed.

        curve = prunus.curve(model, train, holdout, speedups=[1.25, 1.5, 2, 3])
        curve                               # the table; in a notebook also the picture
        curve.results[1.5].model

    Scores, the times of layers and the original network's quality are measured once for all of them.

    Args:
        model: The trained network.
        train: Batches of (images, labels) to score and repair on, and to retrain on.
        holdout: Labelled images that all decisions read.
        speedups: How many times as fast the networks should be.
        test: Read at the end, for the figures only.
        score_on: Batches to score on; `train` by default.
        example: An input of the network; the first training image by default.
        settings: Everything but the goal.
        folder: Where the runs, curve.json and curve.png are written: a run for 1.5x is speedup-1.5. Called again with
            the same arguments, an interrupted curve continues. Without it, a temporary folder is used.
        progress: As in `prunus.compress`.
        **changes: Fields of `Settings` by name. Each network is timed in the asked engine; timing=True adds the others.

    Raises:
        DecideError: Every speed-up is out of reach, or another goal was given.
    """
    base: Settings = replaced(settings or Settings(timing=False), changes, DecideError)
    goals = goals_of(base, speedups)
    data, chosen = checked(model, goals[0], train, holdout, test, score_on)
    goals = [replace(goal, task=chosen.task) for goal in goals]
    with run_folder(folder) as place, generators_kept(), shown(progress, phases) as show:

        def in_place(goal: Settings) -> RunFolder:
            path = place.path / folder_name(goal.speedup or 1.0)
            return RunFolder(path, writes=place.writes, is_temporary=place.is_temporary)

        drawn = run_goals(model, example, goals, in_place, data, show)
        if place.writes:
            drawn.write(place.path)
    return kept_while_used(drawn if place.is_temporary else replace(drawn, folder=place.path), place)


def folder_name(speedup: float) -> str:
    """The name of a run's folder in the curve's."""
    return f"speedup-{speedup:g}"


def run_goals(
    model: nn.Module,
    example: Any,
    goals: Sequence[Settings],
    folder_of: Callable[[Settings], RunFolder],
    data: RunData,
    progress: PhaseProgress,
) -> Curve:
    """The runs of a curve, which share what they measure. One that is out of reach is left out, with the reason."""
    shared = shared_network(model, example, goals[0], data)
    results: dict[float, Compressed] = {}
    missed: dict[float, DecideError] = {}
    for number, goal in enumerate(goals, 1):
        asked, folder = goal.speedup or 1.0, folder_of(goal)
        title = f"{asked:g}x ({number} of {len(goals)})"

        def show(phase: str, done: int, total: int | None, note: str, title: str = title) -> None:
            progress(f"{title}: {phase}", done, total, note)

        try:
            results[asked] = run(goal, folder, data, show, shared)
        except DecideError as error:
            missed[asked] = error
        shared.earlier = (*shared.earlier, folder.path)
    if not results:
        raise next(iter(missed.values()))
    for each in missed.values():
        logger.warning("%s", each)
    return Curve(results, {asked: str(each) for asked, each in missed.items()})
