"""Charts of the whole run: quality against MACs in each round, and channels before and after."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from secateur.report import svg
from secateur.report.axes import EPOCHS, Axes
from secateur.report.finished_run import FinishedRun
from secateur.report.number_formats import percent
from secateur.report.sentences import reported_accuracy

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
            (factor * run.before.holdout.top1, *(factor * r.outcome.after.top1 for r in run.rounds)),
            tuple(factor * r.outcome.pruned.top1 for r in run.rounds),
            (factor * was.top1, factor * now.top1) if part == "test" else (),
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
        known = [(done + e.number, shown.factor * e.holdout.top1) for e in outcome.retraining if e.holdout is not None]
        courses.append([(done, shown.factor * outcome.pruned.top1), *known])
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
        floor = run.quality.factor * run.before.holdout.top1 - asked.max_drop
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
