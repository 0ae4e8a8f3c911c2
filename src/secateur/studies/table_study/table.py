"""Finished runs as rows among the paper's published rows (Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from secateur.errors import RunError
from secateur.running.folder import CONFIG, SUMMARY, RunFolder
from secateur.studies.folder import StudyRow
from secateur.studies.recipes.published_rows import STATUS, PublishedGroup, PublishedRow, group_of, published

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
class ResultsTable:
    """Rows with the keys of COLUMNS, and notes on them."""

    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...]


def table(runs: Sequence[str | Path] = (), *, model: str | None = None, data: str | None = None) -> ResultsTable:
    """Finished runs as rows among the published rows of their network and data set, sorted by MACs removed.

    runs: folders of finished runs. Without runs: all published rows, in the paper's order.
    model, data: as in `secateur prune`, for folders that do not record them (those of `secateur.compress`).
    """
    if not runs:
        return _only_published(model, data)
    found: dict[tuple[str, str], list[StudyRow]] = {}
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
    return ResultsTable(tuple(rows), (*notes, *_notes(known_groups)))


def _only_published(model: str | None, data: str | None) -> ResultsTable:
    groups = [g for g in published().groups if model in (None, *g.models) and data in (None, g.data)]
    if not groups:
        known = ", ".join(f"{g.models[0]} on {g.data}" for g in published().groups)
        raise RunError(f"the paper has no rows for {model or 'any network'} on {data or 'any data'}; it has {known}")
    rows = [_published_row(group, result) for group in groups for result in group.rows]
    return ResultsTable(tuple(rows), _notes(groups))


def _published_row(group: PublishedGroup, result: PublishedRow) -> StudyRow:
    words = {"network": group.network, "data": group.data, **asdict(result), "source": STATUS}
    return {key: words[key] for key in COLUMNS}


def _own_row(folder: Path, model: str | None, data: str | None) -> tuple[str, str, StudyRow, str]:
    """The name of the network and of the data set, the row, and a note on the images that measured the accuracy."""
    run = RunFolder(folder)
    if not run.has(SUMMARY):
        raise RunError(
            f"{folder} holds no finished run: {SUMMARY} is missing. Continue it with `secateur prune --resume {folder}`"
        )
    config = run.read(CONFIG)
    asked = config.get("command") or {}
    start = config.get("start") or {}  # where the command names a file or a folder
    named = (
        None if start.get("earlier") else start.get("network")
    )  # cuts of a pruned network are not those of the whole
    name, on = model or named or asked.get("model"), data or asked.get("data")
    if name is None or on is None:
        raise RunError(f"{folder} does not record its network and data set: pass --model and --data")
    on = str(on).partition(":")[0]
    row, note = run.parse(SUMMARY, lambda summary: _row(folder, name, on, summary))
    return name, on, row, note


def _row(folder: Path, name: str, data: str, summary: dict[str, Any]) -> tuple[StudyRow, str]:
    before, after = summary["before"], summary["after"]
    part = "test" if after["test"] is not None else "holdout"
    group = group_of(name, data)
    row: StudyRow = {
        "network": name if group is None else group.network,
        "data": data,
        "method": folder.name,
        "by": f"secateur, {summary['settings']['metric']}",
        "source": OWN,
    }
    for key in ("top1", "top5"):
        row |= _accuracies(key, before[part][key], after[part][key])
    for key in ("macs", "params"):
        row |= {key: after[key], f"{key}_removed": round(100 * (1 - after[key] / before[key]), 1)}
    images = f"{after[part]['num_images']:,}"
    note = (
        f"{folder.name}: accuracy on {images} test images, which no decision used."
        if part == "test"
        else f"{folder.name}: accuracy on the {images} held-out images that decisions used; there are no test images."
    )
    return {key: row[key] for key in COLUMNS}, note


def _accuracies(key: str, before: float | None, after: float | None) -> StudyRow:
    """Percent before and after, and the difference in points."""
    old, new = (None if value is None else round(100 * value, 2) for value in (before, after))
    drop = None if before is None or after is None else round(100 * (before - after), 2)
    return {f"base_{key}": old, key: new, f"{key}_drop": drop}


def _notes(groups: Sequence[PublishedGroup]) -> tuple[str, ...]:
    """The published notes on these groups: the first one always, the others by table and network."""
    everywhere, *others = published().notes
    starts = {f"Table {group.table[0]}, {group.network}," for group in groups}
    if not groups:
        return ()
    return (f"{everywhere} Source: {published().source}.", *(n for n in others if n.startswith(tuple(starts))))
