"""Several runs side by side: their figures, what they differ in, and which of them no other one beats.

compared = prunus.compare(["runs/a", "runs/b"], out="runs/comparison")
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prunus.errors import FileError, RunError
from prunus.report.charts import CostPoint, cost_chart
from prunus.report.page import (
    MOST_ROWS,
    Cell,
    Table,
    as_json,
    class_cells,
    confusions,
    left_out,
    render_page,
    setting_text,
    value_cell,
)
from prunus.report.paired import OverSeeds, Pair, over_seeds, pair_table, tested
from prunus.report.read import FinishedRun, UnfinishedRun, read_run, read_unfinished
from prunus.report.text import points
from prunus.run.classes import ClassTable
from prunus.run.folder import CONFIG, SUMMARY
from prunus.studies.folder import as_csv
from prunus.studies.recipes import PublishedGroup, group_of, published
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.files import CURVE, PRUNING, held_by, write_atomically
from prunus.util.text import big_number, count, relative_change, short_table

PAGE, DATA = "compare.html", "compare.json"
FORMAT, VERSION = "prunus-comparison", 1
MACS, SPEEDUP = "MACs per image", "speed-up in "


@dataclass(frozen=True)
class Entrant:
    """A run of the comparison."""

    letter: str
    name: str
    run: FinishedRun | UnfinishedRun

    @property
    def network(self) -> str:
        """The network as the user named it, or its class."""
        start, command = self.run.config.get("start") or {}, self.run.command
        model = self.run.summary.model if isinstance(self.run, FinishedRun) else "a network"
        return str(start.get("network") or command.get("model") or model)

    @property
    def data(self) -> str | None:
        """The data set, if it has a name."""
        name = self.run.command.get("data")
        return None if name is None else str(name)


@dataclass(frozen=True)
class Side:
    """A finished run's network before or after: its quality, a fraction or any number, and what it costs."""

    quality: float
    costs: Mapping[str, float]  # kind of cost -> number; a speed-up relative to the original is one too

    def beats(self, other: Side, cost: str) -> bool:
        """Whether it is at least as good and as cheap as the other, and better in one of the two."""
        if cost not in self.costs or cost not in other.costs:
            return False
        ahead, cheaper = self.quality - other.quality, other.costs[cost] - self.costs[cost]
        cheaper = -cheaper if is_speed(cost) else cheaper
        return ahead >= 0 and cheaper >= 0 and (ahead > 0 or cheaper > 0)


def is_speed(cost: str) -> bool:
    """Whether more of it is better."""
    return cost.startswith(SPEEDUP)


def finished(entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, FinishedRun]]:
    """Those that have a result."""
    for entrant in entrants:
        if isinstance(entrant.run, FinishedRun):
            yield entrant, entrant.run


def sides(run: FinishedRun) -> tuple[Side, Side]:
    """Quality, on test images if there are any, and costs of the original and the pruned network.

    Seconds of different runs cannot be compared: the machine was busy with other things. Speed-ups can, because each
    run timed its network and the original in turns.
    """
    base, (part, _, now) = run.since_original, run.reported()
    was = base.before.test if part == "test" and base.before.test is not None else base.before.holdout
    both = []
    for place, (evaluation, figures) in enumerate(((was, base.before), (now, run.summary.after))):
        costs = {f"{SPEEDUP}{each.place}": each.ratio if place else 1.0 for each in base.speeds}
        costs |= {MACS: figures.macs, "weights": figures.params, "bytes": figures.bytes}
        both.append(Side(evaluation.quality, costs))
    return both[0], both[1]


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other.

    Attributes:
        entrants: The runs.
        published: Rows of the paper about the same networks and data.
        differing: Setting -> its value in each run, where not all are equal.
        notes: About what makes the comparison less than fair.
        pairs: Paired tests of the networks on the same images.
        over_seeds: Means of runs that differ only in their seed.
    """

    entrants: tuple[Entrant, ...]
    published: tuple[PublishedGroup, ...]
    differing: Mapping[str, tuple[Any, ...]]
    notes: tuple[str, ...]
    pairs: tuple[Pair, ...] = ()
    over_seeds: tuple[OverSeeds, ...] = ()

    def against_first(self, letter: str) -> str:
        """The p-value of the paired test of a run against the first one, as text; "–" if there is none."""
        first = self.entrants[0].letter
        found = [pair.result for pair in self.pairs if (pair.first, pair.second) == (first, letter)]
        return found[0].p_text if found and found[0] is not None else "–"

    def front(self, cost: str, quality: QualityText) -> frozenset[str]:
        """Letters of the finished runs that no other one beats: none costs less and is at least as good, or the same
        and better. Originals count."""
        runs = [(e.letter, sides(run)) for e, run in finished(self.entrants) if run.summary.quality == quality]
        rivals = [side for _, both in runs for side in both]
        known = [(letter, after) for letter, (_, after) in runs if cost in after.costs]
        return frozenset(letter for letter, after in known if not any(r.beats(after, cost) for r in rivals))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "runs": [_figures(entrant, self) for entrant in self.entrants],
            "differing_settings": {name: list(values) for name, values in self.differing.items()},
            "published": [asdict(group) for group in self.published],
            "paired_tests": [asdict(pair) for pair in self.pairs],
            "over_seeds": [asdict(group) for group in self.over_seeds],
            "notes": list(self.notes),
        }

    def write(self, folder: str | Path) -> Path:
        """Write the page and its data into a folder, and return the path of the page."""
        path = Path(folder)
        held = held_by(path)
        if held not in (None, CURVE):
            raise RunError(f"{path} holds {held}; write the comparison to another folder")
        page = render(self)
        write_atomically(path / DATA, f"{json.dumps(self.to_dict(), indent=2)}\n".encode())
        write_atomically(path / PAGE, page.encode())
        return path / PAGE

    def __repr__(self) -> str:
        """A short table."""
        rows = []
        for entrant in self.entrants:
            cells = ["not finished", ""]
            if isinstance(entrant.run, FinishedRun):
                after, quality = sides(entrant.run)[1], entrant.run.summary.quality
                cells = [quality.shown(after.quality), big_number(after.costs[MACS])]
            rows.append([f"{entrant.letter}  {entrant.name}", *cells])
        rows.sort(key=lambda row: row[1] == "not finished")
        return short_table(f"Comparison of {len(self.entrants)} runs", ("", "quality", "MACs"), rows)


def compare(runs: Sequence[str | Path], out: str | Path | None = None) -> Comparison:
    """Compare runs: what each one costs and how good it is, and what they were asked.

    Args:
        runs: Folders of `prunus prune` or `prunus.compress`; one that has not finished is listed as such.
        out: A folder for the page (compare.html) and its figures (compare.json); without it nothing is written.
    """
    if isinstance(runs, str | Path) or not runs:
        raise RunError(f"compare takes a list of folders, as in compare(['runs/a', 'runs/b']); got {runs!r}")
    entrants = _read_entrants([Path(folder) for folder in runs])
    groups = [group_of(entrant.network, entrant.data) for entrant in entrants if entrant.data is not None]
    rows = {(group.network, group.data): group for group in groups if group is not None}
    # What a run decided itself counts, not only what was typed.
    asked = [{**e.run.command, **e.run.config.get("settings", {})} for e in entrants]
    values = {
        name: tuple(each.get(name) for each in asked) for name in dict.fromkeys(n for each in asked for n in each)
    }
    differing = {name: each for name, each in values.items() if any(value != each[0] for value in each)}
    done = [(entrant.letter, run) for entrant, run in finished(entrants)]
    qualities = [(letter, run, sides(run)[0].quality, sides(run)[1].quality) for letter, run in done]
    compared = Comparison(
        entrants, tuple(rows.values()), differing, tuple(_notes(entrants)), tested(done), over_seeds(qualities)
    )
    if out is not None:
        compared.write(out)
    return compared


def _read_entrants(paths: Sequence[Path]) -> tuple[Entrant, ...]:
    """Read the runs; an error names a folder that holds none, and what it holds."""
    resolved = [path.resolve() for path in paths]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise RunError(f"{paths[place]} is named twice; name each run once")
    entrants = []
    for place, (path, whole) in enumerate(zip(paths, resolved, strict=True)):
        if not path.is_dir():
            raise FileError(f"{path} {'is a file' if path.exists() else 'does not exist'}; name folders of runs")
        held = held_by(path)
        if held != PRUNING:
            what = f"holds {held}" if held else f"holds no run (it has no {CONFIG})"
            raise FileError(f"{path} {what}; only runs of `prunus prune` or prunus.compress can be compared")
        again, letter = divmod(place, 26)  # A to Z, then A2 to Z2
        alike = sum(each.name == whole.name for each in resolved) > 1
        entrants.append(
            Entrant(
                string.ascii_uppercase[letter] + (f"{again + 1}" if again else ""),
                f"{whole.parent.name}/{whole.name}" if alike else whole.name,
                read_run(path) if (path / SUMMARY).exists() else read_unfinished(path),
            )
        )
    return tuple(entrants)


def _notes(entrants: Sequence[Entrant]) -> list[str]:
    """What makes the comparison less than fair."""

    def differ(value: Any) -> bool:
        return any(value(entrant) != value(entrants[0]) for entrant in entrants)

    def images(entrant: Entrant) -> Any:
        data = entrant.run.config.get("data") or {}
        return data.get("test") or data.get("holdout")

    notes = []
    if differ(lambda e: e.run.config.get("original")):
        listed = ", ".join(f"{e.letter} {e.network}" for e in entrants)
        notes.append(f"The runs are of different networks ({listed}): differences may be those of the networks.")
    elif len({e.run.config.get("weights") for e in entrants if not _earlier(e)}) > 1:
        notes.append("The runs started from different weights of the same network.")
    notes += [
        f"{entrant.letter} goes on from {_earlier(entrant)[-1]}. Its figures are relative to the original."
        for entrant in entrants
        if _earlier(entrant)
    ]
    if differ(lambda e: e.data):
        listed = ", ".join(f"{e.letter} {e.data or 'unnamed'}" for e in entrants)
        notes.append(f"The runs are on different data ({listed}): their qualities are not those of the same images.")
    elif differ(images):
        notes.append("The runs were not evaluated on the same images: their qualities may differ for that reason.")
    done = [run for _, run in finished(entrants)]
    if len({run.summary.quality for run in done}) > 1:
        notes.append("The runs are judged by different qualities, which are shown apart.")
    if len({run.reported()[0] for run in done}) > 1:
        notes.append("Some runs have test images and others only held-out images, which decisions used.")
    return notes


def _earlier(entrant: Entrant) -> list[str]:
    """Folders of the pruned networks that a run went on from."""
    return list((entrant.run.config.get("start") or {}).get("earlier", ()))


def _figures(entrant: Entrant, compared: Comparison) -> dict[str, Any]:
    """A run in compare.json."""
    run = entrant.run
    head: dict[str, Any] = {"letter": entrant.letter, "name": entrant.name, "folder": str(run.folder)}
    head |= {"network": entrant.network, "data": entrant.data}
    if not isinstance(run, FinishedRun):
        rounds = [{"round": r.number, "macs": r.macs, "quality": r.after.quality} for r in run.rounds]
        return {**head, "finished": False, "rounds": rounds}
    (before, after), quality = sides(run), run.summary.quality
    return {
        **head,
        "finished": True,
        "quality": asdict(quality),
        "measured_on": run.reported()[0],
        "before": asdict(before),
        "after": asdict(after),
        "speeds": [asdict(each) for each in run.since_original.speeds],
        "front": [cost for cost in after.costs if entrant.letter in compared.front(cost, quality)],
        "widths": {name: [run.plan.widths[name], len(kept)] for name, kept in run.plan.keep.items()},
        "classes": None if run.classes is None else asdict(run.classes),
    }


# -- the page


def render(compared: Comparison) -> str:
    """The page as HTML."""
    entrants = compared.entrants
    done = list(finished(entrants))
    names = list(dict.fromkeys(entrant.network for entrant in entrants))
    qualities = list(dict.fromkeys(run.summary.quality for _, run in done))
    charts = [(quality, _cost_charts(compared, quality)) for quality in qualities]
    known = [(entrant, run.classes) for entrant, run in done if run.classes is not None]
    tables = [
        _class_table([(entrant, classes) for entrant, classes in known if classes.names == same])
        for same in dict.fromkeys(classes.names for _, classes in known)
    ]
    unfinished = []
    for entrant in entrants:
        if isinstance(run := entrant.run, UnfinishedRun):
            so_far = "no round is finished"
            if run.rounds:
                last, quality = run.rounds[-1], run.quality
                reached = f"held-out {quality.name} {quality.shown(last.after.quality)}, {big_number(last.macs)} MACs"
                so_far = f"{count(len(run.rounds), 'round')} done: {reached}"
            again = f"Continue it: prunus prune --resume {run.folder}"
            unfinished.append((f"{entrant.letter} {entrant.name}", [f"{so_far}. {again}"]))
    return render_page(
        "compare.html",
        title=f"{count(len(entrants), 'run')} of {', '.join(names)}",
        compared=compared,
        entrants=entrants,
        paired=_paired(compared),
        over_seeds=_over_seeds(compared),
        runs=[(quality, _run_table(compared, quality)) for quality in qualities],
        unfinished=unfinished,
        charts=[(quality, [chart for chart, _ in drawn], any(p for _, p in drawn)) for quality, drawn in charts],
        source=published().source,
        differing=[
            (name.replace("_", " "), [setting_text(v) for v in each]) for name, each in compared.differing.items()
        ],
        widths=_width_table(done),
        done=done,
        without_classes=", ".join(entrant.letter for entrant, run in done if run.classes is None),
        class_tables=tables,
        confusions=[(entrant, shown) for entrant, classes in known if (shown := confusions(classes))],
        files=_files(compared),
    )


def _run_table(compared: Comparison, quality: QualityText) -> Table:
    """One row per finished run that was judged by this quality."""
    runs = [
        (entrant, run, *sides(run)) for entrant, run in finished(compared.entrants) if run.summary.quality == quality
    ]
    costs = list(dict.fromkeys(cost for _, _, _, now in runs for cost in now.costs))
    parts = {run.reported()[0] for _, run, _, _ in runs}
    part = parts.pop() if len(parts) == 1 else "test or held-out"
    rows = []
    for place, (entrant, run, was, now) in enumerate(runs):
        gained, speeds = (
            now.quality - was.quality,
            {f"{SPEEDUP}{each.place}": each for each in run.since_original.speeds},
        )
        cells = [
            Cell(entrant.letter, place, str(run.folder)),
            Cell(entrant.name, place, f"{entrant.network}, {entrant.data or 'data without a name'}"),
            Cell(quality.shown(now.quality), now.quality, f"before: {quality.shown(was.quality)}"),
            Cell(points(gained, quality), gained),
        ]
        for cost in costs:
            if cost not in was.costs or cost not in now.costs:
                cells.append(Cell("–", -1.0, "not measured in this run"))
                continue
            before, after = was.costs[cost], now.costs[cost]
            if is_speed(cost):
                text, said = f"{after:.2f}× ({speeds[cost].interval})", str(speeds[cost])
                cells.append(Cell(text, after, f"{said}, relative to the original network"))
                continue
            text = f"{big_number(after)} ({relative_change(before, after)})"
            cells.append(Cell(text, after, f"before: {big_number(before)}"))
        rows.append(cells)
    headings = ["run", "name", f"{part} {quality.name}", "change", *costs]
    if len(runs) > 1 and any(pair.result is not None for pair in compared.pairs):
        headings.insert(4, f"p against {compared.entrants[0].letter}")
        for (entrant, *_), cells in zip(runs, rows, strict=True):
            text = compared.against_first(entrant.letter)
            cells.insert(4, Cell(text, -1.0 if text == "–" else float(text.lstrip("< "))))
    return Table(f"Runs and their {quality.name}", headings, rows, texts=(1,))


def _paired(compared: Comparison) -> Table | None:
    """The paired tests, if there are any."""
    runs = {entrant.letter: (entrant.name, run.summary.quality) for entrant, run in finished(compared.entrants)}
    if not runs:
        return None
    names = {letter: name for letter, (name, _) in runs.items()}
    return pair_table(compared.pairs, names, next(iter(runs.values()))[1])


def _over_seeds(compared: Comparison) -> Table | None:
    """Means over seeds, if some runs differ only in their seed."""
    quality = {entrant.letter: run.summary.quality for entrant, run in finished(compared.entrants)}
    rows = []
    for place, group in enumerate(compared.over_seeds):
        text = quality[group.letters[0]]
        values = [(group.quality, group.standard_error), (group.change, group.change_error)]
        cells = [
            Cell(f"{shown} ±{text.number(error)}", value)
            for (value, error), shown in zip(
                values, (text.shown(group.quality), points(group.change, text)), strict=True
            )
        ]
        rows.append([Cell(", ".join(group.letters), place), Cell(f"{len(group.letters)}", len(group.letters)), *cells])
    return Table("Means over seeds", ["runs", "seeds", "quality", "change"], rows, texts=(0,)) if rows else None


def _cost_charts(compared: Comparison, quality: QualityText) -> list[tuple[Any, bool]]:
    """For each cost that a run knows: a chart, and whether it shows published figures."""
    runs = [
        (entrant, run, *sides(run)) for entrant, run in finished(compared.entrants) if run.summary.quality == quality
    ]
    charts = []
    for cost in dict.fromkeys(cost for *_, now in runs for cost in now.costs):
        front, drawn = compared.front(cost, quality), []
        key = {MACS: "macs", "weights": "params"}.get(cost)
        if key is not None and quality == ACCURACY:
            for row in (row for group in compared.published for row in group.rows):
                at, name = getattr(row, key), f"{row.method} ({row.by}), as published"
                if at is not None and row.top1 is not None:
                    drawn.append(CostPoint("published", name, at, row.top1))
        is_published = bool(drawn)
        for entrant, run, was, now in runs:
            if cost in now.costs:
                value, best = quality.factor * now.quality, entrant.letter in front
                ends = next(((s.low, s.high) for s in run.since_original.speeds if f"{SPEEDUP}{s.place}" == cost), None)
                drawn.append(CostPoint("run", entrant.name, now.costs[cost], value, entrant.letter, best, ends))
                name = f"{entrant.network} before pruning"
                drawn.append(CostPoint("original", name, was.costs[cost], quality.factor * was.quality))
        charts.append((cost_chart(list(dict.fromkeys(drawn)), cost, quality), is_published))
    return charts


def _width_table(done: Sequence[tuple[Entrant, FinishedRun]]) -> Table:
    """Channels that each run keeps, unit by unit."""
    rows = []
    for place, name in enumerate(dict.fromkeys(name for _, run in done for name in run.plan.keep)):
        cells = [Cell(name, place)]
        for _, run in done:
            plan = run.plan  # from the original network, also of a run that goes on from another
            if name not in plan.keep:
                cells.append(Cell("–", -1, "this network has no such unit"))
            else:
                left, width = len(plan.keep[name]), plan.widths[name]
                share, kept = left / width, f"{left} of {width}"
                cells.append(Cell(kept, share, f"{name}: {kept} channels", share))
        rows.append(cells)
    return Table("Channels kept in each run", ["unit", *(entrant.letter for entrant, _ in done)], rows)


def _class_table(mine: Sequence[tuple[Entrant, ClassTable]]) -> tuple[str, Table]:
    """The quality of each class in runs on the same classes, the worst first, and a sentence about it."""
    first = mine[0][1]

    def worst(number: int) -> float:
        return min(value for _, classes in mine if (value := classes.after.values[number]) is not None)

    rows = []
    for number in sorted(first.worst_first(), key=worst)[:MOST_ROWS]:
        values = [side.values[number] for _, classes in mine for side in (classes.before, classes.after)]
        rows.append([*class_cells(first, number), *map(value_cell, values)])
    headings = ["class", first.of, *(f"{entrant.letter} {when}" for entrant, _ in mine for when in ("before", "after"))]
    part = "test" if first.part == "test" else "held-out"
    text = f"{first.quality[:1].upper()}{first.quality[1:]} of each class on the {part} images.{left_out(first)}"
    return text, Table(f"{first.quality} of each class in each run", headings, rows, sorted=False)


def _files(compared: Comparison) -> dict[str, str]:
    """The figures as JSON, and those of the finished runs as CSV."""
    runs = [(entrant, run.summary.quality, sides(run)) for entrant, run in finished(compared.entrants)]
    costs = list(dict.fromkeys(cost for _, _, (_, now) in runs for cost in now.costs))
    headings = ["run", "name", "quality", "before", "after", *(f"{c} {w}" for c in costs for w in ("before", "after"))]
    rows = [
        [e.letter, e.name, quality.name, was.quality, now.quality]
        + [side.costs.get(cost) for cost in costs for side in (was, now)]
        for e, quality, (was, now) in runs
    ]
    return {DATA: as_json(compared.to_dict()), "compare.csv": as_csv(headings, rows)}
