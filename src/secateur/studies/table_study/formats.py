"""A table of results as CSV, JSON, markdown and aligned text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from secateur.studies.folder import StudyRow
from secateur.studies.table_study.table import COLUMNS, OWN, ResultsTable


def as_csv(rows: Sequence[StudyRow]) -> str:
    """All columns; cells are empty if nothing was reported."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(found: ResultsTable) -> str:
    """Rows and notes."""
    return json.dumps({"rows": found.rows, "notes": found.notes}, indent=2)


def as_cells(rows: Sequence[StudyRow], titles: Mapping[str, str] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of the columns in `titles`, as text. Columns without any value are left out."""
    shown = [key for key in titles if any(row[key] is not None for row in rows)]
    return [titles[key] for key in shown], [[_cell(key, row[key]) for key in shown] for row in rows]


def as_markdown(rows: Sequence[StudyRow]) -> str:
    """A markdown table, with runs in bold."""
    titles, cells = as_cells(rows)
    lines = [titles, ["---"] * len(titles)]
    for row, line in zip(rows, cells, strict=True):
        lines.append([f"**{cell}**" for cell in line] if row["source"] == OWN else line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def short(number: float) -> str:
    """46400000 -> 46.4 M: three digits, as in the paper."""
    for unit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " K")):
        if number >= unit:
            return f"{number / unit:.{max(0, 2 - len(str(int(number / unit))) + 1)}f}{suffix}"
    return str(int(number))


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if key in ("macs", "params"):
        return short(value)
    if isinstance(value, float):
        return f"{value:.1f}" if key.endswith("_removed") else f"{value:.2f}"
    return str(value)
