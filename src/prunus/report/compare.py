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
from prunus.report.read import FinishedRun, UnfinishedRun, read_run, read_unfinished
from prunus.report.text import reported_accuracy
from prunus.run.folder import CONFIG, SUMMARY, RunFolder
from prunus.studies.recipes import PublishedGroup, group_of
from prunus.tasks.quality import QualityWords
from prunus.util.files import PRUNING, held_by, write_atomically
from prunus.util.text import big_number, short_table

# The runs of a comparison, each with a letter, and what it costs.


@dataclass(frozen=True)
class Entrant:
    """A run of the comparison."""

    letter: str
    name: str
    config: Mapping[str, Any]
    run: FinishedRun | UnfinishedRun

    @property
    def network(self) -> str:
        """The network as the user named it, or its class."""
        if isinstance(self.run, FinishedRun):
            return str(self.run.network or self.run.model)
        return str(self.run.command.get("model", "a network"))

    @property
    def data(self) -> str | None:
        """The data set, if it has a name."""
        found = (self.run.command or {}).get("data")
        return None if found is None else str(found)


@dataclass(frozen=True)
class Side:
    """A finished run's network before or after: its quality, a fraction or any number, and what it costs."""

    quality: float
    costs: Mapping[str, float]  # kind of cost -> number


def finished(entrants: Sequence[Entrant]) -> Iterator[tuple[Entrant, FinishedRun]]:
    """Those that have a result."""
    for entrant in entrants:
        if isinstance(entrant.run, FinishedRun):
            yield entrant, entrant.run


def sides(run: FinishedRun) -> tuple[Side, Side]:
    """Quality, on test images if there are any, and costs of the original and the pruned network."""
    _, was, now = reported_accuracy(run)
    return Side(was.quality, _costs(run, 0)), Side(now.quality, _costs(run, 1))


def _costs(run: FinishedRun, place: int) -> dict[str, float]:
    figures = (run.before, run.after)[place]
    costs: dict[str, float] = {"MACs per image": figures.macs, "weights": figures.params, "bytes": figures.bytes}
    costs |= {f"ms, batch {size}": 1e3 * seconds for size, seconds in figures.latency.items()}
    if run.time is not None and run.time.seconds is not None:
        costs[f"ms, {run.time.engine}, batch {run.time.batch}"] = 1e3 * run.time.seconds[place]
    return costs


def qualities(entrants: Sequence[Entrant]) -> list[QualityWords]:
    """The qualities that finished runs were judged by, each once."""
    return list(dict.fromkeys(run.quality for _, run in finished(entrants)))


def read_entrants(folders: Sequence[str | Path]) -> tuple[Entrant, ...]:
    """Read the runs; an error names a folder that holds none, and what it holds."""
    paths = [Path(folder) for folder in folders]
    if len({path.resolve() for path in paths}) < len(paths):
        twice = next(path for place, path in enumerate(paths) if path.resolve() in {p.resolve() for p in paths[:place]})
        raise RunError(f"{twice} is named twice; name each run once")
    names = _names(paths)
    return tuple(_entrant(place, path, names[place]) for place, path in enumerate(paths))


def _entrant(place: int, path: Path, name: str) -> Entrant:
    if not path.is_dir():
        raise FileError(f"{path} {'is a file' if path.exists() else 'does not exist'}; name folders of runs")
    found = held_by(path)
    if found != PRUNING:
        held = f"holds {found}" if found else f"holds no run (it has no {CONFIG})"
        raise FileError(f"{path} {held}; only runs of `prunus prune` or prunus.compress can be compared")
    files = RunFolder(path, writes=False)
    run = read_run(path) if files.has(SUMMARY) else read_unfinished(path)
    return Entrant(_letter(place), name, files.read(CONFIG), run)


def _letter(place: int) -> str:
    """A to Z, then A2 to Z2."""
    again, letter = divmod(place, 26)
    return string.ascii_uppercase[letter] + (f"{again + 1}" if again else "")


def _names(paths: Sequence[Path]) -> list[str]:
    """The name of each folder; with its parent where two are called alike."""
    short = [path.resolve().name for path in paths]
    return [
        f"{path.resolve().parent.name}/{name}" if short.count(name) > 1 else name
        for path, name in zip(paths, short, strict=True)
    ]


PAGE, DATA = "compare.html", "compare.json"
FORMAT, VERSION = "prunus-comparison", 1
IDENTITY = ("fingerprint", "weights")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs beside each other."""

    entrants: tuple[Entrant, ...]
    published: tuple[PublishedGroup, ...]  # rows of the paper about the same networks and data
    differing: Mapping[str, tuple[Any, ...]]  # setting -> its value in each run, where not all are equal
    notes: tuple[str, ...]  # about what makes the comparison less than fair

    def front(self, cost: str, quality: Any) -> frozenset[str]:
        """Letters of the finished runs that no other one beats: none costs less and is at least as good, or the same
        and better. Originals count."""
        found = [(e.letter, sides(run)[1]) for e, run in finished(self.entrants) if run.quality == quality]
        rivals = [side for _, run in finished(self.entrants) if run.quality == quality for side in sides(run)]
        known = [(letter, side) for letter, side in found if cost in side.costs]
        return frozenset(letter for letter, side in known if not any(beats(r, side, cost) for r in rivals))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "runs": [_words(entrant, self) for entrant in self.entrants],
            "differing_settings": {name: list(values) for name, values in self.differing.items()},
            "published": [asdict(group) for group in self.published],
            "notes": list(self.notes),
        }

    def write(self, folder: str | Path) -> Path:
        """Write the page and its data into a folder, and return the path of the page."""
        from prunus.report.compare_page import render

        path = Path(folder)
        held = held_by(path)
        if held is not None:
            raise RunError(f"{path} holds {held}; write the comparison to another folder")
        page = render(self)
        write_atomically(path / DATA, f"{json.dumps(self.to_dict(), indent=2)}\n".encode())
        write_atomically(path / PAGE, page.encode())
        return path / PAGE

    def __repr__(self) -> str:
        """A short table."""
        rows = [
            [f"{e.letter}  {e.name}", run.quality.shown(sides(run)[1].quality), big_number(run.after.macs)]
            for e, run in finished(self.entrants)
        ]
        rows += [[f"{e.letter}  {e.name}", "not finished", ""] for e in self.entrants if not _is_finished(e)]
        return short_table(f"Comparison of {len(self.entrants)} runs", ("", "quality", "MACs"), rows)


def beats(one: Side, other: Side, cost: str) -> bool:
    """Whether one is at least as good and as cheap as the other, and better in one of the two."""
    if cost not in one.costs or cost not in other.costs:
        return False
    ahead, cheaper = one.quality - other.quality, other.costs[cost] - one.costs[cost]
    return ahead >= 0 and cheaper >= 0 and (ahead > 0 or cheaper > 0)


def compare(runs: Sequence[str | Path], out: str | Path | None = None) -> Comparison:
    """Compare runs: what each one costs and how good it is, and what they were asked.

    runs: folders of `prunus prune` or `prunus.compress`; one that has not finished is listed as such.
    out: a folder for the page (compare.html) and its figures (compare.json); without it nothing is written.
    """
    if isinstance(runs, str | Path) or not runs:
        raise RunError(f"compare takes a list of folders, as in compare(['runs/a', 'runs/b']); got {runs!r}")
    entrants = read_entrants(runs)
    found = Comparison(entrants, _published(entrants), _differing(entrants), tuple(_notes(entrants)))
    if out is not None:
        found.write(out)
    return found


def _is_finished(entrant: Entrant) -> bool:
    return isinstance(entrant.run, FinishedRun)


def _published(entrants: Sequence[Entrant]) -> tuple[PublishedGroup, ...]:
    groups = [group_of(entrant.network, entrant.data) for entrant in entrants if entrant.data is not None]
    return tuple({(group.network, group.data): group for group in groups if group is not None}.values())


def _differing(entrants: Sequence[Entrant]) -> dict[str, tuple[Any, ...]]:
    """Settings that are not the same in all runs. What the run decided itself counts, not only what was typed."""
    asked = [{**(e.config.get("command") or {}), **e.config.get("settings", {})} for e in entrants]
    names = dict.fromkeys(name for words in asked for name in words)
    values = {name: tuple(words.get(name) for words in asked) for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _notes(entrants: Sequence[Entrant]) -> list[str]:
    found = []
    first, *others = entrants
    networks = {e.config.get("fingerprint") for e in entrants}
    if len(networks) > 1:
        listed = ", ".join(f"{e.letter} {e.network}" for e in entrants)
        found.append(f"The runs are of different networks ({listed}): differences may be those of the networks.")
    elif any(e.config.get("weights") != first.config.get("weights") for e in others):
        found.append("The runs started from different weights of the same network.")
    if len({e.data for e in entrants}) > 1:
        listed = ", ".join(f"{e.letter} {e.data or 'unnamed'}" for e in entrants)
        found.append(f"The runs are on different data ({listed}): their qualities are not those of the same images.")
    elif any(_images(e) != _images(first) for e in others):
        found.append("The runs were not evaluated on the same images: their qualities may differ for that reason.")
    done = [run for _, run in finished(entrants)]
    if len({run.quality for run in done}) > 1:
        found.append("The runs are judged by different qualities, which are shown apart.")
    if len({reported_accuracy(run)[0] for run in done}) > 1:
        found.append("Some runs have test images and others only held-out images, which decisions used.")
    return found


def _images(entrant: Entrant) -> Any:
    """What is known of the images that the reported quality is of."""
    data = entrant.config.get("data") or {}
    return data.get("test") or data.get("holdout")


def _words(entrant: Entrant, whole: Comparison) -> dict[str, Any]:
    head: dict[str, Any] = {"letter": entrant.letter, "name": entrant.name, "folder": str(entrant.run.folder)}
    head |= {"network": entrant.network, "data": entrant.data}
    run = entrant.run
    if not isinstance(run, FinishedRun):
        rounds = [{"round": r.number, "macs": r.macs, "quality": r.after.quality} for r in run.rounds]
        return {**head, "finished": False, "rounds": rounds}
    before, after = sides(run)
    return {
        **head,
        "finished": True,
        "quality": asdict(run.quality),
        "measured_on": reported_accuracy(run)[0],
        "before": asdict(before),
        "after": asdict(after),
        "speedup": {size: asdict(found) for size, found in run.speedup.items()},
        "front": [cost for cost in after.costs if entrant.letter in whole.front(cost, run.quality)],
        "widths": {name: [unit.width, unit.kept] for name, unit in run.units.items()},
        "classes": None if run.classes is None else asdict(run.classes),
    }
