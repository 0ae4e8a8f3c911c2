"""Charts of one round: the sensitivity of each unit, and a histogram of the scores of its channels."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from secateur.deciding.sensitivity import Sensitivity, Tried
from secateur.report import svg
from secateur.report.finished_run import Round
from secateur.report.run_charts import BAR, BARS, END, ROW
from secateur.scoring.scores import Vector

BINS = 24
LOG_FROM = 100.0  # positive scores that span this factor are drawn on a logarithmic axis


def sensitivity_chart(done: Round) -> str:
    """One bar per unit: what is lost when it loses channels, without retraining."""
    found = done.sensitivity
    return "" if found is None or not found.tried else _bars(found, done)


def lost_of(found: Sensitivity, row: Tried) -> float:
    """How much worse the network is without these channels: points of accuracy, loss, or the user's own measure."""
    return (100 if _per_cent(found) else 1) * (found.base_value - row.value)


def lost_name(found: Sensitivity) -> str:
    """The unit of `lost_of`."""
    if _per_cent(found):
        return f"points of {found.measure} lost"
    return "loss added" if found.measure == "loss" else f"{found.measure} lost"


def _per_cent(found: Sensitivity) -> bool:
    """Whether values are fractions of 1. Files of older versions do not say the unit."""
    return found.unit == "%" or found.measure == "accuracy"


def _number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 or value == 0 else f"{value:.2g}"


def _bars(found: Sensitivity, done: Round) -> str:
    losses = {name: lost_of(found, row) for name, row in found.tried.items()}
    finite = [lost for lost in losses.values() if math.isfinite(lost)]
    across = svg.Scale(min(0.0, *finite, 0.0), max(1e-9, *finite, 0.0), BARS, END)
    body = []
    for i, (name, row) in enumerate(found.tried.items()):
        y, lost = i * ROW + 4, losses[name]
        chosen = done.outcome.chosen.get(name, 0)
        title = (
            f"{name}: {_number(lost)} {lost_name(found)} when it loses {row.channels} of {row.width} channels, without "
            f"retraining. " + (f"Chosen: it lost {chosen}." if chosen else "Not chosen.")
        )
        # A cut that breaks the network gives a loss of inf or nan: draw a full bar.
        left, right = sorted((across(0), across(lost if math.isfinite(lost) else across.high)))
        body.append(svg.name(y + 10, name, "strong" if chosen else ""))
        body.append(svg.rect(left, y, max(right - left, 0.3), BAR, "kept" if chosen else "other", title))
        body.append(svg.text(right + 1, y + 10, f"{_number(lost)} (−{row.channels})", "small"))
    body.append(svg.line(across(0), 0, across(0), len(found.tried) * ROW, "axis"))
    best = found.ranked()[0]
    label = (
        f"Round {done.outcome.number}: {lost_name(found)} by each of {len(found.tried)} units. "
        f"The least sensitive is {best}. Chosen: {', '.join(done.outcome.chosen) or 'none'}."
    )
    return svg.chart(body, len(found.tried) * ROW + 6, label, "sensitivity")


# -- scores


def scores_chart(done: Round, unit: str) -> str:
    """Histogram of the scores of one unit: removed channels in orange, kept ones in blue, the cut as a dashed line."""
    values = np.asarray(done.scores.values[unit], dtype=np.float64)  # [channels]
    kept = np.zeros(len(values), dtype=bool)
    kept[list(done.step.keep[unit])] = True
    logarithmic = bool(values.min() > 0 and values.max() / values.min() >= LOG_FROM)
    places = np.log10(values) if logarithmic else values
    cut = cut_of(places, kept)
    edges = bin_edges(float(places.min()), float(places.max()), cut)
    of_bin = np.clip(np.digitize(places, edges) - 1, 0, len(edges) - 2)  # [channels]
    tallest = float(np.bincount(of_bin).max())
    bottom = 92.0
    down, across = svg.Scale(0, tallest, bottom, 22), svg.Scale(float(edges[0]), float(edges[-1]), 0, 100)
    body = []
    for i in np.unique(of_bin):
        left, right = float(edges[i]), float(edges[i + 1])
        span = f"scores {_score(left, logarithmic)} to {_score(right, logarithmic)}"
        floor = bottom
        for kind, word, mine in (("cut", "removed", ~kept), ("kept", "kept", kept)):
            channels = np.flatnonzero((of_bin == i) & mine)
            if len(channels):
                size = bottom - down(float(len(channels)))
                floor -= size
                title = f"{span}: {len(channels)} {word} ({_which(done, unit, channels)})"
                body.append(svg.rect(across(left), floor, across(right) - across(left) - 0.4, size, kind, title))
    body += _score_axis(edges, cut, across, bottom, logarithmic)
    removed = int((~kept).sum())
    label = f"Scores of the {len(values)} channels of {unit} in round {done.outcome.number}; {removed} were removed."
    return svg.chart(body, bottom + 20, label, "scores")


def bin_edges(low: float, high: float, cut: float | None) -> Vector:
    """Edges of equal bins from low to high. The cut is an edge, so that no bin lies on both sides of it."""
    if not high > low:
        return np.array([low - 0.5, low + 0.5])
    width = (high - low) / BINS
    if cut is None:
        return low + width * np.arange(BINS + 1, dtype=np.float64)
    below, above = math.ceil((cut - low) / width - 1e-9), math.ceil((high - cut) / width - 1e-9)
    return cut + width * np.arange(-max(below, 1), max(above, 1) + 1, dtype=np.float64)


def _score(place: float, logarithmic: bool) -> str:
    return f"{10.0**place if logarithmic else place:.3g}"


def _score_axis(edges: Vector, cut: float | None, across: svg.Scale, bottom: float, logarithmic: bool) -> list[str]:
    body = [
        svg.line(0, bottom, 100, bottom, "axis"),
        svg.text(0, bottom + 15, _score(float(edges[0]), logarithmic), "small"),
        svg.text(100, bottom + 15, _score(float(edges[-1]), logarithmic), "small", "end"),
    ]
    if logarithmic:
        body.append(svg.text(50, bottom + 15, "log scale", "small", "middle"))
    if cut is not None:
        x = across(cut)
        anchor = "start" if x < 15 else "end" if x > 85 else "middle"
        words = _score(cut, logarithmic)
        body.append(svg.line(x, 14, x, bottom, "goal", f"the cut: {words}"))
        body.append(svg.text(x, 10, f"cut {words}", "small", anchor))
    return body


def cut_of(places: Vector, kept: npt.NDArray[np.bool_]) -> float | None:
    """The middle between the strongest removed and the weakest kept channel; None if they overlap.

    They can overlap if channels are removed in groups.
    """
    if kept.all() or not kept.any():
        return None
    strongest, weakest = float(places[~kept].max()), float(places[kept].min())
    return (strongest + weakest) / 2 if strongest <= weakest else None


def _which(done: Round, unit: str, channels: npt.NDArray[np.int64], most: int = 8) -> str:
    """The channels by their numbers in the original network."""
    numbers = done.numbers.get(unit, ())
    names = [str(numbers[c]) if len(numbers) > c else str(c) for c in channels]
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return f"channel{'' if len(names) == 1 else 's'} {', '.join(names[:most])}{more}"
