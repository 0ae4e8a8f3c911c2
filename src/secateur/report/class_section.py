"""The quality of each class before and after, the worst first, and which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from secateur.report.finished_run import FinishedRun
from secateur.report.html import paragraph, section
from secateur.report.newer_files import ClassTable
from secateur.report.number_formats import percent, points
from secateur.report.sorting_table import sorting_row, sorting_table

MOST_ROWS = 50  # classes in a table
MOST_IN_PICTURE = 20  # classes in a picture of confusions
MOST_PAIRS = 15  # pairs in a table of confusions
OLD = "Runs of earlier versions have none, nor have tasks without classes and evaluations of your own."


def classes(run: FinishedRun) -> str:
    """The section of a run's report; "" if the run has no figures of classes."""
    found = run.classes
    if found is None:
        return ""
    listed = found.worst_first()
    rows = [_row(place, found, number) for place, number in enumerate(listed[:MOST_ROWS])]
    table = sorting_table(_headings(found), rows, f"{found.quality} of each class", first=False)
    words = f"{_title(found)} of each class on the {found.part} images, the lowest after pruning first."
    return section(f"{_title(found)} of each class", paragraph(words + left_out(found)), table, confusions(found))


def left_out(found: ClassTable) -> str:
    """What a table of the worst classes does not show."""
    listed, absent = len(found.worst_first()), sum(value is None for value in found.after.values)
    more = f" The table has the lowest {MOST_ROWS} of {listed} classes." if listed > MOST_ROWS else ""
    return more + (f" Left out because they do not occur: {absent}." if absent else "")


def _title(found: ClassTable) -> str:
    return found.quality[:1].upper() + found.quality[1:]


def _headings(found: ClassTable) -> tuple[str, ...]:
    return "class", found.of, "before", "after", "change"


def _row(place: int, found: ClassTable, number: int) -> str:
    was, now = found.before.values[number], found.after.values[number]
    cells = [(found.names[number], float(number), ""), (f"{found.sizes[number]:,}", float(found.sizes[number]), "")]
    cells += [value_cell(was), value_cell(now)]
    change = None if was is None or now is None else now - was
    cells.append(("–", 0.0, "") if change is None else (points(change), change, ""))
    return sorting_row(place, cells)


def value_cell(value: float | None) -> tuple[str, float, str]:
    """A cell of a sorting table."""
    return ("–", -1.0, "") if value is None else (percent(value), value, "")


# -- confusions


def confusions(found: ClassTable) -> str:
    """Which classes are taken for which: a picture of few classes, or a table of the most frequent pairs."""
    if found.after.confused is None or found.before.confused is None:
        return ""
    if not found.after.confused and not found.before.confused:
        return paragraph("No class is taken for another.")
    if not (found.after.complete and found.before.complete):
        return _pairs(found)
    return _picture(found, found.worst_first()[:MOST_IN_PICTURE])


def _picture(found: ClassTable, shown: Sequence[int]) -> str:
    """A table of counts in which frequent confusions are dark."""
    was = {(row, column): number for row, column, number in found.before.confused or ()}
    now = {(row, column): number for row, column, number in found.after.confused or ()}
    order = sorted(shown)
    most = max([now.get((a, b), 0) for a in order for b in order] + [1])
    head = "".join(f'<th scope="col"><span>{escape(found.names[number])}</span></th>' for number in order)
    rows = []
    for a in order:
        cells = "".join(_cell(found, (a, b), (was.get((a, b), 0), now.get((a, b), 0)), most) for b in order)
        rows.append(f'<tr><th scope="row">{escape(found.names[a])}</th>{cells}</tr>')
    some = f" of the {len(order)} classes with the lowest {found.quality}" if len(order) < len(found.sizes) else ""
    words = (
        f"Which classes{some} are taken for which after pruning: a row is the true class, a column what the network "
        f"said, a number how many {found.of}. An outline marks what became more frequent."
    )
    label = f"Confusions of {len(order)} classes after pruning"
    table = f'<table class="heat" aria-label="{label}"><thead><tr><td></td>{head}</tr></thead>'
    return paragraph(words) + f'<div class="scroll">{table}<tbody>{"".join(rows)}</tbody></table></div>'


def _cell(found: ClassTable, pair: tuple[int, int], counts: tuple[int, int], most: int) -> str:
    a, b = pair
    if a == b:
        return f'<td class="right" title="{escape(found.names[a])}: recognised"></td>'
    was, now = counts
    title = f"{found.names[a]} taken for {found.names[b]}: {now:,} after, {was:,} before"
    kind = ' class="more"' if now > was else ""
    shown = f"{now:,}" if now else ""
    return f'<td{kind} style="--heat:{70 * now / most:.0f}%" title="{escape(title)}">{shown}</td>'


def _pairs(found: ClassTable) -> str:
    """The most frequent confusions after pruning."""
    was = {(row, column): number for row, column, number in found.before.confused or ()}
    rows = []
    for place, (a, b, now) in enumerate((found.after.confused or ())[:MOST_PAIRS]):
        before = was.get((a, b))
        shown = "–" if before is None else f"{before:,}"
        cells = [(found.names[a], float(a), ""), (found.names[b], float(b), "")]
        cells += [(shown, float(before or 0), ""), (f"{now:,}", float(now), "")]
        rows.append(sorting_row(place, cells, words=(1,)))
    headings = ("class", "taken for", f"{found.of} before", f"{found.of} after")
    table = sorting_table(headings, rows, "Classes that are taken for each other", first=False, words=(1,))
    return paragraph(f"The {len(rows)} most frequent confusions after pruning.") + table
