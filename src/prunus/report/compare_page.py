"""The page of a comparison: one self-contained HTML file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from prunus.report import svg
from prunus.report.charts import Axes, Quantity
from prunus.report.compare import Comparison, Entrant, finished, qualities, sides
from prunus.report.html import (
    as_csv,
    as_json,
    document,
    downloads,
    folded,
    key,
    paragraph,
    section,
    sorting_row,
    sorting_table,
)
from prunus.report.read import ClassTable, FinishedRun, UnfinishedRun
from prunus.report.run_page import setting_text
from prunus.report.sections import MOST_ROWS, OLD, confusions, left_out, value_cell
from prunus.report.text import big, change, count, points, reported_accuracy
from prunus.studies.recipes import published
from prunus.tasks.quality import ACCURACY, QualityWords

# Quality against a cost: one point for each run, each original network and each published row.

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


def render(compared: Comparison) -> str:
    """The page as HTML."""
    names = list(dict.fromkeys(entrant.network for entrant in compared.entrants))
    title = f"{count(len(compared.entrants), 'run')} of {', '.join(names)}"
    parts = [_notes(compared), *(_figures(compared, quality) for quality in qualities(compared.entrants))]
    parts += [_unfinished(compared)]
    parts += [_costs(compared, quality) for quality in qualities(compared.entrants)]
    parts += [_settings(compared), _widths(compared), _classes(compared), downloads(_files(compared))]
    return document(title, "\n".join(part for part in parts if part))


def _files(compared: Comparison) -> dict[str, str]:
    """The figures as JSON, and those of the finished runs as CSV."""
    runs = [(entrant, run, sides(run)) for entrant, run in finished(compared.entrants)]
    costs = list(dict.fromkeys(cost for _, _, (_, now) in runs for cost in now.costs))
    headings = ["run", "name", "quality", "before", "after", *(f"{c} {w}" for c in costs for w in ("before", "after"))]
    rows = [
        [e.letter, e.name, run.quality.name, was.quality, now.quality]
        + [side.costs.get(cost) for cost in costs for side in (was, now)]
        for e, run, (was, now) in runs
    ]
    return {"compare.json": as_json(compared.to_dict()), "compare.csv": as_csv(headings, rows)}


def _notes(compared: Comparison) -> str:
    told = "".join(f"<p><b>Note:</b> {escape(note)}</p>" for note in compared.notes)
    return f'<div class="lead">{told}</div>' if told else ""


def _figures(compared: Comparison, quality: QualityWords) -> str:
    """One row per finished run."""
    runs = [(entrant, run) for entrant, run in finished(compared.entrants) if run.quality == quality]
    costs = list(dict.fromkeys(cost for _, run in runs for cost in sides(run)[1].costs))
    parts = {reported_accuracy(run)[0] for _, run in runs}
    part = parts.pop() if len(parts) == 1 else "test or held-out"
    headings = ["run", "name", f"{part} {quality.name}", "change", *costs]
    rows = [_row(place, entrant, run, costs) for place, (entrant, run) in enumerate(runs)]
    words = "Figures after pruning, and their change in brackets. Click a heading to sort."
    table = sorting_table(headings, rows, f"Runs and their {quality.name}", words=(1,))
    return section(f"Runs, by {quality.name}", paragraph(words, "soft"), table)


def _row(place: int, entrant: Entrant, run: FinishedRun, costs: list[str]) -> str:
    was, now = sides(run)
    gained = now.quality - was.quality
    cells = [
        (entrant.letter, float(place), str(run.folder)),
        (entrant.name, float(place), f"{entrant.network}, {entrant.data or 'data without a name'}"),
        (run.quality.shown(now.quality), now.quality, f"before: {run.quality.shown(was.quality)}"),
        (points(gained, run.quality), gained, ""),
    ]
    for cost in costs:
        before, after = was.costs.get(cost), now.costs.get(cost)
        if before is None or after is None:
            cells.append(("–", -1.0, "not measured in this run"))
            continue
        shown = f"{after:.3g}" if cost.startswith("ms") else big(after)
        was_shown = f"{before:.3g}" if cost.startswith("ms") else big(before)
        cells.append((f"{shown} ({change(before, after)})", after, f"before: {was_shown}"))
    return sorting_row(place, cells, words=(1,))


def _unfinished(compared: Comparison) -> str:
    lines = []
    for entrant in compared.entrants:
        run = entrant.run
        if isinstance(run, UnfinishedRun):
            lines.append(f"<dt>{escape(entrant.letter)} {escape(entrant.name)}</dt><dd>{escape(_so_far(run))}</dd>")
    words = "These runs have no result yet, and are left out of the charts."
    return section("Not finished", paragraph(words), f"<dl>{''.join(lines)}</dl>") if lines else ""


def _so_far(run: UnfinishedRun) -> str:
    if not run.rounds:
        return f"no round is finished. Continue it: prunus prune --resume {run.folder}"
    last = run.rounds[-1]
    reached = f"held-out {run.quality.name} {run.quality.shown(last.after.quality)}, {big(last.macs)} MACs"
    done = f"{count(len(run.rounds), 'round')} done"
    return f"{done}: {reached}. Continue it: prunus prune --resume {run.folder}"


def _costs(compared: Comparison, quality: QualityWords) -> str:
    """A chart for each cost that a run knows."""
    costs: dict[str, None] = {}
    for _, run in finished(compared.entrants):
        costs |= dict.fromkeys(sides(run)[1].costs if run.quality == quality else ())
    keys = [
        ("blue round", "a run that no other one beats"),
        ("hollow round", "any other run"),
        ("ink round", "original"),
    ]
    figures, shows_published = [], False
    for cost in costs:
        found = points_of(compared, cost, quality)
        shows_published = shows_published or any(point.kind == "published" for point in found)
        figures.append(f"<figure>{cost_chart(found, cost, quality)}</figure>")
    words = (
        "Up and to the left is better. The line joins the Pareto front: the runs that no other run, and no original "
        "network, beats in both figures. Times are those that each run measured on its own machine."
    )
    said = [paragraph(words)]
    if shows_published:
        keys.append(("grey round", "as published"))
        source = f"Grey points are figures of the paper's tables, which prunus did not measure. {published().source}."
        said.append(paragraph(source + " The front is that of the runs.", "soft"))
    return section(
        f"{quality.title} against cost", *said, key(*keys), '<div class="pairs">' + "".join(figures) + "</div>"
    )


def _settings(compared: Comparison) -> str:
    if not compared.differing:
        words = "All runs have the same settings."
        return section("Settings that differ", paragraph(words)) if len(compared.entrants) > 1 else ""
    heads = "".join(f'<th scope="col" class="words">{escape(entrant.letter)}</th>' for entrant in compared.entrants)
    rows = []
    for name, values in compared.differing.items():
        cells = "".join(f"<td>{escape(setting_text(_as_tuple(value)))}</td>" for value in values)
        rows.append(f"<tr><td>{escape(name.replace('_', ' '))}</td>{cells}</tr>")
    table = f'<table class="plain"><thead><tr><th></th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    return section("Settings that differ", f'<div class="scroll">{table}</div>')


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _widths(compared: Comparison) -> str:
    """Channels that each run keeps, unit by unit."""
    runs = list(finished(compared.entrants))
    names = list(dict.fromkeys(name for _, run in runs for name in run.units))
    if not names:
        return ""
    headings = ["unit", *(entrant.letter for entrant, _ in runs)]
    rows = []
    for place, name in enumerate(names):
        cells = [f'<td data-value="{place}">{escape(name)}</td>', *(_width_cell(run, name) for _, run in runs)]
        rows.append(f'<tr data-place="{place}">{"".join(cells)}</tr>')
    words = "Channels that each unit keeps, of those that it had. The bar is the share that is kept."
    return section("Widths side by side", paragraph(words), sorting_table(headings, rows, "Channels kept in each run"))


def _width_cell(run: FinishedRun, name: str) -> str:
    unit = run.units.get(name)
    if unit is None:
        return '<td data-value="-1" title="this network has no such unit">–</td>'
    share = unit.kept / unit.width
    return (
        f'<td class="bar" data-value="{share}" style="--part:{100 * share:.0f}%" '
        f'title="{escape(name)}: {unit.kept} of {unit.width} channels">{unit.kept} of {unit.width}</td>'
    )


def _classes(compared: Comparison) -> str:
    """The quality of each class in each run, the worst first, and the confusions of each run."""
    done = list(finished(compared.entrants))
    known = [(entrant, run.classes) for entrant, run in done if run.classes is not None]
    missing = [entrant.letter for entrant, run in done if run.classes is None]
    if not done:
        return ""
    said = paragraph(f"Without figures of classes: {', '.join(missing)}. {OLD}", "soft") if missing else ""
    folds: list[str] = []
    tables = []
    for names in dict.fromkeys(classes.names for _, classes in known):
        mine = [(entrant, classes) for entrant, classes in known if classes.names == names]
        tables.append(_class_table(mine))
        for entrant, classes in mine:
            picture = confusions(classes)
            if picture:
                folds.append(folded(f"{entrant.letter} {entrant.name}: which classes are confused", picture, not folds))
    return section("Classes, the worst first", said, *tables, *folds)


def _class_table(mine: list[tuple[Entrant, ClassTable]]) -> str:
    first = mine[0][1]

    def worst(number: int) -> float:
        return min(value for _, classes in mine if (value := classes.after.values[number]) is not None)

    listed = sorted(first.worst_first(), key=worst)[:MOST_ROWS]
    headings = ["class", first.of]
    for entrant, _ in mine:
        headings += [f"{entrant.letter} before", f"{entrant.letter} after"]
    rows = []
    for place, number in enumerate(listed):
        cells = [(first.names[number], float(number), ""), (f"{first.sizes[number]:,}", float(first.sizes[number]), "")]
        for _, classes in mine:
            cells += [value_cell(classes.before.values[number]), value_cell(classes.after.values[number])]
        rows.append(sorting_row(place, cells))
    words = f"{first.quality[:1].upper()}{first.quality[1:]} of each class on the {first.part} images."
    table = sorting_table(headings, rows, f"{first.quality} of each class in each run", first=False)
    return paragraph(words + left_out(first)) + table
