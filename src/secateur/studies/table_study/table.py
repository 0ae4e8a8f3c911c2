"""Finished runs as rows among the paper's published ones (Tables 1 and 2)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.errors import RunError
from secateur.running.folder import CONFIG, SUMMARY, RunFolder
from secateur.studies.recipes.published_rows import STATUS, Group, Result, group_of, published

if TYPE_CHECKING:
    from secateur.studies.folder import StudyFolder

Row = dict[str, Any]

COLUMNS: Mapping[str, str] = {
    "network": "network",
    "data": "data",
    "method": "method",
    "by": "by",
    "base_top1": "top-1 before (%)",
    "top1": "top-1 (%)",
    "top1_drop": "drop (points)",
    "base_top5": "top-5 before (%)",
    "top5": "top-5 (%)",
    "top5_drop": "top-5 drop (points)",
    "macs": "MACs",
    "macs_removed": "MACs removed (%)",
    "params": "weights",
    "params_removed": "weights removed (%)",
    "source": "source",
}
OWN = "this run"


@dataclass(frozen=True)
class Table:
    """Rows with the keys of COLUMNS, and what to know about them."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def table(runs: Sequence[str | Path] = (), *, model: str | None = None, data: str | None = None) -> Table:
    """The folders of finished runs as rows among the published rows of their network and data set.

    Runs stand at their place by MACs removed. Without runs: all published rows, in the paper's order.
    model, data: as in `secateur prune`, for folders that do not say it themselves (those of `secateur.compress`).
    """
    if not runs:
        groups = [g for g in published().groups if model in (None, *g.models) and data in (None, g.data)]
        if not groups:
            known = ", ".join(f"{g.models[0]} on {g.data}" for g in published().groups)
            raise RunError(
                f"the paper has no rows for {model or 'any network'} on {data or 'any data'}; it has {known}"
            )
        rows = [_published_row(group, result) for group in groups for result in group.rows]
        return Table(tuple(rows), _notes(groups))
    found: dict[tuple[str, str], list[Row]] = {}
    notes: list[str] = []
    for folder in runs:
        name, on, row, note = _own_row(Path(folder), model, data)
        found.setdefault((name, on), []).append(row)
        notes.append(note)
    rows, known_groups = [], []
    for (name, on), mine in found.items():
        group = group_of(name, on)
        if group is None:
            notes.append(f"The paper has no rows for {name} on {on}.")
        else:
            known_groups.append(group)
            mine = [*(_published_row(group, result) for result in group.rows), *mine]
        rows += sorted(mine, key=lambda row: row["macs_removed"])
    return Table(tuple(rows), (*notes, *_notes(known_groups)))


def write_table(found: Table, folder: StudyFolder) -> Path:
    """study.json, table.csv and a picture: accuracy lost against MACs removed."""
    from secateur.studies.table_study.picture import draw_table

    folder.start()
    pictures = draw_table(found, folder.path)
    return folder.finish("Beside the paper's tables", found.rows, pictures, found.notes, columns=COLUMNS)


# ------------------------------------------------------------------------------------------------------------- rows


def _published_row(group: Group, result: Result) -> Row:
    words = {"network": group.network, "data": group.data, **asdict(result), "source": STATUS}
    return {key: words[key] for key in COLUMNS}


def _own_row(folder: Path, model: str | None, data: str | None) -> tuple[str, str, Row, str]:
    """The network's name, the data's, the row, and a note on what the accuracies were measured on."""
    run = RunFolder(folder)
    if not run.has(SUMMARY):
        raise RunError(f"{folder} holds no finished run: {SUMMARY} is missing. `secateur prune --resume {folder}`")
    asked = run.read(CONFIG).get("command") or {}
    name, on = model or asked.get("model"), data or asked.get("data")
    if name is None or on is None:
        raise RunError(f"{folder} does not say which network and data it was made from: pass --model and --data")
    on = str(on).partition(":")[0]
    row, note = run.parse(SUMMARY, lambda summary: _row(folder, name, on, summary))
    return name, on, row, note


def _row(folder: Path, name: str, data: str, summary: dict[str, Any]) -> tuple[Row, str]:
    before, after = summary["before"], summary["after"]
    part = "test" if after["test"] is not None else "holdout"
    was, now = before[part], after[part]
    group = group_of(name, data)
    row: Row = {
        "network": name if group is None else group.network,
        "data": data,
        "method": folder.name,
        "by": f"secateur, {summary['settings']['metric']}",
    }
    for key in ("top1", "top5"):
        both = (was[key], now[key])
        old, new = (None if value is None else round(100 * value, 2) for value in both)
        drop = None if old is None or new is None else round(100 * (both[0] - both[1]), 2)
        row |= {f"base_{key}": old, key: new, f"{key}_drop": drop}
    for key in ("macs", "params"):
        row |= {key: after[key], f"{key}_removed": round(100 * (1 - after[key] / before[key]), 1)}
    images = f"{now['num_images']:,}"
    note = (
        f"{folder.name}: accuracy on {images} test images, which no decision has read."
        if part == "test"
        else f"{folder.name}: accuracy on the {images} held-out images that decisions were made on; no test images."
    )
    return {key: {**row, "source": OWN}[key] for key in COLUMNS}, note


def _notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Notes of the file that concern these groups: its first always, others by table and network."""
    everywhere, *others = published().notes
    starts = {f"Table {group.table[0]}, {group.network}," for group in groups}
    if not groups:
        return ()
    return (f"{everywhere} Source: {published().source}.", *(n for n in others if n.startswith(tuple(starts))))


# ------------------------------------------------------------------------------------------------------------ formats


def as_csv(rows: Sequence[Row]) -> str:
    """All columns, empty where nothing was reported."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(found: Table) -> str:
    """Rows and notes."""
    return json.dumps({"rows": found.rows, "notes": found.notes}, indent=2)


def as_cells(rows: Sequence[Row], titles: Mapping[str, str] = COLUMNS) -> tuple[list[str], list[list[str]]]:
    """Headings and cells as text, of the columns in `titles`; those in which no row has anything are left out."""
    shown = [key for key in titles if any(row[key] is not None for row in rows)]
    return [titles[key] for key in shown], [[_cell(key, row[key]) for key in shown] for row in rows]


def as_markdown(rows: Sequence[Row]) -> str:
    """A markdown table; runs in bold."""
    titles, cells = as_cells(rows)
    lines = [titles, ["---"] * len(titles)]
    for row, line in zip(rows, cells, strict=True):
        lines.append([f"**{cell}**" for cell in line] if row["source"] == OWN else line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def short(number: float) -> str:
    """46400000 -> 46.4 M: three digits, as many as the paper prints."""
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
