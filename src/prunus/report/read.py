"""Everything that a page needs, read from the folder of a run and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from prunus.deciding.goal import Goal
from prunus.deciding.sensitivity import Sensitivity
from prunus.errors import FileError
from prunus.graph.files import PLAN_FILE
from prunus.graph.plan import Plan
from prunus.plots.run_pictures import PICTURES, RunPictures, load_pictures
from prunus.run.context import Baseline, NetworkShape, Node
from prunus.run.folder import (
    BASE,
    CLASSES,
    CONFIG,
    NETWORK,
    PROGRESS,
    ROUND_FILE,
    SENSITIVITY_FILE,
    SUMMARY,
    RunFolder,
    parsed,
)
from prunus.run.qualities import BOXES, CLASSES_FORMAT, PREDICTIONS, ClassTable, Predictions, read_predictions
from prunus.run.round import Outcome
from prunus.run.settings import Settings
from prunus.run.summary import FORMAT, VERSION, Beginning, Summary, reported
from prunus.scoring.scores import Scores, load_scores
from prunus.tasks.evaluate import Evaluation
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.train.checkpoint import METRICS_FILE, Epoch
from prunus.util.files import read_object
from prunus.util.typed_json import from_data, read_record


@dataclass(frozen=True)
class Round:
    """One round, read from its folder."""

    outcome: Outcome
    scores: Scores
    step: Plan  # channels are numbered as in the network that the round started from
    numbers: Mapping[str, tuple[int, ...]]  # unit -> original numbers of the channels that the round started from
    sensitivity: Sensitivity | None  # None if units were not ranked


@dataclass(frozen=True)
class RunRecord:
    """What a finished and an unfinished run have in common."""

    folder: Path
    config: Mapping[str, Any]

    @property
    def command(self) -> Mapping[str, Any]:
        """Options of the command line; empty if the library was called."""
        return self.config.get("command") or {}

    @property
    def start(self) -> Mapping[str, Any]:
        """The network that the run started from: its name, and `earlier` runs that it goes on from."""
        return self.config.get("start") or {}


@dataclass(frozen=True)
class FinishedRun(RunRecord):
    """A finished run."""

    settings: Settings
    summary: Summary
    rounds: tuple[Round, ...]
    undone: int  # number of rounds that were undone because they lost too much
    plan: Plan
    pictures: RunPictures | None  # None if inputs are not images
    boxes: bytes | None  # a PNG of the boxes that a detector finds, before and after
    classes: ClassTable | None  # None if the task has no classes
    nodes: tuple[Node, ...]  # layers and where they meet
    predictions: Predictions | None = None  # what each image adds to the quality; None if that is not known

    @cached_property
    def since_original(self) -> Beginning:
        """The original network, and the speed relative to it, also if the run went on from a pruned network."""
        return Beginning.of(self.config, self.summary)

    def reported(self) -> tuple[str, Evaluation, Evaluation]:
        """The evaluation to report: (name, before, after), on the test images if there are any."""
        return reported(self.summary.before, self.summary.after)


def read_run(folder: str | Path) -> FinishedRun:
    """Read the folder of a finished run. FileError names the file that is missing or damaged."""
    path = Path(folder)
    if not path.is_dir():
        raise FileError(f"{path} is not a folder; give the folder of a run, such as runs/prune-resnet8-digits")
    files, config = _opened(path)
    if not files.has(SUMMARY):
        raise FileError(
            f"{path / SUMMARY} is missing: the run is not finished. Continue it (prunus prune --resume {path}), "
            "then write the report again."
        )
    summary = read_record(path / SUMMARY, Summary, FORMAT, VERSION)
    settings = files.parse(CONFIG, lambda record: _settings(record["settings"]))
    return FinishedRun(
        folder=path,
        config=config,
        settings=settings,
        summary=summary,
        rounds=_rounds(files, summary.rounds, settings),
        undone=files.finished_rounds() - len(summary.rounds),
        plan=Plan.load(path / PLAN_FILE),
        pictures=load_pictures(files.round(1) / PICTURES),
        boxes=(files.path / BOXES).read_bytes() if files.has(BOXES) else None,
        classes=read_record(path / CLASSES, ClassTable, CLASSES_FORMAT, 1) if files.has(CLASSES) else None,
        nodes=files.record(NETWORK, NetworkShape).nodes if files.has(NETWORK) else (),
        predictions=read_predictions(path / PREDICTIONS),
    )


def _opened(path: Path) -> tuple[RunFolder, dict[str, Any]]:
    """The files of a run's folder, and its config.json."""
    files = RunFolder(path, writes=False)
    if not files.has(CONFIG):
        raise FileError(f"{path} is not the folder of a run: it has no {CONFIG}")
    config = read_object(path / CONFIG)
    if not isinstance(config.get("command"), dict | None):
        raise FileError(f"{path / CONFIG}: command should be an object, got {type(config['command']).__name__}")
    return files, config


def _settings(data: Mapping[str, Any]) -> Settings:
    """The settings from JSON. Functions have become their names, so that types cannot be checked in full."""
    unknown = sorted(set(data) - {each.name for each in fields(Settings)})
    if unknown:
        raise ValueError(f"this version of prunus has no setting {unknown[0]!r}")
    for name in (each.name for each in fields(Goal)):
        if not isinstance(data.get(name), int | float | None):
            raise ValueError(f"{name} is {data[name]!r}, not a number")
    values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
    return Settings(**values)


def _rounds(files: RunFolder, outcomes: tuple[Outcome, ...], settings: Settings) -> tuple[Round, ...]:
    rounds: list[Round] = []
    numbers: Mapping[str, tuple[int, ...]] = {}
    for number, outcome in enumerate(outcomes, start=1):
        folder = files.round(number)
        if not (folder / ROUND_FILE).exists():
            raise FileError(f"{folder / ROUND_FILE} is missing, although {SUMMARY} lists {len(outcomes)} rounds")
        step = Plan.load(folder / f"step-{PLAN_FILE}")
        ranked = files.record(files.in_round(number, SENSITIVITY_FILE), Sensitivity) if settings.ranks else None
        scores = next(iter(load_scores(folder).values()), None)
        if scores is None:
            raise FileError(f"{folder / 'scores.json'} lists no metric")
        wrong = [unit for unit in outcome.chosen if unit not in step.widths]
        wrong += [unit for unit, values in scores.values.items() if len(values) != step.widths.get(unit, len(values))]
        if wrong:
            raise FileError(f"{folder}: {SUMMARY}, scores and step-{PLAN_FILE} do not agree about unit {wrong[0]!r}")
        first = {name: tuple(range(width)) for name, width in step.widths.items()}
        rounds.append(Round(outcome, scores, step, numbers or first, ranked))
        numbers = Plan.load(folder / PLAN_FILE).keep
    return tuple(rounds)


# -- runs that have not finished


@dataclass(frozen=True)
class Activity:
    """progress.json: what a run is doing."""

    phase: str
    done: int
    total: int | None  # None where it is not known
    note: str
    time: float  # seconds since 1970


@dataclass(frozen=True)
class UnfinishedRun(RunRecord):
    """A run that is at work, or was interrupted."""

    base: Evaluation | None  # held-out; None until it was measured
    macs: int | None  # of the original network; None until then
    quality: QualityText
    rounds: tuple[Outcome, ...]
    epochs: tuple[Epoch, ...]  # of the round at work
    doing: Activity | None  # its last sign of life; None if there is none


def read_unfinished(folder: Path) -> UnfinishedRun:
    """What the folder of a run holds so far. FileError if it holds no run."""
    files, config = _opened(folder)
    base = files.record(BASE, Baseline) if files.has(BASE) else None
    done = files.finished_rounds()
    journal = files.round(done + 1) / "checkpoint" / METRICS_FILE
    lines = []
    with suppress(FileNotFoundError):  # it is not there yet, or any more
        lines = journal.read_text(encoding="utf-8").splitlines()
    return UnfinishedRun(
        folder=folder,
        config=config,
        base=None if base is None else base.holdout,
        macs=None if base is None else base.macs,
        quality=ACCURACY if base is None else base.quality,
        rounds=tuple(files.record(files.in_round(number, ROUND_FILE), Outcome) for number in range(1, done + 1)),
        epochs=parsed(journal, lambda: tuple(from_data(Epoch, json.loads(line)) for line in lines)),
        doing=files.record(PROGRESS, Activity) if files.has(PROGRESS) else None,
    )
