"""Charts of the pages: rounds, epochs and costs, drawn by matplotlib and put into the page as SVG; scores as bars."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from prunus.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RULE,
    as_svg,
    axis_scale,
    data_uri,
    figure,
    styled,
    tooltips,
)
from prunus.report.read import FinishedRun, Round
from prunus.scoring.scores import Vector
from prunus.tasks.quality import QualityText
from prunus.train.checkpoint import Epoch
from prunus.util.text import big_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 4.0  # inches: half of the page's column, or the width of a phone
SMALL, MANY_EPOCHS = 7.5, 40  # font size of numbers at points; from so many epochs on, points are smaller
# Colours of a figure -> the variables of the page's style, so that a chart is dark where the page is dark.
THEME = {INK: "ink", RULE: "rule", "#ffffff": "paper", BLUE: "blue", ORANGE: "orange", GREEN: "green", GREY: "grey"}
# Our drawings never contain these: they could run code or load something.
FOREIGN = re.compile(
    r"""<script|<foreignObject|\son\w+\s*=|href\s*=\s*["'](?!#|data:image/)|url\((?!#)|@import""", re.I
)


@dataclass(frozen=True)
class Chart:
    """A chart with its title and the meaning of its colours."""

    title: str
    key: tuple[tuple[str, str], ...]  # class of the mark, text
    svg: Markup


def inline(svg: str, alt: str, kind: str = "") -> Markup:
    """A drawing as an element of the page, with `alt` as its text for screen readers.

    What only a file needs (XML header, namespaces, style, metadata) is left out. So are ids that nothing refers to,
    because two drawings in one page must not share an id. A drawing with code or links in it becomes an image, in which
    nothing can run.
    """
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[max(0, svg.find("<svg")) :], flags=re.DOTALL)
    if "<svg" not in text or FOREIGN.search(text):
        return Markup('<img src="{}" alt="{}">').format(data_uri(svg.encode(), "svg+xml"), alt)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    wanted = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r'\sid="([^"]*)"', lambda match: match[0] if match[1] in wanted else "", text)
    shown = f' class="{kind}"' if kind else ""
    return Markup(text.replace("<svg", f'<svg{shown} role="img" aria-label="{escape(alt)}"', 1).strip())


def _chart(fig: Figure, label: str, kind: str, name: str = "") -> Markup:
    """The figure as a part of the page, in the page's colours. name: tells charts of one kind apart."""
    svg = as_svg(fig, f"{kind} {name}")
    for colour, variable in THEME.items():
        svg = svg.replace(f": {colour.lower()}", f": var(--{variable})")
    return inline(svg, label, f"chart {kind}")


def _axes(height: float, across: str, up: QualityText | str, values: Sequence[float] = ()) -> tuple[Figure, Any]:
    """A figure with horizontal grid lines; with `values`, with room for numbers below and above them."""
    fig, axes = figure(WIDTH, height)
    name, unit = (up, "") if isinstance(up, str) else (up.name, "%" if up.unit == "%" else "")
    with styled():
        axes.set_title(name, loc="left", fontsize=8, pad=8)
        axes.set_xlabel(across, fontsize=8)
    axes.xaxis.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.yaxis.get_major_locator().set_params(nbins=5)
    if values:
        low, high = min(values), max(values)
        air = max(0.002 * (100 if unit == "%" else max(abs(low), abs(high)) or 1.0), 0.12 * (high - low))
        # An accuracy is between 0 and 100; a user-provided measure may be anything.
        bottom = max(0.0, low - 2 * air) if low >= 0 else low - 2 * air
        axes.set_ylim(bottom, min(100.0 + air / 2, high + air) if unit == "%" and high <= 100 else high + air)
    if unit:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}{unit}")
    return fig, axes


def _points(axes: Any, x: Sequence[float], y: Sequence[float], texts: Sequence[str], colour: str, **style: Any) -> None:
    """Points of a curve with their tooltips."""
    (drawn,) = axes.plot(x, y, color=colour, **{"marker": "o", "clip_on": False, "zorder": 3, **style})
    tooltips(drawn, texts)


def _number(axes: Any, x: float, y: float, text: str, above: bool, **style: Any) -> None:
    """A number next to a point."""
    how = {"ha": "center", "va": "bottom" if above else "top", "fontsize": SMALL, "color": INK, **style}
    axes.annotate(text, (x, y), (0, 5 if above else -5), textcoords="offset points", annotation_clip=False, **how)


# -- rounds and epochs


def course_chart(
    gone: Sequence[float],
    values: Sequence[float],
    quality: QualityText,
    *,
    tested: Sequence[float] = (),
    goal: float | None = None,
    floor: float | None = None,
) -> Markup:
    """Quality against MACs removed: on held-out images as a line, on test images (before and after) as green points.

    gone: MACs removed in per cent, before pruning and after each round, to which the held-out `values` belong.
    tested: the test quality before and after. goal: MACs to be removed, in per cent. floor: the lowest quality allowed.
    All qualities are multiplied by their factor.
    """
    fig, axes = _axes(2.6, "MACs removed", quality, [*values, *tested])
    axes.set_xlim(-0.06 * max(5.0, *gone), 1.06 * max(5.0, *gone))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    when = ["before pruning", *(f"after round {number}" for number in range(1, len(gone)))]
    texts = [
        f"held-out, {w}: {quality.scaled(v)} with {g:.1f}% of the MACs removed"
        for w, v, g in zip(when, values, gone, strict=True)
    ]
    _points(axes, gone, values, texts, BLUE, linewidth=2)
    for place in {0, len(gone) - 1}:
        # Away from the line at the first point, and not on the side of the test quality's number.
        above = values[place] > tested[-1 if place else 0] if tested else place == 0
        _number(axes, gone[place], values[place], quality.scaled(values[place], 1), above, fontweight="bold")
    if tested:
        ends = [gone[0], gone[-1]]
        texts = [
            f"test, {w}: {quality.scaled(v)} with {g:.1f}% of the MACs removed"
            for w, v, g in zip(("before", "after"), tested, ends, strict=True)
        ]
        _points(axes, ends, tested, texts, GREEN, linestyle="none")
        for x, y, held_out in zip(ends, tested, (values[0], values[-1]), strict=True):
            _number(axes, x, y, quality.scaled(y, 1), y >= held_out)
    dashed = {"color": INK, "linewidth": 0.9, "linestyle": (0, (5, 3)), "zorder": 1}
    if goal is not None and goal <= 1.05 * max(5.0, *gone):
        tooltips(axes.axvline(goal, **dashed), [f"goal: {goal:.1f}% of the MACs removed"])
        where: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right"}
        axes.annotate("goal", (goal, 0), (-3, 4), fontsize=SMALL, color=INK, **where)
    if floor is not None and floor >= axes.get_ylim()[0]:
        tooltips(axes.axhline(floor, **dashed), [f"lowest held-out {quality.name} allowed: {quality.scaled(floor)}"])
    label = (
        f"{quality.title} in each round. Held-out {quality.name} starts at {quality.scaled(values[0])} and ends at "
        f"{quality.scaled(values[-1])} with {gone[-1]:.1f}% of the MACs removed."
    )
    return _chart(fig, label, "rounds")


def round_charts(run: FinishedRun) -> list[Chart]:
    """Quality over rounds and epochs, loss and learning rate, as far as the run has them."""
    if not run.rounds:
        return []
    summary, settings, quality = run.summary, run.settings, run.summary.quality
    factor, outcomes = quality.factor, [each.outcome for each in run.rounds]
    values = [factor * summary.before.holdout.quality, *(factor * each.after.quality for each in outcomes)]
    part, was, now = run.reported()
    goal = settings.target
    if goal is None and settings.macs:
        goal = 1 - settings.macs / summary.before.macs
    gone = [0.0, *(100 * (1 - each.macs / summary.before.macs) for each in outcomes)]
    tested = (factor * was.quality, factor * now.quality) if part == "test" else ()
    floor = None if settings.max_drop is None else values[0] - settings.max_drop
    asked = None if goal is None else 100 * goal
    course = course_chart(gone, values, quality, tested=tested, goal=asked, floor=floor)
    key = (("blue round", "held-out images"), *([("green round", "test images")] if part == "test" else []))
    charts = [Chart(f"{quality.title} after each round", key, course)]
    epochs = [(each.number, epoch) for each in outcomes for epoch in each.retraining]
    if epochs:
        cut = "after the cut" if settings.repair == "none" else "after cut and repair"
        key = (("orange round", cut), ("blue round", "after retraining"))
        charts.append(Chart(f"{quality.title} in each epoch of retraining", key, _epochs(run)))
    if len(epochs) >= 2:
        key = (("blue round", "training batches"), ("orange round", "held-out images"))
        losses: list[Curve] = [
            (BLUE, "training loss", lambda epoch: epoch.loss),
            (ORANGE, "held-out loss", lambda epoch: None if epoch.holdout is None else epoch.holdout.loss),
        ]
        charts.append(
            Chart(
                "Loss in each epoch of retraining",
                key,
                _journal(epochs, losses, "loss", "on training batches and on held-out images"),
            )
        )
        rate = _journal(epochs, [(BLUE, "learning rate", lambda epoch: epoch.lr)], "learning rate", "at its end")
        charts.append(Chart("Learning rate at the end of each epoch", (), rate))
    return charts


def _epochs(run: FinishedRun) -> Markup:
    """Held-out quality in each epoch of all rounds, starting after each cut."""
    quality = run.summary.quality
    courses, done = [], 0  # of each round: (epochs done so far, quality), its cut first
    for outcome in (each.outcome for each in run.rounds):
        known = [(done + e.number, quality.factor * e.holdout.quality) for e in outcome.retraining if e.holdout]
        courses.append([(done, quality.factor * outcome.pruned.quality), *known])
        done += len(outcome.retraining)
    fig, axes = _axes(2.6, "epochs of retraining", quality, [value for course in courses for _, value in course])
    axes.xaxis.get_major_locator().set_params(integer=True)
    ends = []
    for number, course in enumerate(courses, start=1):
        x, y = zip(*course, strict=True)
        axes.plot(x, y, color=BLUE)
        when = ["before retraining", *(f"epoch {i}" for i in range(1, len(course)))]
        texts = [f"round {number}, {each}: {quality.scaled(value)}" for each, value in zip(when, y, strict=True)]
        _points(axes, x[1:], y[1:], texts[1:], BLUE, linestyle="none", markersize=4.5 if done <= MANY_EPOCHS else 2)
        _points(axes, x[:1], y[:1], texts[:1], ORANGE, linestyle="none", zorder=4)
        ends.append(f"round {number}: {quality.scaled(y[0], 1)} to {quality.scaled(y[-1], 1)}")
    label = f"Held-out {quality.name} over the epochs of retraining. {'; '.join(ends)}."
    return _chart(fig, label, "epochs")


Curve = tuple[str, str, Callable[[Epoch], float | None]]  # colour, name, value


def _journal(epochs: Sequence[tuple[int, Epoch]], curves: Sequence[Curve], what: str, when: str) -> Markup:
    """Curves over the epochs of all rounds (round, epoch); a line does not cross from one round to the next."""
    fig, axes = _axes(2.2, "epochs of retraining", what)
    axes.xaxis.get_major_locator().set_params(integer=True)
    for colour, name, value in curves:
        numbered = [(place, number, value(epoch)) for place, (number, epoch) in enumerate(epochs, start=1)]
        known = [(place, number, y) for place, number, y in numbered if y is not None and math.isfinite(y)]
        for number, rows in itertools.groupby(known, key=lambda row: row[1]):
            x, _, y = zip(*rows, strict=True)
            texts = [f"round {number}, epoch {i} in all: {name} {each:.4g}" for i, each in zip(x, y, strict=True)]
            _points(axes, x, y, texts, colour, markersize=4 if len(epochs) <= MANY_EPOCHS else 2)
    if axes.get_ylim()[0] < 0 <= min(y for line in axes.lines for y in np.asarray(line.get_ydata(), float)):
        axes.set_ylim(bottom=0)
    return _chart(fig, f"{what.capitalize()} in each of {len(epochs)} epochs of retraining, {when}.", what[:4])


# -- scores

BINS, MOST_NAMED = 24, 8  # of a histogram; channels that a tooltip names
LOG_FROM = 100.0  # positive scores that span this factor are drawn on a logarithmic axis


@dataclass(frozen=True)
class Histogram:
    """The scores of one unit, for the template: a page may have hundreds of these, so they are plain elements."""

    label: str
    bins: list[list[tuple[str, float, str]]]  # of each bin: class of the bar, per cent of the height, tooltip
    ends: tuple[str, str, str]  # the lowest score, a remark, the highest score
    cut: tuple[float, str] | None  # per cent of the width, and the score


def score_histogram(done: Round, unit: str) -> Histogram:
    """Counts of the unit's channels by score: removed ones in orange, kept ones in blue, and the cut between them.

    The cut is the middle between the strongest removed and the weakest kept channel. There is none if they overlap,
    which can be if channels are removed in groups.
    """
    values = np.asarray(done.scores.values[unit], dtype=np.float64)  # [channels]
    kept = np.zeros(len(values), dtype=bool)
    kept[list(done.step.keep[unit])] = True
    logarithmic = bool(values.min() > 0 and values.max() / values.min() >= LOG_FROM)
    places = np.log10(values) if logarithmic else values
    cut = None
    if kept.any() and not kept.all() and places[~kept].max() <= places[kept].min():
        cut = float(places[~kept].max() + places[kept].min()) / 2
    edges = bin_edges(float(places.min()), float(places.max()), cut)
    of_bin = np.clip(np.digitize(places, edges) - 1, 0, len(edges) - 2)  # [channels]
    tallest = np.bincount(of_bin).max()
    numbers = done.numbers.get(unit) or range(len(values))  # in the original network

    def score(place: float) -> str:
        return f"{10.0**place if logarithmic else place:.3g}"

    bins = []
    for i, (left, right) in enumerate(itertools.pairwise(edges)):
        bars = []
        for kind, fate, is_part in (("kept", "kept", kept), ("cut", "removed", ~kept)):
            channels = [str(numbers[c]) for c in np.flatnonzero((of_bin == i) & is_part)]
            if channels:
                more = f", … {len(channels) - MOST_NAMED} more" if len(channels) > MOST_NAMED else ""
                named = f"channel{'' if len(channels) == 1 else 's'} {', '.join(channels[:MOST_NAMED])}{more}"
                title = f"scores {score(left)} to {score(right)}: {len(channels)} {fate} ({named})"
                bars.append((kind, round(100 * len(channels) / tallest, 1), title))
        bins.append(bars)
    number, removed = done.outcome.number, int((~kept).sum())
    return Histogram(
        label=f"Scores of the {len(values)} channels of {unit} in round {number}; {removed} were removed.",
        bins=bins,
        ends=(score(edges[0]), "log scale" if logarithmic else "", score(edges[-1])),
        cut=None if cut is None else (round(100 * (cut - edges[0]) / (edges[-1] - edges[0]), 1), score(cut)),
    )


def bin_edges(low: float, high: float, cut: float | None) -> Vector:
    """Edges of equal bins from low to high. The cut is an edge, so that no bin lies on both sides of it."""
    if not high > low:
        return np.array([low - 0.5, low + 0.5])
    width = (high - low) / BINS
    if cut is None:
        return low + width * np.arange(BINS + 1, dtype=np.float64)
    below, above = math.ceil((cut - low) / width - 1e-9), math.ceil((high - cut) / width - 1e-9)
    return cut + width * np.arange(-max(below, 1), max(above, 1) + 1, dtype=np.float64)


# -- quality against cost, for comparisons


@dataclass(frozen=True)
class CostPoint:
    """A network: what it costs, and its quality times the quality's factor."""

    kind: str  # run, original or published
    name: str
    cost: float
    value: float
    letter: str = ""
    on_front: bool = False
    interval: tuple[float, float] | None = None  # of the cost


def cost_chart(points: Sequence[CostPoint], cost: str, quality: QualityText) -> Markup:
    """The points, with a line through the front: the runs that no other one beats. A cost may have an interval."""
    scale, sign = axis_scale(max(point.cost for point in points))
    across = f"{sign}B" if cost == "bytes" else f"{cost} ({sign})" if sign else cost
    values = [point.value for point in points]
    fig, axes = _axes(3.0, across, quality, values)
    reach = [end for point in points for end in (point.cost, *(point.interval or ())) if math.isfinite(end)]
    axes.set_xlim(0, 1.06 * max(reach) / scale)
    front = sorted((point for point in points if point.on_front), key=lambda point: point.cost)
    axes.plot([point.cost / scale for point in front], [point.value for point in front], color=BLUE)

    def amount(value: float) -> str:
        if cost.startswith("speed-up"):
            return f"{value:.2f}x the speed{cost.removeprefix('speed-up')}"
        return f"{big_number(value)}B" if cost == "bytes" else f"{big_number(value)} {cost}"

    for point in points:
        if point.interval is not None:
            axes.plot([end / scale for end in point.interval], [point.value] * 2, color=GREY, linewidth=1.2, zorder=2)
    hollow = {"markerfacecolor": "#ffffff", "markeredgewidth": 1.5}
    for kind, on_front, colour, size, style in (
        ("published", False, GREY, 4.5, {}),
        ("original", False, INK, 4.5, {}),
        ("run", False, BLUE, 6.5, hollow),
        ("run", True, BLUE, 6.5, {}),
    ):
        some = [point for point in points if (point.kind, point.on_front) == (kind, on_front)]
        texts = [f"{p.name}: {quality.scaled(p.value)} at {amount(p.cost)}{', on the front' * on_front}" for p in some]
        if some:
            x, y = [point.cost / scale for point in some], [point.value for point in some]
            _points(axes, x, y, texts, colour, linestyle="none", markersize=size, **style)
        for point in (point for point in some if point.letter):
            _number(axes, point.cost / scale, point.value, point.letter, True, fontweight="bold")
    best = ", ".join(point.letter for point in front) or "none"
    label = f"{quality.title} against {cost} of {sum(p.kind == 'run' for p in points)} runs. On the front: {best}."
    return _chart(fig, label, "costs", f"{cost} {quality.name}")
