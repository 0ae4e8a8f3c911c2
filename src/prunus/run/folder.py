"""A run's folder. Files are written whole or not at all, so that a run can continue after it was killed at any time.

    config.json                     the settings, and what network and data the run is of
    base.json                       accuracy of the original network
    network.json                    which layer feeds which, for a drawing
    progress.json                   what the run is doing, while it is at work
    round-01/scores.{json,safetensors}, sensitivity.json, step-plan.json, plan.json, round.json, model.safetensors
    latency.json                    times of the network's layers, if the goal is in time
    round-01/speed.json             speed-ups that were measured, if the goal is in time
    round-01/rate.json              the rates that were tried before retraining
    round-01/pictures.safetensors   a few channels on a few images, for the report
    model.safetensors, plan.json    the result, readable by prunus.load
    classes.json                    quality of each class before and after, if the task has classes
    summary.json                    the result in numbers

plan.json always uses the numbering of the original network, step-plan.json that of the network that the round
started from. A round is finished when its round.json exists.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from torch import distributed as dist
from torch import nn

from prunus.errors import FileError, PrunusError, RunError
from prunus.graph.files import MODEL_FILE, PLAN_FILE, load, save
from prunus.graph.plan import Plan
from prunus.run.settings import Settings
from prunus.util.files import PRUNING, STUDY, held_by, read_object, write_atomically
from prunus.util.processes import all_or_none, processes
from prunus.util.progress import PhaseProgress, phases, shown

CONFIG, BASE, ROUND, SENSITIVITY, SUMMARY = "config.json", "base.json", "round.json", "sensitivity.json", "summary.json"
SPEED, TABLE, CLASSES, NETWORK = "speed.json", "latency.json", "classes.json", "network.json"
PROGRESS = "progress.json"
DATA, ANSWERS = "data", "answers"  # keys in config.json, of facts that are compared with a tolerance
COMMAND_LINE = "command_line"  # in config.json, if it was one

Built = TypeVar("Built")


class RunFolder:
    """Reads and writes the files of one run. Of several processes only the first one writes.

    about: what else goes into config.json, such as the command that started the run.
    """

    def __init__(self, path: str | Path, *, writes: bool = True, about: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.writes = writes
        self.about = dict(about or {})

    def for_writer(self, writes: bool) -> RunFolder:
        """The same folder, read-only unless this process writes."""
        return RunFolder(self.path, writes=self.writes and writes, about=self.about)

    def start(self, config: dict[str, Any]) -> None:
        """Begin a run here, or continue the same one. A folder that holds another run is not touched.

        What `config` says under DATA and ANSWERS is not compared here: see `running/data_identity.py` and
        `running/network_identity.py`. COMMAND_LINE follows from the rest and from defaults that other versions had.
        """
        all_or_none(lambda: self._start({**config, **self.about}) if self.writes else None)

    def _start(self, config: dict[str, Any]) -> None:
        other = held_by(self.path)
        if other not in (None, PRUNING) and (other == STUDY or not self.has(CONFIG)):
            raise RunError(f"{self.path} holds {other}, not a pruning run; use another folder")
        if self.has(CONFIG):
            aside = dict.fromkeys((DATA, ANSWERS, COMMAND_LINE))
            found, wanted = (_flat({**words, **aside}) for words in (self.read(CONFIG), _plain(config)))
            found, wanted = _compared(found, wanted)
            different = sorted(key for key in {**found, **wanted} if found.get(key) != wanted.get(key))
            if different:
                key = different[0]
                raise RunError(
                    f"{self.path} holds another run: {key} was {found.get(key)!r} there and is {wanted.get(key)!r} "
                    "now. Use another folder, or the same network and settings to continue that run."
                )
        elif self.path.exists() and any(not _half_written(path) for path in self._entries()):
            raise RunError(f"{self.path} is not empty and holds no run ({CONFIG} is missing); use a new folder")
        else:
            self.write(CONFIG, config)

    def _entries(self) -> list[Path]:
        try:
            return list(self.path.iterdir())
        except OSError as error:
            raise RunError(f"{self.path} cannot be used as the folder of a run: {error.strerror}") from error

    def round(self, number: int) -> Path:
        """The folder of a round, counted from 1."""
        return self.path / f"round-{number:02d}"

    def finished_rounds(self) -> int:
        """The number of finished rounds, counted from the first without gaps."""
        numbers = sorted(int(path.parent.name[6:]) for path in self.path.glob(f"round-[0-9][0-9]*/{ROUND}"))
        for expected, found in enumerate(numbers, start=1):
            if expected != found:
                raise FileError(
                    f"{self.round(expected) / ROUND} is missing, though round {found} is finished. Put it back, or "
                    f"delete {self.round(expected)} and the rounds after it to continue from the round before."
                )
        return len(numbers)

    def epochs_before(self, number: int) -> int:
        """The number of epochs that the rounds before this one retrained."""
        rounds = [self.read(f"{self.round(each).name}/{ROUND}") for each in range(1, number)]
        return sum(len(words.get("retraining", ())) for words in rounds)

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file of the run."""
        return read_object(self.path / name, f"; the run in {self.path} cannot continue without it")

    def parse(self, name: str, build: Callable[[dict[str, Any]], Built]) -> Built:
        """An object built from a JSON file of the run; unexpected content is an error that names the file."""
        found = self.read(name)
        try:
            return build(found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise FileError(f"{self.path / name} is not as prunus writes it: {what}") from error

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file of the run."""
        self.write_text(name, f"{json.dumps(_plain(content), indent=2)}\n")

    def write_text(self, name: str, content: str) -> None:
        """Write a file of the run."""
        if self.writes:
            write_atomically(self.path / name, content.encode())

    def has(self, name: str) -> bool:
        """Whether a file of the run exists."""
        return (self.path / name).exists()

    def save_model(self, model: nn.Module, plan: Plan, number: int | None = None) -> None:
        """Write the network of a round, or, without a number, the result."""
        folder = self.path if number is None else self.round(number)
        if self.writes:
            try:
                save(model, plan, folder)
            except SafetensorError as error:
                raise FileError(f"{folder / MODEL_FILE} cannot be written: {error}") from error
        self.wait_for_writer()

    def has_model(self) -> bool:
        """Whether the result exists."""
        return self.has(MODEL_FILE) and self.has(PLAN_FILE)

    def check_result(self, original: nn.Module) -> None:
        """FileError if the result of a finished run cannot be loaded: damaged, or changed by hand."""
        try:
            load(self.path, original)
        except PrunusError as error:
            raise FileError(
                f"the result in {self.path} cannot be loaded: {str(error).rstrip('.')}. If you delete {PLAN_FILE} and "
                f"{MODEL_FILE} there, they are written again."
            ) from error

    def wait_for_writer(self) -> None:
        """Wait, in all processes, until the first one has written."""
        if processes() > 1:
            dist.barrier()

    def load_model(self, original: nn.Module, number: int) -> tuple[nn.Module, Plan]:
        """The network and plan of a finished round."""
        folder = self.round(number)
        for name in (PLAN_FILE, MODEL_FILE):
            if not (folder / name).exists():
                raise FileError(
                    f"{folder / name} is missing, though round {number} is finished. Put it back, or delete {folder} "
                    "and the rounds after it: the run then continues from the round before."
                )
        return load(folder, original), Plan.load(folder / PLAN_FILE)

    def forget(self, folder: Path) -> None:
        """Remove a folder of intermediate files."""
        if self.writes:
            shutil.rmtree(folder, ignore_errors=True)


def _half_written(path: Path) -> bool:
    """Whether it is a temporary file, left when a run was killed while writing."""
    return path.name.startswith(".") and path.suffix in (".partial", ".part")


def _plain(value: Any) -> Any:
    """Values as JSON returns them: tuples as lists, keys as text."""
    return json.loads(json.dumps(value, default=str))


def _compared(found: dict[str, Any], wanted: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parts of two configurations that must be equal.

    Settings that an older version did not know are at their defaults. A default of None is filled in when a run starts:
    whatever is filled in now is taken. Of the command, settings that it left open or did not know are not compared.
    """
    usual = _flat({"settings": _plain(Settings().to_dict())})
    older = {key: wanted[key] if value is None else value for key, value in usual.items() if key in wanted}
    named = {f"command.{key.partition('.')[2]}" for key in usual}
    twice = {key for key in named if key not in found or wanted.get(key) is None}
    now, begun = ({k: v for k, v in each.items() if k not in twice} for each in (wanted, {**older, **found}))
    return begun, now


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"settings": {"target": 0.5}} -> {"settings.target": 0.5}, to name differences."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# What a run is doing right now, for others to look at: progress.json, while the run is at work.

SECONDS = 1.0  # between two notes


@contextmanager
def reporting(progress: PhaseProgress | bool | None, folder: RunFolder) -> Iterator[PhaseProgress]:
    """What the run calls to report. It is shown as the caller asked, and written to the folder once a second."""
    with shown(progress, phases) as show, _noting(folder, show) as note:
        yield note


@contextmanager
def _noting(folder: RunFolder, report: PhaseProgress) -> Iterator[PhaseProgress]:
    """A note that cannot be written is left out: the run goes on. In the end the file is removed."""
    last = 0.0

    def note(phase: str, done: int, total: int, words: str) -> None:
        nonlocal last
        report(phase, done, total, words)
        now = time.time()
        if folder.writes and now - last >= SECONDS and folder.has(CONFIG):
            last = now
            with suppress(FileError, OSError):
                folder.write(PROGRESS, {"phase": phase, "done": done, "total": total, "note": words, "time": now})

    try:
        yield note
    finally:
        if last:  # it is this run's own
            with suppress(OSError):
                (folder.path / PROGRESS).unlink(missing_ok=True)
