"""A study's folder: its settings, every finished row, and at the end the table and the pictures.

config.json             {"study", "asked", "versions", "command", "data"}
rows/KEY.json           one finished row per file, so that a stopped study can continue and processes can share it
study.json, table.csv   the result: {"study", "title", "asked", "command", "versions", "rows", "columns",
                        "pictures", "notes"}
table.tex               the table for a paper
predictions/            what each test image adds to the quality, for paired tests (effectiveness)
NAME.svg, NAME.png      the pictures
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prunus.errors import FileError, RunError
from prunus.run.folder import COMMAND, CONFIG, ResumableFolder
from prunus.run.identity import DATA, Loaders
from prunus.run.summary import versions
from prunus.util import files
from prunus.util.files import read_object
from prunus.util.processes import processes, rank_and_world
from prunus.util.text import latex_table
from prunus.util.typed_json import to_data

RESULT, TABLE, LATEX, ROWS = "study.json", "table.csv", "table.tex", "rows"
LONGEST_NAME = 120  # characters of a row's file name; longer keys, and keys with other characters, get a hash

StudyRow = dict[str, Any]


@dataclass(frozen=True)
class Provenance:
    """Where a study comes from: facts such as the data set, and the command line if there was one."""

    about: Mapping[str, Any] = field(default_factory=dict)
    command: str | None = None


class StudyFolder(ResumableFolder):
    """Reads and writes the files of one study.

        folder = StudyFolder("runs/study-timing", "timing", {"images": 200})
        folder.start()
        if folder.row("gsd/conv1") is None:
            folder.keep("gsd/conv1", {"metric": "gsd", "layer": "conv1", "seconds": 0.1})
        folder.finish("Seconds to score a layer", [folder.row("gsd/conv1")], columns={"seconds": "seconds (CPU)"})

    Args:
        path: The folder.
        name: The study's.
        asked: Its settings, and digests of its networks.
        provenance: What config.json records in addition.
        only_names_rows: Settings that add or leave out rows, and do not change any row.
    """

    holds = files.STUDY

    def __init__(
        self,
        path: str | Path,
        name: str,
        asked: Mapping[str, Any],
        provenance: Provenance | None = None,
        only_names_rows: Sequence[str] = (),
    ) -> None:
        super().__init__(path)
        known = provenance or Provenance()
        self.name = name
        self.asked = to_data({**known.about, **asked})
        self.command = known.command
        self.only_names_rows = only_names_rows

    def identity(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The study, what was asked of it but for its rows, and its data."""
        asked = {name: value for name, value in (config.get("asked") or {}).items() if name not in self.only_names_rows}
        return {"study": config.get("study"), **asked, DATA: config.get(DATA)}

    def start(self, loaders: Loaders | None = None) -> None:
        """Create the folder, or continue the study in it, also with more rows. Raises RunError for any other folder.

        Under torchrun all processes call this, and the first one writes. loaders: the images that the study reads.
        """
        self.writes = rank_and_world()[0] == 0
        config = {"study": self.name, "asked": self.asked, "versions": versions(), COMMAND: self.command}
        self.begin(config, loaders)
        if self.writes and (before := self.read(CONFIG))["asked"] != self.asked:
            self.write(CONFIG, {**before, "asked": self.asked, COMMAND: self.command})
        self.writes = True  # every process writes rows

    def row(self, key: str) -> StudyRow | None:
        path = self.path / self._row_file(key)
        if not path.exists():
            return None
        record = read_object(path)
        if record.get("key") != key or not isinstance(record.get("row"), dict):
            raise FileError(f"{path} is not the row {key!r} that prunus wrote; delete it to compute it again")
        return dict(record["row"])

    def keep(self, key: str, row: Mapping[str, Any]) -> None:
        """Write a finished row. Every process may do this."""
        self.write(self._row_file(key), {"key": key, "row": dict(row)})

    def _row_file(self, key: str) -> str:
        safe = "".join(c if c.isalnum() or c in "-_.=," else "-" for c in key)[:LONGEST_NAME]
        if safe != key or key.startswith("."):  # two keys must not meet in one file
            safe = f"{safe.lstrip('.')}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
        return f"{ROWS}/{safe}.json"

    def finish(
        self,
        title: str,
        rows: Sequence[Mapping[str, Any]],
        pictures: Sequence[Mapping[str, str]] = (),
        notes: Sequence[str] = (),
        *,
        columns: Mapping[str, str] | None = None,
        latex: str | None = None,
    ) -> Path:
        """Write study.json, table.csv and table.tex; only the first process does. Returns the folder.

        Args:
            rows: Flat dicts with the same keys.
            pictures: {"file" (the SVG; a PNG of the same name is next to it), "alt", "caption"}.
            columns: Key -> heading; the key itself by default.
            latex: The table for a paper; all rows and columns by default.
        """
        if not rows:
            raise RunError("a study needs at least one row")
        keys = list(rows[0])
        for number, row in enumerate(rows):
            if set(row) != set(keys):
                odd = ", ".join(sorted(set(row) ^ set(keys)))
                raise RunError(f"all rows of a study must have the same keys; row {number} differs in {odd}")
        started = read_object(self.path / CONFIG)
        if rank_and_world()[0] == 0:
            headings = {key: (columns or {}).get(key, key.replace("_", " ")) for key in keys}
            if latex is None:
                titles, cells = text_cells(rows, headings)
                texts = {headings[key] for key in keys if any(isinstance(row[key], str) for row in rows)}
                numbers = [place for place, heading in enumerate(titles) if heading not in texts]
                latex = latex_table(titles, cells, numbers, caption=title)
            self.write_text(TABLE, as_csv(keys, [[row[key] for key in keys] for row in rows]))
            self.write_text(LATEX, latex)
            result = {"study": self.name, "title": title, "asked": self.asked, "columns": headings, "rows": rows}
            result |= {name: started.get(name) for name in (COMMAND, "versions")}
            self.write(RESULT, {**result, "pictures": pictures, "notes": notes})
        return self.path


def cell_text(value: Any, _key: str = "") -> str:
    """A value of a row as text: numbers with four digits, large ones in full."""
    if value is None or value == "" or value != value:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def text_cells(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], text: Callable[[Any, str], str] = cell_text
) -> tuple[list[str], list[list[str]]]:
    """Headings and cells without empty columns. text: of a value, and the key of its column."""
    shown = [key for key in columns if any(cell_text(row[key]) != "–" for row in rows)]
    return [columns[key] for key in shown], [[text(row[key], key) for key in shown] for row in rows]


def as_csv(headings: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """CSV text; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()


def read_study(folder: str | Path) -> dict[str, Any]:
    """The result of a finished study: what `StudyFolder.finish` wrote."""
    path = Path(folder) / RESULT
    if not path.exists() and (Path(folder) / CONFIG).exists():
        raise FileError(f"{path} is missing: the study is not finished; run the same command again to continue it")
    return read_object(path)


# -- the processes that torchrun starts share the rows: each works alone, and they meet in the study's folder

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
    hidden = {name: os.environ.pop(name) for name in TORCHRUN if name in os.environ}
    try:
        yield int(hidden.get("RANK", 0)), int(hidden.get("WORLD_SIZE", 1))
    finally:
        os.environ.update(hidden)


def wait_until(ready: Callable[[], bool]) -> None:
    """Wait until `ready()` is true. If another process fails, torchrun ends this one.

    If torchrun itself was killed, this process notices that its parent has changed and raises RunError.
    """
    parent = os.getppid()
    while not ready():
        if os.getppid() != parent:
            raise RunError("the process that started this one has ended, so the other processes' rows will not come")
        time.sleep(SECONDS_BETWEEN_CHECKS)
