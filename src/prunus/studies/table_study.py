"""Finished runs as rows among the paper's published rows (Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prunus.errors import RunError
from prunus.run.folder import CONFIG, SUMMARY, RunFolder
from prunus.studies.folder import StudyFolder, StudyRow, text_cells
from prunus.studies.recipes import STATUS, PublishedGroup, group_of, published
from prunus.util.text import big_number, latex_table

COLUMNS: Mapping[str, str] = {
    **{key: key for key in ("network", "data", "method", "by")},
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
class ResultsTable:
    """Rows with the keys of COLUMNS, and notes on them."""

    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]


def table(runs: Sequence[str | Path] = (), *, model: str | None = None, data: str | None = None) -> ResultsTable:
    """Finished runs as rows among the published rows of their network and data set, sorted by MACs removed.

    runs: folders of finished runs. Without runs: all published rows, in the paper's order.
    model, data: as in `prunus prune`, for folders that do not record them (those of `prunus.compress`).
    """
    if not runs:
        groups = [g for g in published().groups if model in (None, *g.models) and data in (None, g.data)]
        if not groups:
            known = ", ".join(f"{g.models[0]} on {g.data}" for g in published().groups)
            raise RunError(
                f"the paper has no rows for {model or 'any network'} on {data or 'any data'}; it has {known}"
            )
        return ResultsTable(tuple(row for group in groups for row in _published_rows(group)), _notes(groups))
    own: dict[tuple[str, str], list[StudyRow]] = {}
    notes: list[str] = []
    for folder in map(Path, runs):
        run = RunFolder(folder)
        if not run.has(SUMMARY):
            again = f"Continue it with `prunus prune --resume {folder}`"
            raise RunError(f"{folder} holds no finished run: {SUMMARY} is missing. {again}")
        config = run.read(CONFIG)
        asked, start = config.get("command") or {}, config.get("start") or {}  # the command may name a file or folder
        # What was cut from a pruned network is not comparable with the paper's rows of the whole one.
        named = None if start.get("earlier") else start.get("network")
        name, on = model or named or asked.get("model"), data or asked.get("data")
        if name is None or on is None:
            raise RunError(f"{folder} does not record its network and data set: pass --model and --data")
        on = str(on).partition(":")[0]
        row, note = run.parse(SUMMARY, partial(_own_row, folder.name, name, on))
        own.setdefault((name, on), []).append(row)
        notes.append(note)
    rows, known_groups = [], []
    for (name, on), mine in own.items():
        group = group_of(name, on)
        if group is None:
            notes.append(f"The paper has no rows for {name} on {on}.")
        else:
            known_groups.append(group)
            mine = [*_published_rows(group), *mine]
        rows += sorted(mine, key=lambda row: row["macs_removed"])
    return ResultsTable(tuple(rows), (*notes, *_notes(known_groups)))


def _published_rows(group: PublishedGroup) -> list[StudyRow]:
    rows = [{"network": group.network, "data": group.data, **asdict(row), "source": STATUS} for row in group.rows]
    return [{key: row[key] for key in COLUMNS} for row in rows]


def _own_row(method: str, name: str, data: str, summary: dict[str, Any]) -> tuple[StudyRow, str]:
    """The row of a run, and a note on the images that measured its accuracy."""
    before, after, group = summary["before"], summary["after"], group_of(name, data)
    part = "test" if after["test"] is not None else "holdout"
    row: StudyRow = {
        "network": name if group is None else group.network,
        "data": data,
        "method": method,
        "by": f"prunus, {summary['settings']['metric']}",
        "source": OWN,
    }
    for key in ("top1", "top5"):
        old, new = (
            side[part]["quality"] if key == "top1" else side[part]["details"].get(key) for side in (before, after)
        )
        known = old is not None and new is not None
        for column, value in ((f"base_{key}", old), (key, new), (f"{key}_drop", old - new if known else None)):
            row[column] = round(100 * value, 2) if known and value is not None else None
    for key in ("macs", "params"):
        row |= {key: after[key], f"{key}_removed": round(100 * (1 - after[key] / before[key]), 1)}
    images = f"{after[part]['num_images']:,}"
    kind = f"the {images} held-out images that decisions used; there are no test images"
    note = f"{images} test images, which no decision used" if part == "test" else kind
    return {key: row[key] for key in COLUMNS}, f"{method}: accuracy on {note}."


def _notes(groups: Sequence[PublishedGroup]) -> tuple[str, ...]:
    """The published notes on these groups: the first one always, the others by table and network."""
    everywhere, *others = published().notes
    starts = tuple(f"Table {group.table[0]}, {group.network}," for group in groups)
    if not groups:
        return ()
    return (f"{everywhere} Source: {published().source}.", *(note for note in others if note.startswith(starts)))


def figure_text(value: Any, key: str) -> str:
    """A value of the column `key` as text."""
    if value is None:
        return "-"
    if key in ("macs", "params"):
        return big_number(value)
    if isinstance(value, float):
        return f"{value:.1f}" if key.endswith("_removed") else f"{value:.2f}"
    return str(value)


def write_table(results: ResultsTable, folder: StudyFolder) -> Path:
    """Write study.json, table.csv and table.tex. The column of sources says which rows are published ones."""
    titles, cells = text_cells(results.rows, COLUMNS, figure_text)
    texts = {COLUMNS[key] for key in ("network", "data", "method", "by", "source")}
    numbers = [place for place, title in enumerate(titles) if title not in texts]
    latex = latex_table(titles, cells, numbers, caption="Runs among published results.", label="tab:published")
    folder.start()
    title = "Runs compared with the paper's tables"
    return folder.finish(title, results.rows, notes=results.notes, columns=COLUMNS, latex=latex)
