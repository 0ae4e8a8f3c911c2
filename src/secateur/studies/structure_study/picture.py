"""The result of the structure study: a folder with a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from secateur.pictures.drawing import COLOURS, PAGE, figure, save, styled
from secateur.studies.folder import StudyFolder, StudyRow
from secateur.studies.structure_study.structure import COLUMNS, TOTAL


def write_structure(rows: Sequence[StudyRow], title: str, folder: StudyFolder) -> Path:
    """Write study.json, table.csv and a picture of the MACs and weights of each part."""
    folder.start()
    pictures = [draw_structure([row for row in rows if row["part"] != TOTAL], title, folder.path)]
    return folder.finish(title, rows, pictures, columns=COLUMNS)


def draw_structure(rows: Sequence[StudyRow], title: str, folder: Path) -> dict[str, str]:
    """Bars for every part: pruned in front of original."""
    fig, (left, right) = figure(PAGE, max(2.6, 0.16 * len(rows) + 1.0), columns=2, sharey=True)
    with styled():
        for axes, key, name in ((left, "macs", "MACs"), (right, "params", "weights")):
            _bars(axes, rows, key, name)
        left.set_yticks(range(len(rows)), [row["part"] for row in rows])
        left.invert_yaxis()
        handles, labels = left.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=2)
        fig.suptitle(title, fontsize=9)
    alt = f"{title}: MACs and weights of {len(rows)} parts, original and pruned"
    return {"file": save(fig, folder, "structure"), "alt": alt, "caption": "Grey: original. Blue: pruned."}


def _bars(axes: Any, rows: Sequence[StudyRow], key: str, name: str) -> None:
    most = max(row[key] for row in rows)
    scale, unit = next(((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e3, "K")) if most >= s), (1.0, ""))
    places = range(len(rows))
    axes.barh(places, [row[key] / scale for row in rows], color="#cfd8dc", height=0.8, label="original")
    pruned = [row[f"{key}_pruned"] / scale for row in rows]
    axes.barh(places, pruned, color=COLOURS[0], height=0.5, label="pruned")
    axes.set(xlabel=f"{name} ({unit})" if unit else name)
    axes.grid(visible=False, axis="y")
