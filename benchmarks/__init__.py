"""What the scripts of this folder share: a file of results in docs/results, written row by row.

Every file there has the same form: `what` was measured, by which `command`, at which `commit`, on which `machine`, and
`rows`, one object for each figure or line of a table. A row that is in the file is not measured again.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prunus.util.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the training of akamaster's CIFAR-10 weights
Row = dict[str, Any]


class Results:
    """The rows of a file, found again by some of their keys; without a file they are only kept in memory."""

    def __init__(self, path: Path | None, what: str, command: str | None = None) -> None:
        self._path = path
        self._head: dict[str, Any] = {"what": what, "command": command or typed()}
        self._head |= {"commit": commit(), "machine": machine()}
        self._own: dict[str, Any] = {}
        self.rows: list[Row] = []
        if path is not None and path.exists():
            stored = json.loads(path.read_text())
            self.rows = stored.pop("rows")
            # The file is of an earlier call: new rows say what is different.
            self._own = {name: self._head[name] for name in ("command", "commit") if self._head[name] != stored[name]}
            self._head = stored

    def find(self, key: Mapping[str, Any]) -> Row | None:
        """The row with these values."""
        wanted = json.loads(json.dumps(dict(key)))  # as they come back from a file
        return next((row for row in self.rows if all(row.get(name) == wanted[name] for name in wanted)), None)

    def add(self, row: Row, instead_of: Row | None = None) -> None:
        """Add a row, or put it in the place of another one, and write the file."""
        row = {**row, **self._own}
        if instead_of is None:
            self.rows.append(row)
        else:
            self.rows[self.rows.index(instead_of)] = row
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, as_json(self._head, self.rows).encode())


def as_json(head: Mapping[str, Any], rows: list[Row]) -> str:
    """The file's text: a line for each fact of the head and for each row."""
    facts = [f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}," for name, value in head.items()]
    lines = ",\n".join(f"    {json.dumps(row, ensure_ascii=False)}" for row in rows)
    return "\n".join(["{", *facts, '  "rows": [', lines, "  ]", "}", ""])


def typed() -> str:
    """The command of this process."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def commit() -> str:
    """The commit that is checked out; nothing outside a git checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> str:
    """The processor, its cores, and torch's version."""
    import torch

    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"


def read_file(name: str) -> dict[str, Any]:
    """What a file in docs/results holds."""
    return dict(json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text()))


def read(name: str) -> list[Row]:
    """The rows of a file in docs/results."""
    return list(read_file(name)["rows"])
