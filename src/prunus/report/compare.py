"""Several runs side by side: their figures, what they differ in, and which of them no other one beats.

compared = prunus.compare(["runs/a", "runs/b"], out="runs/comparison")
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prunus.errors import FileError, RunError
from prunus.report.charts import CostPoint, cost_chart
from prunus.report.page import (
    Cell,
    Table,
    about_classes,
    as_json,
    class_table,
    confusions,
    points,
    render_page,
    setting_text,
)
from prunus.report.paired import OverSeeds, Pair, over_seeds, pair_table, seed_table, tested
from prunus.report.read import FinishedRun, UnfinishedRun, read_run, read_unfinished
from prunus.run.folder import CONFIG, SUMMARY
from prunus.studies.folder import as_csv
from prunus.studies.recipes import PublishedGroup, group_of, published
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.files import CURVE, PRUNING, held_by, write_atomically, write_json
from prunus.util.text import big_number, count, relative_change, short_table

PAGE, DATA = "compare.html", "compare.json"
FORMAT, VERSION = "prunus-comparison", 1
MACS, SPEEDUP = "MACs per image", "speed-up in "


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
        cheaper = -cheaper if cost.startswith(SPEEDUP) else cheaper  # more speed is better
        return ahead >= 0 and cheaper >= 0 and (ahead > 0 or cheaper > 0)


@dataclass(frozen=True)
class Entrant:
    """A run of the comparison."""

    letter: str
    name: str
    run: FinishedRun | UnfinishedRun

    @property
    def network(self) -> str:
        """The network as the user named it, or its class."""
        model = self.run.summary.model if isinstance(self.run, FinishedRun) else "a network"
        return str(self.run.start.get("network") or self.run.command.get("model") or model)

    @property
    def data(self) -> str | None:
        """The data set, if it has a name."""
        name = self.run.command.get("data")
        return None if name is None else str(name)

    @property
    def earlier(self) -> list[str]:
        """Folders of the pruned networks that the run went on from."""
        return list(self.run.start.get("earlier", ()))


@dataclass(frozen=True)
class Result(Entrant):
    """A run that has finished: quality, on test images if there are any, and costs of both networks.

    Seconds of different runs cannot be compared: the machine was busy with other things. Speed-ups can, because each
    run timed its network and the original in turns.
    """

    run: FinishedRun
    before: Side
    after: Side

    @classmethod
    def of(cls, letter: str, name: str, run: FinishedRun) -> Result:
        """The result in the files of a run."""
        base, (part, _, now) = run.since_original, run.reported()
        was = base.before.test if part == "test" and base.before.test is not None else base.before.holdout
        sides = []
        for is_after, (evaluation, figures) in enumerate(((was, base.before), (now, run.summary.after))):
            costs = {f"{SPEEDUP}{each.place}": each.ratio if is_after else 1.0 for each in base.speeds}
            costs |= {MACS: figures.macs, "weights": figures.params, "bytes": figures.bytes}
            sides.append(Side(evaluation.quality, costs))
        return cls(letter, name, run, *sides)


def costs_of(results: Sequence[Result]) -> list[str]:
    """The kinds of cost that at least one run knows."""
    return list(dict.fromkeys(cost for result in results for cost in result.after.costs))


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

    def results(self, quality: QualityText | None = None) -> list[Result]:
        """The runs that have finished, and were measured by this quality if one is given."""
        done = [each for each in self.entrants if isinstance(each, Result)]
        return [each for each in done if quality in (None, each.run.summary.quality)]

    def qualities(self) -> list[QualityText]:
        """What the finished runs were measured by."""
        return list(dict.fromkeys(each.run.summary.quality for each in self.results()))

    def against_first(self, letter: str) -> str:
        """The p-value of the paired test of a run against the first one, as text; "–" if there is none."""
        first = self.entrants[0].letter
        tests = [pair.result for pair in self.pairs if (pair.first, pair.second) == (first, letter)]
        return tests[0].p_text if tests and tests[0] is not None else "–"

    def front(self, cost: str, quality: QualityText) -> frozenset[str]:
        """Letters of the finished runs that no other one beats: none costs less and is at least as good, or the same
        and better. Originals count."""
        results = self.results(quality)
        rivals = [side for each in results for side in (each.before, each.after)]
        known = [each for each in results if cost in each.after.costs]
        return frozenset(each.letter for each in known if not any(r.beats(each.after, cost) for r in rivals))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "runs": [self._figures(entrant) for entrant in self.entrants],
            "differing_settings": {name: list(values) for name, values in self.differing.items()},
            "published": [asdict(group) for group in self.published],
            "paired_tests": [asdict(pair) for pair in self.pairs],
            "over_seeds": [asdict(group) for group in self.over_seeds],
            "notes": list(self.notes),
        }

    def _figures(self, entrant: Entrant) -> dict[str, Any]:
        """A run in compare.json."""
        run = entrant.run
        head: dict[str, Any] = {"letter": entrant.letter, "name": entrant.name, "folder": str(run.folder)}
        head |= {"network": entrant.network, "data": entrant.data}
        if isinstance(run, UnfinishedRun):
            rounds = [{"round": r.number, "macs": r.macs, "quality": r.after.quality} for r in run.rounds]
            return {**head, "finished": False, "rounds": rounds}
        assert isinstance(entrant, Result)
        quality = run.summary.quality
        return {
            **head,
            "finished": True,
            "quality": asdict(quality),
            "measured_on": run.reported()[0],
            "before": asdict(entrant.before),
            "after": asdict(entrant.after),
            "speeds": [asdict(each) for each in run.since_original.speeds],
            "front": [cost for cost in entrant.after.costs if entrant.letter in self.front(cost, quality)],
            "widths": {name: [run.plan.widths[name], len(kept)] for name, kept in run.plan.keep.items()},
            "classes": None if run.classes is None else asdict(run.classes),
        }

    def write(self, folder: str | Path) -> Path:
        """Write the page and its data into a folder, and return the path of the page."""
        path = Path(folder)
        content = held_by(path)
        if content not in (None, CURVE):
            raise RunError(f"{path} holds {content}; write the comparison to another folder")
        page = render(self)
        write_json(path / DATA, self.to_dict())
        write_atomically(path / PAGE, page.encode())
        return path / PAGE

    def __repr__(self) -> str:
        """A short table."""
        rows = []
        for each in self.entrants:
            cells = ["not finished", ""]
            if isinstance(each, Result):
                cells = [each.run.summary.quality.shown(each.after.quality), big_number(each.after.costs[MACS])]
            rows.append([f"{each.letter}  {each.name}", *cells])
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
    settings = [{**e.run.command, **e.run.config.get("settings", {})} for e in entrants]
    names = dict.fromkeys(name for each in settings for name in each)
    values = {name: tuple(each.get(name) for each in settings) for name in names}
    differing = {name: each for name, each in values.items() if any(value != each[0] for value in each)}
    results = [each for each in entrants if isinstance(each, Result)]
    compared = Comparison(
        entrants,
        tuple(rows.values()),
        differing,
        tuple(_notes(entrants)),
        tested([(each.letter, each.run) for each in results]),
        over_seeds([(each.letter, each.run, each.before.quality, each.after.quality) for each in results]),
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
    entrants: list[Entrant] = []
    for place, (path, whole) in enumerate(zip(paths, resolved, strict=True)):
        if not path.is_dir():
            raise FileError(f"{path} {'is a file' if path.exists() else 'does not exist'}; name folders of runs")
        content = held_by(path)
        if content != PRUNING:
            what = f"holds {content}" if content else f"holds no run (it has no {CONFIG})"
            raise FileError(f"{path} {what}; only runs of `prunus prune` or prunus.compress can be compared")
        again, number = divmod(place, 26)  # A to Z, then A2 to Z2
        letter = string.ascii_uppercase[number] + (f"{again + 1}" if again else "")
        alike = sum(each.name == whole.name for each in resolved) > 1
        name = f"{whole.parent.name}/{whole.name}" if alike else whole.name
        done = (path / SUMMARY).exists()
        entrants.append(
            Result.of(letter, name, read_run(path)) if done else Entrant(letter, name, read_unfinished(path))
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
    elif len({e.run.config.get("weights") for e in entrants if not e.earlier}) > 1:
        notes.append("The runs started from different weights of the same network.")
    notes += [
        f"{entrant.letter} goes on from {entrant.earlier[-1]}. Its figures are relative to the original."
        for entrant in entrants
        if entrant.earlier
    ]
    if differ(lambda e: e.data):
        listed = ", ".join(f"{e.letter} {e.data or 'unnamed'}" for e in entrants)
        notes.append(f"The runs are on different data ({listed}): their qualities are not those of the same images.")
    elif differ(images):
        notes.append("The runs were not evaluated on the same images: their qualities may differ for that reason.")
    done = [entrant.run for entrant in entrants if isinstance(entrant.run, FinishedRun)]
    if len({run.summary.quality for run in done}) > 1:
        notes.append("The runs are measured by different qualities, which are shown apart.")
    if len({run.reported()[0] for run in done}) > 1:
        notes.append("Some runs have test images and others only held-out images, which decisions used.")
    return notes


# -- the page


def render(compared: Comparison) -> str:
    """The page as HTML."""
    entrants, results = compared.entrants, compared.results()
    qualities = compared.qualities()
    charts = [(quality, _cost_charts(compared, quality)) for quality in qualities]
    known = [(each, each.run.classes) for each in results if each.run.classes is not None]
    class_tables = []
    for names in dict.fromkeys(classes.names for _, classes in known):
        same = [(entrant.letter, classes) for entrant, classes in known if classes.names == names]
        class_tables.append((about_classes(same[0][1]), class_table(same)))
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
    letters = {entrant.letter: entrant.name for entrant in entrants}
    return render_page(
        "compare.html",
        title=f"{count(len(entrants), 'run')} of {', '.join(dict.fromkeys(each.network for each in entrants))}",
        compared=compared,
        entrants=entrants,
        paired=pair_table(compared.pairs, letters, qualities[0]) if qualities else None,
        over_seeds=seed_table(compared.over_seeds, {each.letter: each.run.summary.quality for each in results}),
        runs=[(quality, run_table(compared, quality)) for quality in qualities],
        unfinished=unfinished,
        charts=[(quality, [chart for chart, _ in drawn], any(p for _, p in drawn)) for quality, drawn in charts],
        source=published().source,
        differing=[
            (name.replace("_", " "), [setting_text(v) for v in each]) for name, each in compared.differing.items()
        ],
        widths=_width_table(results),
        done=results,
        without_classes=", ".join(each.letter for each in results if each.run.classes is None),
        class_tables=class_tables,
        confusions=[(entrant, shown) for entrant, classes in known if (shown := confusions(classes))],
        files=_files(compared),
    )


def run_table(compared: Comparison, quality: QualityText, shown: Sequence[str] | None = None) -> Table:
    """One row per finished run that was measured by this quality. shown: the costs; all by default."""
    results = compared.results(quality)
    costs, parts = shown or costs_of(results), {each.run.reported()[0] for each in results}
    part = parts.pop() if len(parts) == 1 else "test or held-out"
    is_tested = len(results) > 1 and any(pair.result is not None for pair in compared.pairs)
    rows = []
    for place, each in enumerate(results):
        was, now = each.before, each.after
        gained, speeds = now.quality - was.quality, {s.place: s for s in each.run.since_original.speeds}
        cells = [
            Cell(each.letter, place, str(each.run.folder)),
            Cell(each.name, place, f"{each.network}, {each.data or 'data without a name'}"),
            Cell(quality.shown(now.quality), now.quality, f"before: {quality.shown(was.quality)}"),
            Cell(points(gained, quality), gained),
        ]
        if is_tested:
            text = compared.against_first(each.letter)
            cells.append(Cell(text, -1.0 if text == "–" else float(text.lstrip("< "))))
        for cost in costs:
            before, after, speed = was.costs.get(cost), now.costs.get(cost), speeds.get(cost.removeprefix(SPEEDUP))
            if before is None or after is None:
                cells.append(Cell("–", -1.0, "not measured in this run"))
            elif speed is not None:
                text = f"{after:.2f}× ({speed.interval})"
                cells.append(Cell(text, after, f"{speed}, relative to the original network"))
            else:
                text = f"{big_number(after)} ({relative_change(before, after)})"
                cells.append(Cell(text, after, f"before: {big_number(before)}"))
        rows.append(cells)
    p = [f"p against {compared.entrants[0].letter}"] if is_tested else []
    headings = ["run", "name", f"{part} {quality.name}", "change", *p, *costs]
    return Table(f"Runs and their {quality.name}", headings, rows, texts=(1,))


def _cost_charts(compared: Comparison, quality: QualityText) -> list[tuple[Any, bool]]:
    """For each cost that a run knows: a chart, and whether it shows published figures."""
    results, charts = compared.results(quality), []
    for cost in costs_of(results):
        front, drawn = compared.front(cost, quality), []
        key = {MACS: "macs", "weights": "params"}.get(cost)
        if key is not None and quality == ACCURACY:
            for row in (row for group in compared.published for row in group.rows):
                at, name = getattr(row, key), f"{row.method} ({row.by}), as published"
                if at is not None and row.top1 is not None:
                    drawn.append(CostPoint("published", name, at, row.top1))
        is_published = bool(drawn)
        for each in (each for each in results if cost in each.after.costs):
            letter, value = each.letter, quality.factor * each.after.quality
            speeds = [s for s in each.run.since_original.speeds if f"{SPEEDUP}{s.place}" == cost]
            ends = (speeds[0].low, speeds[0].high) if speeds else None
            at = each.after.costs[cost]
            drawn.append(CostPoint("run", each.name, at, value, letter, letter in front, ends))
            name = f"{each.network} before pruning"
            drawn.append(CostPoint("original", name, each.before.costs[cost], quality.factor * each.before.quality))
        charts.append((cost_chart(list(dict.fromkeys(drawn)), cost, quality), is_published))
    return charts


def _width_table(results: Sequence[Result]) -> Table:
    """Channels that each run keeps, unit by unit."""
    rows = []
    for place, name in enumerate(dict.fromkeys(name for each in results for name in each.run.plan.keep)):
        cells = [Cell(name, place)]
        for each in results:
            plan = each.run.plan  # from the original network, also of a run that goes on from another
            if name not in plan.keep:
                cells.append(Cell("–", -1, "this network has no such unit"))
            else:
                left, width = len(plan.keep[name]), plan.widths[name]
                share, kept = left / width, f"{left} of {width}"
                cells.append(Cell(kept, share, f"{name}: {kept} channels", share))
        rows.append(cells)
    return Table("Channels kept in each run", ["unit", *(each.letter for each in results)], rows)


def _files(compared: Comparison) -> dict[str, str]:
    """The figures as JSON, and those of the finished runs as CSV."""
    results = compared.results()
    costs = costs_of(results)
    headings = ["run", "name", "quality", "before", "after", *(f"{c} {w}" for c in costs for w in ("before", "after"))]
    rows = [
        [each.letter, each.name, each.run.summary.quality.name, each.before.quality, each.after.quality]
        + [side.costs.get(cost) for cost in costs for side in (each.before, each.after)]
        for each in results
    ]
    return {DATA: as_json(compared.to_dict()), "compare.csv": as_csv(headings, rows)}
