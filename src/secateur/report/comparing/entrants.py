"""The runs of a comparison, each with a letter, and what it costs."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.base.folder_contents import PRUNING, held_by
from secateur.errors import FileError, RunError
from secateur.measuring.quality_words import QualityWords
from secateur.report.finished_run import FinishedRun, read_run
from secateur.report.sentences import reported_accuracy
from secateur.report.unfinished_run import UnfinishedRun, read_unfinished
from secateur.running.folder import CONFIG, SUMMARY, RunFolder


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
    return Side(was.top1, _costs(run, 0)), Side(now.top1, _costs(run, 1))


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
        raise FileError(f"{path} {held}; only runs of `secateur prune` or secateur.compress can be compared")
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
