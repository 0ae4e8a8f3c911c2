"""A finished run, read from its folder and checked: what the report is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from secateur.channels.files import PLAN_FILE
from secateur.channels.plan import Plan
from secateur.deciding.sensitivity import Sensitivity, Tried
from secateur.errors import FileError
from secateur.measuring.accuracy import Accuracy
from secateur.pictures.run_pictures import PICTURES, Pictures, load_pictures
from secateur.running.folder import CONFIG, ROUND, SENSITIVITY, SUMMARY, RunFolder
from secateur.running.rounds import Outcome
from secateur.running.settings import Settings
from secateur.scoring.scores import Scores, load_scores

Found = TypeVar("Found")
Pair = tuple[int, int]  # before, after
FORMAT, VERSION = "secateur-summary", 1


@dataclass(frozen=True)
class Side:
    """The network before or after."""

    holdout: Accuracy
    test: Accuracy | None
    macs: int
    params: int
    bytes: int
    latency: Mapping[str, float]  # batch size -> median seconds of a forward pass; empty where it was not measured


@dataclass(frozen=True)
class UnitWidth:
    """Channels of a unit."""

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
class Round:
    """What one round left in the folder."""

    outcome: Outcome
    scores: Scores
    step: Plan  # in the numbering of the network that the round started from
    numbers: Mapping[str, tuple[int, ...]]  # unit -> the original numbers of the channels the round started from
    sensitivity: Sensitivity | None  # None where every unit lost the same share


@dataclass(frozen=True)
class Run:
    """All of a finished run."""

    folder: Path
    model: str  # the class of the network
    command: Mapping[str, Any] | None  # what was typed; None where the library was called
    settings: Settings
    before: Side
    after: Side
    rounds: tuple[Round, ...]
    undone: int  # rounds that were made and taken back because they lost too much
    units: Mapping[str, UnitWidth]
    layers: Mapping[str, LayerCost]
    seconds: Mapping[str, float]
    versions: Mapping[str, str]
    plan: Plan
    pictures: Pictures | None  # None for runs that kept none


def read_run(folder: str | Path) -> Run:
    """Read the folder of a finished run; FileError names the file that is missing or broken."""
    path = Path(folder)
    files = RunFolder(path, writes=False)
    if not path.is_dir():
        raise FileError(f"{path} is not a folder; give the folder of a run, such as runs/prune-resnet8-digits")
    if not files.has(CONFIG):
        raise FileError(f"{path} is not the folder of a run: it has no {CONFIG}")
    if not files.has(SUMMARY):
        raise FileError(
            f"{path / SUMMARY} is missing: the run is not finished. Go on with it (secateur prune --resume {path}), "
            "then ask for the report again."
        )
    config, summary = files.read(CONFIG), files.read(SUMMARY)
    if summary.get("format") != FORMAT or summary.get("version") != VERSION:
        raise FileError(f'{path / SUMMARY} is not a summary that this secateur can read: "format": "{FORMAT}" expected')
    command = config.get("command")
    if command is not None and not isinstance(command, dict):
        raise FileError(f"{path / CONFIG}: command should be an object, and is {type(command).__name__}")
    settings = _parsed(path / CONFIG, lambda: _settings(config["settings"]))
    outcomes = _parsed(path / SUMMARY, lambda: [Outcome.from_dict(words) for words in summary["rounds"]])
    return _parsed(
        path / SUMMARY,
        lambda: Run(
            folder=path,
            model=str(summary["model"]),
            command=command,
            settings=settings,
            before=_side(summary["before"]),
            after=_side(summary["after"]),
            rounds=_rounds(files, outcomes, settings),
            undone=files.finished_rounds() - len(outcomes),
            units={name: UnitWidth(**words) for name, words in summary["units"].items()},
            layers={name: _layer(words) for name, words in summary["layers"].items()},
            seconds={phase: float(seconds) for phase, seconds in summary["seconds"].items()},
            versions={name: str(version) for name, version in summary["versions"].items()},
            plan=_plan(path / PLAN_FILE),
            pictures=load_pictures(files.round(1) / PICTURES),
        ),
    )


def _parsed(path: Path, parse: Callable[[], Found]) -> Found:
    """What `parse` makes of a file; content of another shape is a FileError that names the file."""
    try:
        return parse()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{path} is not as secateur writes it: {what}") from error


def _settings(words: Mapping[str, Any]) -> Settings:
    """Settings; those that a later version has added keep their defaults, and lists are tuples again."""
    known = {field.name for field in fields(Settings)}
    unknown = sorted(set(words) - known)
    if unknown:
        raise ValueError(f"the setting {unknown[0]!r} is not known to this version of secateur")
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in words.items()}
    return Settings(**values)


def _side(words: Mapping[str, Any]) -> Side:
    test = words["test"]
    return Side(
        Accuracy(**words["holdout"]),
        None if test is None else Accuracy(**test),
        int(words["macs"]),
        int(words["params"]),
        int(words["bytes"]),
        {str(size): float(seconds) for size, seconds in (words["latency"] or {}).items()},
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
            raise FileError(f"{folder / ROUND} is missing, though {SUMMARY} counts {len(outcomes)} rounds")
        step = _plan(folder / f"step-{PLAN_FILE}")
        found = None
        if settings.ranks:
            words = files.read(f"{folder.name}/{SENSITIVITY}")
            found = _parsed(folder / SENSITIVITY, lambda words=words: read_sensitivity(words))  # type: ignore[misc]
        scores = next(iter(load_scores(folder).values()), None)
        if scores is None:
            raise FileError(f"{folder / 'scores.json'} names no metric")
        _check_agreement(folder, outcome, scores, step)
        first = {name: tuple(range(width)) for name, width in step.widths.items()}
        rounds.append(Round(outcome, scores, step, numbers or first, found))
        numbers = _plan(folder / PLAN_FILE).keep
    return tuple(rounds)


def _check_agreement(folder: Path, outcome: Outcome, scores: Scores, step: Plan) -> None:
    """Scores and plan speak of the same channels, and the units that lost some are among them."""
    wrong = [unit for unit in outcome.chosen if unit not in step.widths]
    wrong += [unit for unit, values in scores.values.items() if len(values) != step.widths.get(unit, len(values))]
    if wrong:
        raise FileError(f"{folder}: {SUMMARY}, scores and step-{PLAN_FILE} do not agree about unit {wrong[0]!r}")


def read_sensitivity(words: Mapping[str, Any]) -> Sensitivity:
    """What `Sensitivity.to_dict` gave."""
    tried = {name: Tried(**row) for name, row in words["tried"].items()}
    curves = {name: tuple(Tried(**row) for row in rows) for name, rows in words["curves"].items()}
    return Sensitivity(**{**words, "tried": tried, "curves": curves})


def _plan(path: Path) -> Plan:
    if not path.exists():
        raise FileError(f"{path} is missing; the report needs it to tell which channels went")
    return Plan.load(path)
