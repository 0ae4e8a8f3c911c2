"""What all pages share: the templates, tables that sort, rows of bars, figures of classes, settings, and downloads.

A page is one self-contained HTML file: style, script, charts and figures are in it, and nothing is loaded from
elsewhere. The templates escape all text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from prunus.run.qualities import ClassTable
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.text import count, percent, signed
from prunus.util.typed_json import finite, to_data

REPORT = "report.html"
# The page may use only what it contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
LISTED = 4  # largest number of values of one setting in a sentence
FULL = 64.0  # per cent of the width of a chart that its longest bar takes; the rest is for its number
MOST_ROWS, MOST_IN_PICTURE, MOST_PAIRS = 50, 20, 15  # classes in a table, in a picture of confusions, pairs in a table


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render_page(template: str, **context: Any) -> str:
    """The page that a template makes."""
    return PAGES.get_template(template).render(policy=POLICY, count=count, sentence=sentence, **context)


# -- tables that the reader can sort


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the value that its column is sorted by, and a tooltip."""

    text: str
    value: float
    title: str = ""
    share: float | None = None  # of a bar behind the text, as a fraction of 1


@dataclass(frozen=True)
class Table:
    """A table that the page's script sorts when a heading is clicked.

    `sorted`: whether the rows are in the order of the first column. `texts`: columns of text, besides the first.
    """

    label: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    sorted: bool = True
    texts: Sequence[int] = ()


# -- rows of bars


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: its name, its bars, and the text behind them.

    A bar is (from, to, kind) in the unit of the chart; after `drawn_bars`, (left, width, kind) in per cent of the
    width.
    """

    name: str
    bars: Sequence[tuple[float, float, str]]
    text: str
    title: str = ""
    strong: bool = False

    @property
    def end(self) -> float:
        """Where the longest bar ends, when it is drawn."""
        return max((left + width for left, width, _ in self.bars), default=0.0)


def drawn_bars(rows: Sequence[Bar]) -> list[Bar]:
    """Bars on one scale, which includes zero. A value that is not finite has a full bar."""
    ends = [end for row in rows for bar in row.bars for end in bar[:2] if math.isfinite(end)]
    low, high = min(0.0, *ends, 0.0), max(1e-12, *ends, 0.0)

    def drawn(start: float, end: float, kind: str) -> tuple[float, float, str]:
        places = (FULL * ((value if math.isfinite(value) else high) - low) / (high - low) for value in (start, end))
        left, right = sorted(places)
        return round(left, 2), round(max(right - left, 0.3), 2), kind

    return [replace(row, bars=[drawn(*bar) for bar in row.bars]) for row in rows]


# -- figures of classes


def class_table(runs: Sequence[tuple[str, ClassTable]]) -> Table:
    """The quality of each class before and after, the worst after pruning first.

    runs: letters of runs on the same classes, and their figures. A run without a letter is alone: it has changes too.
    """
    first, alone = runs[0][1], not runs[0][0]
    sides = [(f"{letter} {when}".strip(), getattr(each, when)) for letter, each in runs for when in ("before", "after")]

    def worst(number: int) -> float:
        return min(value for _, each in runs if (value := each.after.values[number]) is not None)

    rows = []
    for number in sorted(first.worst_first(), key=worst)[:MOST_ROWS]:
        size, values = first.sizes[number], [side.values[number] for _, side in sides]
        cells = [Cell(first.name(number), float(number)), Cell(f"{size:,}", float(size))]
        cells += [Cell("–", -1.0) if value is None else Cell(percent(value), value) for value in values]
        if alone:
            was, now = values
            change = None if was is None or now is None else now - was
            cells.append(Cell("–", 0.0) if change is None else Cell(points(change), change))
        rows.append(cells)
    headings = ["class", first.of, *(title for title, _ in sides), *(["change"] if alone else [])]
    label = f"{first.quality} of each class{'' if alone else ' in each run'}"
    return Table(label, headings, rows, sorted=False)


def about_classes(classes: ClassTable) -> str:
    """What a table of classes shows, and what it leaves out."""
    part = "test" if classes.part == "test" else "held-out"
    text = f"{sentence(classes.quality)} of each class on the {part} images, the lowest after pruning first."
    listed, absent = len(classes.worst_first()), sum(value is None for value in classes.after.values)
    more = f" The table has the lowest {MOST_ROWS} of {listed} classes." if listed > MOST_ROWS else ""
    return text + more + (f" Left out because they do not occur: {absent}." if absent else "")


@dataclass(frozen=True)
class Confusions:
    """Which classes are taken for which: a matrix of a few classes, or a table of the most frequent pairs."""

    text: str
    label: str = ""
    names: Sequence[str] = ()
    matrix: Sequence[Sequence[tuple[str, str, str, int]]] = ()  # class of the cell, text, title, per cent of colour
    table: Table | None = None


def confusions(classes: ClassTable) -> Confusions | None:
    """What classes are taken for after pruning; None if they do not exclude each other."""
    before, after = classes.before, classes.after
    if before.confused is None or after.confused is None:
        return None
    if not before.confused and not after.confused:
        return Confusions("No class is taken for another.")
    was, now = ({(a, b): number for a, b, number in side.confused or ()} for side in (before, after))
    if not (before.complete and after.complete):
        rows = []
        for a, b, number in after.confused[:MOST_PAIRS]:
            first = was.get((a, b))
            counted = Cell("–", 0.0) if first is None else Cell(f"{first:,}", first)
            rows.append([Cell(classes.name(a), a), Cell(classes.name(b), b), counted, Cell(f"{number:,}", number)])
        headings = ("class", "taken for", f"{classes.of} before", f"{classes.of} after")
        table = Table("Classes that are taken for each other", headings, rows, sorted=False, texts=(1,))
        return Confusions(f"The {len(rows)} most frequent confusions after pruning.", table=table)
    order = sorted(classes.worst_first()[:MOST_IN_PICTURE])
    most = max([now.get((a, b), 0) for a in order for b in order] + [1])

    def cell(a: int, b: int) -> tuple[str, str, str, int]:
        if a == b:
            return "right", "", f"{classes.name(a)}: recognised", 0
        first, last = was.get((a, b), 0), now.get((a, b), 0)
        title = f"{classes.name(a)} taken for {classes.name(b)}: {last:,} after, {first:,} before"
        return "more" if last > first else "", f"{last:,}" if last else "", title, round(70 * last / most)

    some = f" of the {len(order)} classes with the lowest {classes.quality}" if len(order) < len(classes.sizes) else ""
    return Confusions(
        f"Which classes{some} are taken for which after pruning: a row is the true class, a column what the network "
        f"said, a number how many {classes.of}. An outline marks what became more frequent.",
        f"Confusions of {len(order)} classes after pruning",
        [classes.name(number) for number in order],
        [[cell(a, b) for b in order] for a in order],
    )


# -- words, numbers, settings and files to save


def sentence(text: str) -> str:
    """The text with a capital letter at its start."""
    return text[:1].upper() + text[1:]


def points(change: float, quality: QualityText = ACCURACY) -> str:
    """-0.0084 as −0.84 points; of a quality that is not in per cent, in its own unit."""
    if quality.unit == "%":
        return f"{signed(100 * change)} points"
    return quality.change(change).replace("-", "−")


def setting_text(value: Any, most: int = LISTED) -> str:
    """A setting's value for people. most: values of a list that are named."""
    if value is None or value in ((), [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - most} more" if len(value) > most else ""
        return ", ".join(setting_text(each, most) for each in value[:most]) + more
    if isinstance(value, dict):
        return ", ".join(f"{key} {setting_text(each, most)}" for key, each in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:g}"
    return str(getattr(value, "__name__", value))


def as_json(value: Any) -> str:
    """JSON text, in which numbers that are not finite are null."""
    return f"{json.dumps(finite(to_data(value)), indent=1)}\n"
