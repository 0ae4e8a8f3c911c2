"""Everything that the report needs, read from the folder of a finished run and checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from prunus.decide.goal import Goal
from prunus.decide.sensitivity import Sensitivity, Tried
from prunus.errors import FileError
from prunus.graph.files import PLAN_FILE
from prunus.graph.plan import Plan
from prunus.plots.run_pictures import PICTURES, RunPictures, load_pictures
from prunus.run import report_files as class_summary
from prunus.run import report_files as network_shape
from prunus.run.folder import BASE, CLASSES, CONFIG, NETWORK, PROGRESS, ROUND, SENSITIVITY, SUMMARY, RunFolder
from prunus.run.round import Outcome
from prunus.run.settings import Settings
from prunus.score.scores import Scores, load_scores
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY, QualityWords
from prunus.timing.latency import Speedup
from prunus.train.checkpoint import METRICS_FILE, Epoch, from_dict

# Files that only runs of newer versions have: the quality of each class, and which layer feeds which.

PairNewerFiles = tuple[int, int, int]  # class, what it was taken for, how often


@dataclass(frozen=True)
class ClassSide:
    """Figures of the classes, before or after."""

    values: tuple[float | None, ...]  # None for a class that does not occur
    confused: tuple[PairNewerFiles, ...] | None  # the most frequent first; None if classes do not exclude each other
    complete: bool  # whether `confused` lists all pairs


@dataclass(frozen=True)
class ClassTable:
    """The quality of each class before and after."""

    part: str  # test or held-out
    quality: str  # accuracy, IoU, F1
    of: str  # images or pixels
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    before: ClassSide
    after: ClassSide

    def worst_first(self) -> list[int]:
        """The classes that occur, the lowest quality after pruning first."""
        known = [(value, place) for place, value in enumerate(self.after.values) if value is not None]
        return [place for _, place in sorted(known)]


@dataclass(frozen=True)
class Node:
    """A layer, or a place where values meet."""

    kind: str
    name: str
    sources: tuple[int, ...]  # places of the nodes that it reads


def read_classes(files: RunFolder) -> ClassTable | None:
    """classes.json, or None if there is none."""
    return files.parse(CLASSES, _classes) if files.has(CLASSES) else None


def read_shape(files: RunFolder) -> tuple[Node, ...]:
    """The nodes of network.json; empty if there is no such file."""
    return files.parse(NETWORK, _nodes) if files.has(NETWORK) else ()


def _check(words: Mapping[str, Any], form: str, version: int) -> None:
    if words.get("format") != form or words.get("version") != version:
        raise ValueError(f'expected "format": "{form}", "version": {version}')


def _classes(words: dict[str, Any]) -> ClassTable:
    _check(words, class_summary.FORMAT, class_summary.VERSION)
    sizes = tuple(int(size) for size in words["sizes"])
    names = words["names"] or [f"class {number}" for number in range(len(sizes))]
    return ClassTable(
        part="test" if words["part"] == "test" else "held-out",
        quality=str(words["quality"]),
        of=str(words["of"]),
        names=tuple(str(name) for name in names),
        sizes=sizes,
        before=_side_newer_files(words["before"], len(sizes)),
        after=_side_newer_files(words["after"], len(sizes)),
    )


def _side_newer_files(words: Mapping[str, Any], classes: int) -> ClassSide:
    values = tuple(None if value is None else float(value) for value in words["values"])
    if len(values) != classes:
        raise ValueError(f"{len(values)} values for {classes} classes")
    found = words["confused"]
    pairs = None if found is None else tuple((int(a), int(b), int(count)) for a, b, count in found)
    return ClassSide(values, pairs, bool(words["complete"]))


def _nodes(words: dict[str, Any]) -> tuple[Node, ...]:
    _check(words, network_shape.FORMAT_NETWORK_SHAPE, network_shape.VERSION_NETWORK_SHAPE)
    return tuple(Node(str(n["kind"]), str(n["name"]), tuple(int(i) for i in n["from"])) for n in words["nodes"])


Found = TypeVar("Found")
Pair = tuple[int, int]  # before, after
FORMAT, VERSION = "prunus-summary", 1


@dataclass(frozen=True)
class NetworkFigures:
    """Accuracy, size and speed of a network, before or after pruning."""

    holdout: Evaluation
    test: Evaluation | None
    macs: int
    params: int
    bytes: int
    latency: Mapping[str, float]  # batch size -> median seconds of a forward pass; empty if it was not measured
    quartiles: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of these seconds; empty in older runs


@dataclass(frozen=True)
class UnitWidth:
    """Number of channels of a unit, before and after."""

    kind: str
    width: int
    kept: int


@dataclass(frozen=True)
class LayerCost:
    """One layer, before and after."""

    inputs: Pair
    outputs: Pair
    macs: Pair
    params: Pair


@dataclass(frozen=True)
class SpeedFigures:
    """A goal in time: the speed-up that was asked, predicted and measured, and the time of layers."""

    engine: str
    batch: int
    threads: int
    asked: float
    predicted: float
    measured: Speedup | None  # None if the times of layers are of another machine
    seconds: tuple[float, float] | None  # per batch, measured, before and after
    layers: Mapping[str, tuple[float, float]]  # predicted seconds per batch, before and after


@dataclass(frozen=True)
class Round:
    """One round, read from its folder."""

    outcome: Outcome
    scores: Scores
    step: Plan  # channels are numbered as in the network that the round started from
    numbers: Mapping[str, tuple[int, ...]]  # unit -> original numbers of the channels that the round started from
    sensitivity: Sensitivity | None  # None if units were not ranked


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    folder: Path
    model: str  # the class of the network
    command: Mapping[str, Any] | None  # options of the command line; None if the library was called
    command_line: str | None  # the command that repeats the run
    network: str | None  # the name of the network that everything started from; None if the library was called
    earlier: tuple[str, ...]  # folders of the pruned networks that the run went on from, the first one first
    settings: Settings
    before: NetworkFigures
    after: NetworkFigures
    rounds: tuple[Round, ...]
    undone: int  # number of rounds that were undone because they lost too much
    units: Mapping[str, UnitWidth]
    layers: Mapping[str, LayerCost]
    seconds: Mapping[str, float]
    speedup: Mapping[str, Speedup]  # batch size -> speed relative to the original; empty if it was not measured
    notes: tuple[str, ...]  # about retraining that did not help, and lost accuracy
    time: SpeedFigures | None  # None if the goal was not in time
    versions: Mapping[str, str]
    plan: Plan
    pictures: RunPictures | None  # None if the run saved none
    quality: QualityWords = ACCURACY  # what the network was judged by
    classes: ClassTable | None = None  # None if the task has no classes, and for older runs
    shape: tuple[Node, ...] = ()  # layers and where they meet; empty for older runs


def read_run(folder: str | Path) -> FinishedRun:
    """Read the folder of a finished run. A FileError names the file that is missing or damaged."""
    path = Path(folder)
    files = RunFolder(path, writes=False)
    config, summary = _read_files(path, files)
    command, start = config.get("command"), config.get("start") or {}
    settings = _parsed(path / CONFIG, lambda: _settings(config["settings"]))
    outcomes = _parsed(path / SUMMARY, lambda: [Outcome.from_dict(words) for words in summary["rounds"]])
    return _parsed(
        path / SUMMARY,
        lambda: FinishedRun(
            folder=path,
            model=str(summary["model"]),
            command=command,
            command_line=config.get("command_line"),
            network=None if command is None else str(start.get("network", command["model"])),
            earlier=tuple(str(folder) for folder in start.get("earlier", ())),
            settings=settings,
            before=_side(summary["before"]),
            after=_side(summary["after"]),
            rounds=_rounds(files, outcomes, settings),
            undone=files.finished_rounds() - len(outcomes),
            units={name: UnitWidth(**words) for name, words in summary["units"].items()},
            layers={name: _layer(words) for name, words in summary["layers"].items()},
            seconds={phase: float(seconds) for phase, seconds in summary["seconds"].items()},
            speedup={size: Speedup(**words) for size, words in summary.get("speedup", {}).items()},
            notes=tuple(str(note) for note in summary.get("notes", ())),
            time=_speed(summary.get("time")),
            versions={name: str(version) for name, version in summary["versions"].items()},
            plan=_plan(path / PLAN_FILE),
            pictures=load_pictures(files.round(1) / PICTURES),
            quality=QualityWords(**summary.get("quality", {})),
            classes=read_classes(files),
            shape=read_shape(files),
        ),
    )


def _speed(words: Mapping[str, Any] | None) -> SpeedFigures | None:
    if words is None:
        return None
    return SpeedFigures(
        engine=str(words["engine"]),
        batch=int(words["batch"]),
        threads=int(words["threads"]),
        asked=float(words["asked"]),
        predicted=float(words["predicted"]),
        measured=None if words["measured"] is None else Speedup(**words["measured"]),
        seconds=None if words["seconds"] is None else (float(words["seconds"][0]), float(words["seconds"][1])),
        layers={name: (float(before), float(after)) for name, (before, after) in words["layers"].items()},
    )


def _read_files(path: Path, files: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and summary.json of a finished run, or a FileError."""
    if not path.is_dir():
        raise FileError(f"{path} is not a folder; give the folder of a run, such as runs/prune-resnet8-digits")
    if not files.has(CONFIG):
        raise FileError(f"{path} is not the folder of a run: it has no {CONFIG}")
    if not files.has(SUMMARY):
        raise FileError(
            f"{path / SUMMARY} is missing: the run is not finished. Continue it (prunus prune --resume {path}), "
            "then write the report again."
        )
    config, summary = files.read(CONFIG), files.read(SUMMARY)
    if summary.get("format") != FORMAT or summary.get("version") != VERSION:
        raise FileError(
            f'{path / SUMMARY} cannot be read by this version of prunus: expected "format": "{FORMAT}", '
            f'"version": {VERSION}'
        )
    if not isinstance(config.get("command"), dict | None):
        raise FileError(f"{path / CONFIG}: command should be an object, got {type(config['command']).__name__}")
    return config, summary


def _parsed(path: Path, parse: Callable[[], Found]) -> Found:
    """The result of `parse`; unexpected content becomes a FileError that names the file."""
    try:
        return parse()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{path} has unexpected content: {what}") from error


def _settings(words: Mapping[str, Any]) -> Settings:
    """The settings from JSON. Missing ones get their defaults, and lists become tuples."""
    known = {each.name for each in fields(Settings)}
    unknown = sorted(set(words) - known)
    if unknown:
        raise ValueError(f"this version of prunus has no setting {unknown[0]!r}")
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in words.items()}
    for name in (each.name for each in fields(Goal)):
        if not isinstance(values.get(name), int | float | None):
            raise ValueError(f"{name} is {values[name]!r}, not a number")
    return Settings(**values)


def _side(words: Mapping[str, Any]) -> NetworkFigures:
    test = words["test"]
    return NetworkFigures(
        Evaluation(**words["holdout"]),
        None if test is None else Evaluation(**test),
        int(words["macs"]),
        int(words["params"]),
        int(words["bytes"]),
        {str(size): float(seconds) for size, seconds in (words["latency"] or {}).items()},
        {str(size): (float(low), float(high)) for size, (low, high) in (words.get("quartiles") or {}).items()},
    )


def _layer(words: Mapping[str, Any]) -> LayerCost:
    return LayerCost(
        **{name: (int(words[name][0]), int(words[name][1])) for name in ("inputs", "outputs", "macs", "params")}
    )


def _rounds(files: RunFolder, outcomes: list[Outcome], settings: Settings) -> tuple[Round, ...]:
    rounds: list[Round] = []
    numbers: Mapping[str, tuple[int, ...]] = {}
    for number, outcome in enumerate(outcomes, start=1):
        folder = files.round(number)
        if not (folder / ROUND).exists():
            raise FileError(f"{folder / ROUND} is missing, although {SUMMARY} lists {len(outcomes)} rounds")
        step = _plan(folder / f"step-{PLAN_FILE}")
        found = None
        if settings.ranks:
            words = files.read(f"{folder.name}/{SENSITIVITY}")
            found = _parsed(folder / SENSITIVITY, lambda words=words: read_sensitivity(words))  # type: ignore[misc]
        scores = next(iter(load_scores(folder).values()), None)
        if scores is None:
            raise FileError(f"{folder / 'scores.json'} lists no metric")
        _check_agreement(folder, outcome, scores, step)
        first = {name: tuple(range(width)) for name, width in step.widths.items()}
        rounds.append(Round(outcome, scores, step, numbers or first, found))
        numbers = _plan(folder / PLAN_FILE).keep
    return tuple(rounds)


def _check_agreement(folder: Path, outcome: Outcome, scores: Scores, step: Plan) -> None:
    """Raise a FileError unless scores, plan and summary describe the same channels."""
    wrong = [unit for unit in outcome.chosen if unit not in step.widths]
    wrong += [unit for unit, values in scores.values.items() if len(values) != step.widths.get(unit, len(values))]
    if wrong:
        raise FileError(f"{folder}: {SUMMARY}, scores and step-{PLAN_FILE} do not agree about unit {wrong[0]!r}")


def read_sensitivity(words: Mapping[str, Any]) -> Sensitivity:
    """The inverse of `Sensitivity.to_dict`."""
    tried = {name: Tried(**row) for name, row in words["tried"].items()}
    curves = {name: tuple(Tried(**row) for row in rows) for name, rows in words["curves"].items()}
    return Sensitivity(**{**words, "tried": tried, "curves": curves})


def _plan(path: Path) -> Plan:
    if not path.exists():
        raise FileError(f"{path} is missing; the report needs it to list the removed channels")
    return Plan.load(path)


# What is known of a run that has not finished: its settings, the rounds so far, and the epochs of the one at work.


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that is at work, or was interrupted."""

    folder: Path
    config: Mapping[str, Any]
    base: Evaluation | None  # held-out; None until it was measured
    macs: int | None  # of the original network; None for older runs
    quality: QualityWords
    rounds: tuple[Outcome, ...]
    epochs: tuple[Epoch, ...]  # of the round at work
    doing: Mapping[str, Any] | None = None  # phase, steps and time of its last sign of life; None if there is none

    @property
    def command(self) -> Mapping[str, Any]:
        """Options of the command line; empty if the library was called."""
        return self.config.get("command") or {}


def read_unfinished(folder: Path) -> UnfinishedRun:
    """What the folder of a run holds so far. FileError if it holds no run."""
    files = RunFolder(folder, writes=False)
    if not folder.is_dir() or not files.has(CONFIG):
        raise FileError(f"{folder} is not the folder of a run: it has no {CONFIG}")
    base: dict[str, Any] = files.read(BASE) if files.has(BASE) else {}
    done = files.finished_rounds()
    rounds = [files.parse(f"{files.round(n).name}/{ROUND}", Outcome.from_dict) for n in range(1, done + 1)]
    return UnfinishedRun(
        folder,
        files.read(CONFIG),
        None if not base else files.parse(BASE, lambda words: Evaluation(**words["holdout"])),
        base.get("macs"),
        QualityWords(**base["quality"]) if "quality" in base else ACCURACY,
        tuple(rounds),
        _epochs(files.round(done + 1) / "checkpoint" / METRICS_FILE),
        files.read(PROGRESS) if files.has(PROGRESS) else None,
    )


def _epochs(path: Path) -> tuple[Epoch, ...]:
    """The epochs in a training's journal; none if it is not there (yet, or any more)."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(from_dict(json.loads(line)) for line in lines)
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
