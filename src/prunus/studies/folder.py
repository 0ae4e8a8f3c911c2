"""A study's folder: its settings, every finished row, and at the end the table and the pictures.

config.json             {"study", "asked", "versions", "command"}
rows/KEY.json           one finished row per file, so that a stopped study can continue and processes can share it
study.json, table.csv   the result: {"study", "title", "asked", "command", "versions", "rows", "columns",
                        "pictures", "notes"}
NAME.svg, NAME.png      the pictures
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import FileError, ModelError, RunError, TraceError
from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.plan import Plan
from prunus.ship.fold import fold_batch_norm
from prunus.tasks import Task, task_of
from prunus.tasks.evaluate import Evaluation, evaluate, unpack_for
from prunus.util.batches import Batch, Batches, order_channels_last
from prunus.util.files import STUDY as HELD
from prunus.util.files import held_by, read_object, write_atomically
from prunus.util.processes import all_or_none, processes, rank_and_world
from prunus.util.progress import Progress

CONFIG, STUDY, TABLE, ROWS = "config.json", "study.json", "table.csv", "rows"
LONGEST_NAME = 120  # characters of a row's file name; longer keys, and keys with other characters, get a hash

StudyRow = dict[str, Any]


@dataclass(frozen=True)
class Provenance:
    """Where a study comes from: facts such as the data set, and the command line if there was one."""

    about: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None


class StudyFolder:
    """Reads and writes the files of one study.

    folder = StudyFolder("runs/study-timing", "timing", {"images": 200})
    folder.start()
    if folder.row("gsd/conv1") is None:
        folder.keep("gsd/conv1", {"metric": "gsd", "layer": "conv1", "seconds": 0.1})
    folder.finish("Seconds to score a layer", [folder.row("gsd/conv1")], columns={"seconds": "seconds (CPU)"})
    """

    def __init__(
        self,
        path: str | Path,
        name: str,
        asked: Mapping[str, Any],
        provenance: Provenance | None = None,
        only_names_rows: Sequence[str] = (),
    ) -> None:
        known = provenance or Provenance()
        self.path = Path(path)
        self.name = name
        self.asked = _plain({**known.about, **asked})
        self.command = known.command
        self.only_names_rows = only_names_rows  # settings that add or leave out rows, and do not change any row

    def start(self) -> None:
        """Create the folder, or continue the study in it, also with more rows. Raises RunError for any other folder.

        Under torchrun all processes call this, and the first one writes.
        """
        all_or_none(lambda: self._start() if rank_and_world()[0] == 0 else None)

    def row(self, key: str) -> StudyRow | None:
        """A finished row, or None."""
        path = self._row_path(key)
        if not path.exists():
            return None
        found = read_object(path)
        if found.get("key") != key or not isinstance(found.get("row"), dict):
            raise FileError(f"{path} is not the row {key!r} that prunus wrote; delete it to compute it again")
        return dict(found["row"])

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Write a finished row. Every process may do this."""
        self._write(self._row_path(key), {"key": key, "row": dict(row)})

    def finish(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        pictures: Sequence[Mapping[str, str]] = (),
        notes: Sequence[str] = (),
        *,
        columns: Mapping[str, str] | None = None,
    ) -> Path:
        """Write study.json and table.csv.

        rows: flat dicts with the same keys. columns: key -> heading; the key itself by default.
        pictures: {"file" (the SVG; a PNG of the same name is next to it), "alt", "caption"}. notes: sentences.
        Only the first process writes. Returns the folder.
        """
        keys = _keys(rows)
        started = read_object(self.path / CONFIG)
        result = {
            "study": self.name,
            "title": title,
            "asked": self.asked,
            "command": started.get("command"),
            "versions": started.get("versions"),
            "rows": [dict(row) for row in rows],
            "columns": {key: (columns or {}).get(key, key.replace("_", " ")) for key in keys},
            "pictures": [dict(picture) for picture in pictures],
            "notes": list(notes),
        }
        if rank_and_world()[0] == 0:
            write_atomically(self.path / TABLE, _csv(keys, rows).encode())
            self._write(self.path / STUDY, result)
        return self.path

    def _start(self) -> None:
        path = self.path / CONFIG
        other = held_by(self.path)
        if other not in (None, HELD):
            raise RunError(f"{self.path} holds {other}, not a study; use another folder")
        if path.exists():
            found = read_object(path)
            if found.get("study") != self.name:
                raise RunError(
                    f"{self.path} holds the study {found.get('study')!r}, not {self.name!r}; use another folder"
                )
            before = found.get("asked", {})
            rows = {name: before.get(name) for name in self.only_names_rows}
            _check_same(self.path, before, {**self.asked, **rows})
            if before != self.asked:
                self._write(path, {**found, "asked": self.asked, "command": self.command})
            return
        if self.path.is_file() or (self.path.exists() and any(self.path.iterdir())):
            raise RunError(f"{self.path} is not empty and holds no study ({CONFIG} is missing); use a new folder")
        config = {"study": self.name, "asked": self.asked, "versions": versions(), "command": self.command}
        self._write(path, config)

    def _row_path(self, key: str) -> Path:
        safe = "".join(c if c.isalnum() or c in "-_.=," else "-" for c in key)[:LONGEST_NAME]
        if safe != key or key.startswith("."):  # two keys must not meet in one file
            safe = f"{safe.lstrip('.')}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        return self.path / ROWS / f"{safe}.json"

    def _write(self, path: Path, content: Mapping[str, Any]) -> None:
        write_atomically(path, f"{json.dumps(_plain(content), indent=2)}\n".encode())


def read_study(folder: str | Path) -> dict[str, Any]:
    """The result of a finished study: what `StudyFolder.finish` wrote."""
    path = Path(folder) / STUDY
    if not path.exists() and (Path(folder) / CONFIG).exists():
        raise FileError(f"{path} is missing: the study is not finished; run the same command again to continue it")
    return read_object(path)


def versions() -> dict[str, str]:
    """Versions of the software that the figures depend on."""
    import torch

    return {"prunus": version("prunus"), "python": platform.python_version(), "torch": torch.__version__}


def _check_same(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    different = sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key))
    if different:
        words = "; ".join(f"{key} was {found.get(key)!r} and is {asked.get(key)!r} now" for key in different)
        raise RunError(f"{path} holds a study with other settings: {words}. Use another folder or the same settings")


def _keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        raise RunError("a study needs at least one row")
    keys = list(rows[0])
    for number, row in enumerate(rows):
        if set(row) != set(keys):
            odd = ", ".join(sorted(set(row) ^ set(keys)))
            raise RunError(f"all rows of a study must have the same keys; row {number} differs in {odd}")
    return keys


def _csv(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    """The value after a round trip through JSON: tuples become lists, keys and paths become text."""
    return json.loads(json.dumps(value, default=str))


# The processes that torchrun starts share the rows of a study: each works alone, and they meet in the study's
# folder.

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # variables by which Accelerate finds the others
SECONDS_BETWEEN_CHECKS = 0.2


@contextmanager
def processes_apart() -> Iterator[tuple[int, int]]:
    """(rank of this process, number of processes). Inside the block, scoring and training see only this process."""
    if processes() > 1:
        raise RunError(
            "this study shares its rows among processes, and each process works alone: call it under torchrun without "
            "initialising torch.distributed first"
        )
    found = {name: os.environ.pop(name) for name in TORCHRUN if name in os.environ}
    try:
        yield int(found.get("RANK", 0)), int(found.get("WORLD_SIZE", 1))
    finally:
        os.environ.update(found)


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait until `ready()` is true. If another process fails, torchrun ends this one.

    If torchrun itself was killed, this process notices that its parent has changed and raises RunError.
    """
    parent = os.getppid()
    while not ready():
        if os.getppid() != parent:
            raise RunError("the process that started this one has ended, so the other processes' rows will not come")
        time.sleep(SECONDS_BETWEEN_CHECKS)


# Fast accuracy of many pruned versions of a network on the same images.

BATCH = 32  # images per batch whose activations fit in the cache
KEPT_BYTES = 2**30  # of images in memory; larger data sets are read again each time


def in_memory(loader: Batches, task: Task | None = None) -> Batches:
    """The loader's batches in memory, channels_last; the loader itself if they would take more than 1 GiB."""
    kept: list[Batch] = []
    room = KEPT_BYTES
    chosen = task_of(task)
    if chosen.inputs is not None:  # it takes the loader's batches, whatever they are
        return loader
    for number, batch in enumerate(loader):
        images, labels = unpack_for(chosen, batch, number)
        if not isinstance(images, Tensor) or images.ndim != 4 or images.nbytes > room:
            return loader
        room -= images.nbytes
        kept.append((images.contiguous(memory_format=torch.channels_last), labels))
    return kept


def pruned_or_same(graph: ChannelGraph, plan: Plan) -> nn.Module:
    """The pruned network; the network itself if the plan removes nothing."""
    return prune(graph, plan) if any(plan.removed().values()) else graph.model


def accuracy_of(
    model: nn.Module, graph: ChannelGraph, test: Batches, task: Task | None = None, progress: Progress | None = None
) -> Evaluation:
    """The result of `prunus.evaluate` for a pruned version of the graph's network, in less time."""
    return evaluate(model if model is graph.model else _folded(model, graph), test, task=task, progress=progress)


def _folded(model: nn.Module, graph: ChannelGraph) -> nn.Module:
    """A faster copy with the same output."""
    try:
        folded = fold_batch_norm(model, graph.example)
    except (ModelError, TraceError):  # keep batch norms that cannot be folded
        folded = copy.deepcopy(model)
    return order_channels_last(folded)
