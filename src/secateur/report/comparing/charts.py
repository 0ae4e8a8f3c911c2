"""Quality against a cost: one point for each run, each original network and each published row."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.report import svg
from secateur.report.axes import Axes, Quantity
from secateur.report.comparing.comparison import Comparison
from secateur.report.comparing.entrants import finished, sides
from secateur.report.number_formats import big

RUN, ORIGINAL, PUBLISHED = "run", "original", "published"
UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))


@dataclass(frozen=True)
class Point:
    """A network: what it costs, and its quality times the quality's factor."""

    kind: str
    name: str
    cost: float
    value: float
    letter: str = ""
    on_front: bool = False


def points_of(compared: Comparison, cost: str, quality: QualityWords) -> list[Point]:
    """Everything that is known at this cost."""
    found, front = [], compared.front(cost, quality)
    for entrant, run in finished(compared.entrants):
        was, now = sides(run)
        if run.quality != quality or cost not in now.costs:
            continue
        value, best = quality.factor * now.quality, entrant.letter in front
        found.append(Point(RUN, entrant.name, now.costs[cost], value, entrant.letter, best))
        name = f"{entrant.network} before pruning"
        found.append(Point(ORIGINAL, name, was.costs[cost], quality.factor * was.quality))
    return [*_published(compared, cost, quality), *dict.fromkeys(found)]


def _published(compared: Comparison, cost: str, quality: QualityWords) -> list[Point]:
    key = {"MACs per image": "macs", "weights": "params"}.get(cost)
    if key is None or quality != ACCURACY:
        return []
    rows = [(group, row) for group in compared.published for row in group.rows]
    known = [(f"{r.method} ({r.by}), as published", getattr(r, key), r.top1) for _, r in rows]
    return [Point(PUBLISHED, name, at, top1) for name, at, top1 in known if at is not None and top1 is not None]


def cost_chart(found: Sequence[Point], cost: str, quality: QualityWords) -> str:
    """The points, with a line through the front: the runs that no other one beats."""
    largest = max(point.cost for point in found)
    scale, sign = next((each for each in UNITS if largest >= each[0]), UNITS[-1])
    name = f"{cost} ({sign})" if sign else cost
    counts = Quantity(name if cost != "bytes" else f"{sign}B")
    axes = Axes.around([p.value for p in found], [p.cost / scale for p in found], 300, quality, counts)
    front = sorted((p for p in found if p.on_front), key=lambda point: point.cost)
    body = axes.grid()
    for start, end in itertools.pairwise(front):
        places = (*axes.at(start.cost / scale, start.value), *axes.at(end.cost / scale, end.value))
        body.append(svg.line(*places, "curve"))
    kinds = {RUN: "kept", ORIGINAL: "ink", PUBLISHED: "other"}
    for point in sorted(found, key=lambda point: (PUBLISHED, ORIGINAL, RUN).index(point.kind)):
        x, y = axes.at(point.cost / scale, point.value)
        title = f"{point.name}: {quality.scaled(point.value)} at {_amount(point.cost, cost)}"
        kind = kinds[point.kind] if point.on_front or point.kind != RUN else "behind"
        body.append(svg.dot(x, y, kind, title + (", on the front" if point.on_front else ""), 6 if point.letter else 4))
        if point.letter:
            body.append(svg.text(x, y - 10, point.letter, "strong", "middle"))
    runs = [point for point in found if point.kind == RUN]
    best = ", ".join(point.letter for point in front) or "none"
    label = f"{quality.title} against {cost} of {len(runs)} runs. On the front: {best}."
    return svg.chart(body, axes.height, label, "costs")


def _amount(number: float, cost: str) -> str:
    if cost.startswith("ms"):
        return f"{number:.3g} ms"
    return f"{big(number)}B" if cost == "bytes" else f"{big(number)} {cost}"
