"""Folders of work that continues after it was killed at any time: files are written whole or not at all.

The folder of a pruning run:

    config.json                     the settings, and what network and data the run is of
    base.json                       quality of the original network
    network.json                    which layer feeds which, for a drawing
    progress.json                   what the run is doing, while it is at work
    round-01/scores.{json,safetensors}, sensitivity.json, step-plan.json, plan.json, round.json, model.safetensors
    latency.json                    times of the network's layers, for a latency target
    round-01/speed.json             speed-ups that were measured, for a latency target
    round-01/search.json            cuts and ways to treat streams that were tried, and which one was chosen
    round-01/select, coupled        scores and speed-ups of each, where both were tried
    round-01/rate.json              the rates that were tried before retraining
    round-01/pictures.safetensors   a few channels on a few images, for the report
    model.safetensors, plan.json    the result, readable by prunus.load
    classes.json                    quality of each class before and after, if the task has classes
    predictions.safetensors         what each test image adds to the quality before and after, for paired tests
    differences.md                  how the run differs from the paper
    summary.json                    the result in numbers

plan.json always uses the numbering of the original network, step-plan.json that of the network that the round
started from. A round is finished when its round.json exists.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import distributed as dist
from torch import nn

from prunus.errors import FileError, RunError
from prunus.graph.files import MODEL_FILE, PLAN_FILE, load, save
from prunus.graph.plan import Plan
from prunus.run.identity import DATA, Loaders, data_facts, refuse_other
from prunus.util.files import PRUNING, STUDY, held_by, read_object, write_atomically
from prunus.util.processes import all_or_none, processes
from prunus.util.typed_json import from_data, to_data

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph

CONFIG, BASE, NETWORK, PROGRESS = "config.json", "base.json", "network.json", "progress.json"
ROUND_FILE, SENSITIVITY_FILE, SPEED, TABLE = "round.json", "sensitivity.json", "speed.json", "latency.json"
CLASSES, SUMMARY, SEARCH = "classes.json", "summary.json", "search.json"
COMMAND, COMMAND_LINE = "command", "command_line"  # in config.json, of a run or study that a command started
SECONDS = 1.0  # between two notes in progress.json

T = TypeVar("T")


def parsed(path: Path, build: Callable[[], T]) -> T:
    """What `build` makes of a file's content; content that does not fit is an error that names the file."""
    try:
        return build()
    except (KeyError, TypeError, ValueError, AttributeError, FileError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{path} has unexpected content: {what}") from error


class ResumableFolder:
    """A folder whose config.json says what it holds. Of several processes only the first one writes."""

    holds = ""  # what `prunus.util.files.held_by` calls it

    def __init__(self, path: str | Path, *, writes: bool = True) -> None:
        self.path = Path(path)
        self.writes = writes

    @property
    def noun(self) -> str:
        return self.holds.rpartition(" ")[2]

    def identity(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of config.json that must be the same for the work to continue."""
        return config

    def begin(self, config: Mapping[str, Any], loaders: Loaders | None = None) -> None:
        """Begin here, or continue the same work, of which config.json says the same of the same `loaders`.

        RunError if the folder holds anything else; it is not touched then.
        """
        all_or_none(lambda: self._begin(config, loaders) if self.writes else None)

    def _begin(self, config: Mapping[str, Any], loaders: Loaders | None) -> None:
        noun, other, begun = self.noun, held_by(self.path), self.has(CONFIG)
        if other not in (None, self.holds) and (other in (STUDY, PRUNING) or not begun):
            raise RunError(f"{self.path} holds {other}, not {self.holds}; use another folder")
        try:
            entries = [] if begun or not self.path.exists() else list(self.path.iterdir())
        except OSError as error:
            raise RunError(f"{self.path} cannot be used as the folder of a {noun}: {error.strerror}") from error
        # Temporary files are left when a run was killed while it wrote its first file.
        if any(not (path.name.startswith(".") and path.suffix in (".partial", ".part")) for path in entries):
            raise RunError(f"{self.path} is not empty and holds no {noun} ({CONFIG} is missing); use a new folder")
        config = {**config, **({} if loaders is None else {DATA: data_facts(loaders)})}
        if begun:
            before, now = self.identity(self.read(CONFIG)), self.identity(to_data(config))
            refuse_other(self.path, noun, before, now, loaders)
        else:
            self.write(CONFIG, config)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        return read_object(self.path / name, f"; the {self.noun} in {self.path} cannot continue without it")

    def parse(self, name: str, build: Callable[[dict[str, Any]], T]) -> T:
        """What `build` makes of a JSON file."""
        content = self.read(name)
        return parsed(self.path / name, lambda: build(content))

    def record(self, name: str, kind: type[T]) -> T:
        return self.parse(name, functools.partial(from_data, kind))

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file: a dict, or a dataclass."""
        self.write_text(name, f"{json.dumps(to_data(content), indent=2)}\n")

    def write_text(self, name: str, content: str) -> None:
        if self.writes:
            write_atomically(self.path / name, content.encode())

    def wait_for_writer(self) -> None:
        """Wait, in all processes, until the first one has written."""
        if processes() > 1:
            dist.barrier()


class RunFolder(ResumableFolder):
    """The files of one pruning run. `about` is what else goes into config.json, such as the command that started it; a
    temporary folder is removed with the result."""

    holds = PRUNING

    def __init__(
        self,
        path: str | Path,
        *,
        writes: bool = True,
        about: Mapping[str, Any] | None = None,
        is_temporary: bool = False,
    ) -> None:
        super().__init__(path, writes=writes)
        self.about, self.is_temporary = dict(about or {}), is_temporary
        self._noted = 0.0  # when progress.json was written

    def identity(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """All but the command line, and the command's settings: they are compared as they were filled in."""
        settings, command = config.get("settings") or {}, config.get(COMMAND) or {}
        options = {name: value for name, value in command.items() if name not in settings}
        return {**config, COMMAND: options, COMMAND_LINE: None}

    def round(self, number: int) -> Path:
        return self.path / f"round-{number:02d}"

    def in_round(self, number: int, name: str) -> str:
        """The name of a round's file, relative to the run's folder."""
        return f"{self.round(number).name}/{name}"

    def finished_rounds(self) -> int:
        """The number of finished rounds, counted from the first without gaps."""
        numbers = sorted(int(path.parent.name[6:]) for path in self.path.glob(f"round-[0-9][0-9]*/{ROUND_FILE}"))
        for expected, there in enumerate(numbers, start=1):
            if expected != there:
                raise FileError(
                    f"{self.round(expected) / ROUND_FILE} is missing, though round {there} is finished. Put it back, "
                    f"or delete {self.round(expected)} and the rounds after it to continue from the round before."
                )
        return len(numbers)

    def save_model(self, model: nn.Module, plan: Plan, number: int | None = None) -> None:
        """Write the network of a round, or, without a number, the result."""
        if self.writes:
            save(model, plan, self.path if number is None else self.round(number))
        self.wait_for_writer()

    def load_model(self, original: nn.Module, number: int, graph: ChannelGraph | None = None) -> tuple[nn.Module, Plan]:
        """The network and plan of a finished round. graph: of the original, if it is traced already."""
        folder = self.round(number)
        for name in (PLAN_FILE, MODEL_FILE):
            if not (folder / name).exists():
                raise FileError(
                    f"{folder / name} is missing, though round {number} is finished. Put it back, or delete {folder} "
                    "and the rounds after it: the run then continues from the round before."
                )
        return load(folder, original, graph=graph), Plan.load(folder / PLAN_FILE)

    def forget(self, folder: Path) -> None:
        if self.writes:
            shutil.rmtree(folder, ignore_errors=True)

    def note_progress(self, phase: str, done: int, total: int | None, note: str) -> None:
        """Write what the run is doing to progress.json, at most once a second, for others to look at.

        A note that cannot be written is left out: the run goes on.
        """
        now = time.time()
        if self.writes and now - self._noted >= SECONDS and self.has(CONFIG):
            self._noted = now
            with suppress(FileError, OSError):
                self.write(PROGRESS, {"phase": phase, "done": done, "total": total, "note": note, "time": now})

    def close(self) -> None:
        """Remove progress.json, if this run has written it."""
        if self._noted:
            with suppress(OSError):
                (self.path / PROGRESS).unlink(missing_ok=True)
