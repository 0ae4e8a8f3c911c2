"""Charts of the whole run: quality against MACs in each round, and channels before and after."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prunus.decide.sensitivity import Sensitivity, Tried
from prunus.report import svg
from prunus.report.read import FinishedRun, Round
from prunus.report.text import percent, reported_accuracy
from prunus.score.scores import Vector
from prunus.tasks.quality import QualityWords
from prunus.train.checkpoint import Epoch

# Axes of a chart: a quality, or another value, against another quantity.

LABEL = 11.0  # per cent of the width of a phone that a number needs; closer numbers would overlap


@dataclass(frozen=True)
class Quantity:
    """What an axis shows: its name, unit sign, smallest range, and whether it has only whole numbers."""

    name: str
    sign: str = ""
    least: float = 0.0
    whole: bool = False


MACS = Quantity("MACs removed", "%", least=5.0)
EPOCHS = Quantity("epochs of retraining", whole=True)


@dataclass(frozen=True)
class Axes:
    """Quality, times its factor (vertical), against another quantity (horizontal)."""

    across: svg.Scale
    down: svg.Scale
    height: float
    counts: Quantity
    quality: QualityWords

    @classmethod
    def around(
        cls,
        values: Sequence[float],
        reached: Sequence[float],
        height: float,
        quality: QualityWords,
        counts: Quantity = MACS,
    ) -> Axes:
        """Axes that contain all values, with space for the numbers below and above the points."""
        low, high = min(values), max(values)
        whole = quality.factor if quality.unit == "%" else max(abs(low), abs(high)) or 1.0
        air = max(0.002 * whole, 0.12 * (high - low))
        # An accuracy is between 0 and 100; a user's own measure may be anything.
        bottom = max(0.0, low - 2 * air) if low >= 0 else low - 2 * air
        top = min(100.0, high + air) if high <= 100 and quality.unit == "%" else high + air
        down = svg.Scale(bottom, top, height - 54, 34)
        return cls(svg.Scale(0, max(counts.least, *reached), 16, 93), down, height, counts, quality)

    def at(self, gone: float, value: float) -> tuple[float, float]:
        """Position of a point: per cent of the width, pixels from the top."""
        return self.across(gone), self.down(value)

    def apart(self, gone: Sequence[float]) -> set[int]:
        """Points whose numbers do not overlap: the first, the last, and some in between."""
        last = len(gone) - 1
        found = [0, last]
        for i in range(1, last):
            if all(abs(self.across(gone[i]) - self.across(gone[j])) >= LABEL for j in found):
                found.append(i)
        return set(found)

    def grid(self) -> list[str]:
        """Grid lines, numbers and axis titles."""
        bottom = self.down.start
        body = []
        for value in svg.ticks(self.down.low, self.down.high, 4):
            body.append(svg.line(0, self.down(value), 100, self.down(value), "grid"))
            body.append(
                svg.text(0, self.down(value) - 4, f"{value:g}{'%' if self.quality.unit == '%' else ''}", "small")
            )
        for value in svg.ticks(0, self.across.high, 6):
            if self.counts.whole and value != int(value):
                continue
            body.append(svg.line(self.across(value), bottom, self.across(value), bottom + 5, "axis"))
            number = f"{value:g}{self.counts.sign}"
            body.append(svg.text(self.across(value), bottom + 18, number, "small", "middle"))
        body.append(svg.line(0, bottom, 100, bottom, "axis"))
        body.append(svg.text(53, bottom + 38, self.counts.name, "small", "middle"))
        body.append(svg.text(0, 12, self.quality.name, "small"))
        return body


MANY_EPOCHS = 40  # if there are more, points are smaller
NAMES, BARS, END = 38.0, 40.0, 80.0  # per cent of the width: names end, bars begin, longest bar ends
ROW, BAR = 21.0, 12.0  # pixels: a row, the bar in it


@dataclass(frozen=True)
class Course:
    """A run: MACs removed in per cent, quality after retraining (from the start on) and after each cut, as shown."""

    gone: tuple[float, ...]
    retrained: tuple[float, ...]
    cut: tuple[float, ...]
    tested: tuple[float, ...]  # before and after; empty without test images

    @classmethod
    def of(cls, run: FinishedRun) -> Course:
        """The course of a run."""
        part, was, now = reported_accuracy(run)
        factor = run.quality.factor
        return cls(
            (0.0, *(100 * (1 - r.outcome.macs / run.before.macs) for r in run.rounds)),
            (factor * run.before.holdout.quality, *(factor * r.outcome.after.quality for r in run.rounds)),
            tuple(factor * r.outcome.pruned.quality for r in run.rounds),
            (factor * was.quality, factor * now.quality) if part == "test" else (),
        )


def rounds_chart(run: FinishedRun) -> str:
    """Quality against MACs removed: on held-out images as a line, on test images (before and after) as green points."""
    course, words = Course.of(run), run.quality
    axes = Axes.around([*course.retrained, *course.tested], course.gone, height=270, quality=words)
    body, labelled = [*axes.grid(), *_limits(run, axes)], axes.apart(course.gone)
    for i in range(1, len(course.gone)):
        start, end = axes.at(course.gone[i - 1], course.retrained[i - 1]), axes.at(course.gone[i], course.retrained[i])
        body.append(svg.line(*start, *end, "curve"))
    for i, (gone, value) in enumerate(zip(course.gone, course.retrained, strict=True)):
        when = "before pruning" if i == 0 else f"after round {i}"
        x, y = axes.at(gone, value)
        body.append(
            svg.dot(x, y, "kept", f"held-out, {when}: {words.scaled(value)} with {gone:.1f}% of the MACs removed")
        )
        if i in labelled:
            # Away from the line at the first point, and not on the side of the test accuracy's number.
            above = i == 0
            if course.tested and i in (0, len(run.rounds)):
                above = value > course.tested[-1 if i else 0]
            body.append(svg.text(x, y - 10 if above else y + 19, words.scaled(value, 1), "small strong", "middle"))
    for gone, value, when in zip((0.0, course.gone[-1]), course.tested, ("before", "after"), strict=False):
        x, y = axes.at(gone, value)
        body.append(svg.dot(x, y, "test", f"test, {when}: {words.scaled(value)} with {gone:.1f}% of the MACs removed"))
        above = value >= course.retrained[0 if when == "before" else -1]
        body.append(svg.text(x, y - 10 if above else y + 19, words.scaled(value, 1), "small", "middle"))
    label = (
        f"{words.title} in each round. Held-out {words.name} starts at {words.scaled(course.retrained[0])} and ends at "
        f"{words.scaled(course.retrained[-1])} with {course.gone[-1]:.1f}% of the MACs removed."
    )
    return svg.chart(body, axes.height, label, "rounds")


def cuts_chart(run: FinishedRun) -> str:
    """Quality after each cut and after retraining; "" if there was no retraining."""
    course, shown = Course.of(run), run.quality
    if course.cut == course.retrained[1:]:
        return ""
    axes = Axes.around([*course.retrained, *course.cut], course.gone, height=210, quality=shown)
    body, labelled = axes.grid(), axes.apart(course.gone)
    for i, value in enumerate(course.cut, start=1):
        gone, regained = course.gone[i], course.retrained[i]
        (x, y), (_, top) = axes.at(gone, value), axes.at(gone, regained)
        title = (
            f"round {i}: {shown.scaled(value)} after the cut, {shown.scaled(regained)} after retraining, "
            f"{gone:.1f}% of the MACs removed"
        )
        body += [svg.line(x, y, x, top, "regain", title), svg.dot(x, y, "cut", title), svg.dot(x, top, "kept", title)]
        if i in labelled:
            body.append(svg.text(x - 1.6, y + 4, shown.scaled(value, 1), "small", "end"))
    words = "; ".join(
        f"round {i}: {shown.scaled(c, 1)}, then {shown.scaled(course.retrained[i], 1)}"
        for i, c in enumerate(course.cut, start=1)
    )
    return svg.chart(
        body, axes.height, f"Held-out {shown.name} directly after each cut and after retraining. {words}.", "cuts"
    )


def epochs_chart(run: FinishedRun) -> str:
    """Held-out quality in each epoch of all rounds, starting after each cut; "" for fewer than two epochs."""
    courses, shown = [], run.quality  # of each round: (epochs done so far, quality), its cut first
    done = 0
    for outcome in (one.outcome for one in run.rounds):
        known = [
            (done + e.number, shown.factor * e.holdout.quality) for e in outcome.retraining if e.holdout is not None
        ]
        courses.append([(done, shown.factor * outcome.pruned.quality), *known])
        done += len(outcome.retraining)
    if done < 2:
        return ""
    values = [value for course in courses for _, value in course]
    axes = Axes.around(values, [done], height=230, counts=EPOCHS, quality=shown)
    body, radius = axes.grid(), 5 if done <= MANY_EPOCHS else 2
    for number, course in enumerate(courses, start=1):
        for start, end in itertools.pairwise(course):
            body.append(svg.line(*axes.at(*start), *axes.at(*end), "curve"))
        for i, (epoch, value) in enumerate(course):
            what = f"round {number}, {f'epoch {i}' if i else 'before retraining'}: {shown.scaled(value)}"
            body.append(svg.dot(*axes.at(epoch, value), "kept" if i else "cut", what, radius))
    ends = [(shown.scaled(course[0][1], 1), shown.scaled(course[-1][1], 1)) for course in courses]
    words = "; ".join(f"round {i}: {first} to {last}" for i, (first, last) in enumerate(ends, start=1))
    return svg.chart(body, axes.height, f"Held-out {shown.name} over the epochs of retraining. {words}.", "epochs")


def _limits(run: FinishedRun, axes: Axes) -> list[str]:
    """Lines for the goal in MACs and for the lowest quality allowed."""
    body = []
    asked = run.settings
    target = asked.target if asked.target is not None else (1 - asked.macs / run.before.macs if asked.macs else None)
    if target is not None and 100 * target <= axes.across.high * 1.05:
        x = axes.across(100 * target)
        body.append(svg.line(x, 18, x, axes.down.start, "goal", f"goal: {percent(target)} of the MACs removed"))
        body.append(svg.text(x, 12, "goal", "small", "middle"))
    if asked.max_drop is not None:
        floor = run.quality.factor * run.before.holdout.quality - asked.max_drop
        if floor >= axes.down.low:
            y = axes.down(floor)
            words = f"lowest held-out {run.quality.name} allowed: {run.quality.scaled(floor)}"
            body.append(svg.line(0, y, 100, y, "goal", words))
    return body


def widths_chart(run: FinishedRun) -> str:
    """Channels of each unit: all in grey, kept ones in blue."""
    across = svg.Scale(0, max(unit.width for unit in run.units.values()), BARS, END)
    body = []
    for i, (name, unit) in enumerate(run.units.items()):
        y = i * ROW + 4
        lost = unit.width - unit.kept
        title = f"{name}: {unit.kept} of {unit.width} channels kept, {lost} removed ({percent(lost / unit.width)})"
        body.append(svg.name(y + 10, name, "strong" if lost else ""))
        body.append(svg.rect(BARS, y, across(unit.width) - BARS, BAR, "lost", title))
        body.append(svg.rect(BARS, y, across(unit.kept) - BARS, BAR, "kept", title))
        words = f"{unit.kept} of {unit.width}" if lost else f"{unit.width}"
        body.append(svg.text(across(unit.width) + 1, y + 10, words, "small"))
    narrowed = sum(unit.kept < unit.width for unit in run.units.values())
    label = f"Widths of {len(run.units)} units before and after; {narrowed} of them lost channels."
    return svg.chart(body, len(run.units) * ROW + 6, label, "widths")


# Charts of one round: the sensitivity of each unit, and a histogram of the scores of its channels.

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


# Charts of retraining: loss and learning rate in each epoch of all rounds.

Numbered = tuple[int, int, Epoch]  # epochs so far, round, epoch
LOSS, RATE = QualityWords("loss", ""), QualityWords("learning rate", "")


def losses_chart(run: FinishedRun) -> str:
    """Loss over training batches in blue, on held-out images in orange; "" for fewer than two epochs."""
    found = _epochs(run)
    trained = [(place, number, epoch.loss) for place, number, epoch in found]
    held = [(place, number, e.holdout.loss) for place, number, e in found if e.holdout is not None]
    label = f"Loss in each of {len(found)} epochs of retraining, on training batches and on held-out images."
    return _chart([("kept", "training", trained), ("cut", "held-out", held)], LOSS, 210, label, "losses")


def rates_chart(run: FinishedRun) -> str:
    """The learning rate at the end of each epoch; "" for fewer than two epochs."""
    found = [(place, number, epoch.lr) for place, number, epoch in _epochs(run)]
    label = f"Learning rate at the end of each of {len(found)} epochs."
    return _chart([("kept", "learning rate", found)], RATE, 150, label, "rates")


def _epochs(run: FinishedRun) -> list[Numbered]:
    """The epochs of all rounds in a row, counted from 1."""
    all_epochs = [(done.outcome.number, epoch) for done in run.rounds for epoch in done.outcome.retraining]
    return [(place, number, epoch) for place, (number, epoch) in enumerate(all_epochs, start=1)]


def _chart(
    curves: Sequence[tuple[str, str, list[tuple[int, int, float]]]],
    quantity: QualityWords,
    height: float,
    label: str,
    kind: str,
) -> str:
    """Curves of (epochs so far, round, value); a line does not cross from one round to the next."""
    finite = [(k, name, [row for row in rows if math.isfinite(row[2])]) for k, name, rows in curves]
    values = [value for _, _, rows in finite for _, _, value in rows]
    last = max((place for _, _, rows in finite for place, _, _ in rows), default=0)
    if last < 2:
        return ""
    axes = Axes.around(values, [last], height=height, counts=EPOCHS, quality=quantity)
    body, radius = axes.grid(), 4 if last <= 40 else 2
    for style, name, rows in finite:
        line = "curve" if style == "kept" else "second"
        for start, end in itertools.pairwise(rows):
            if start[1] == end[1]:
                body.append(svg.line(*axes.at(start[0], start[2]), *axes.at(end[0], end[2]), line))
        for place, number, value in rows:
            title = f"round {number}, epoch {place} in all: {name} {'loss ' if quantity is LOSS else ''}{value:.4g}"
            body.append(svg.dot(*axes.at(place, value), style, title, radius))
    return svg.chart(body, axes.height, label, kind)
