"""The picture of the table study: change of accuracy against MACs removed, for published methods and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.pictures.drawing import COLOURS, INK, PAGE, figure, save, styled
from secateur.studies.folder import StudyFolder, StudyRow
from secateur.studies.recipes.published_rows import STATUS
from secateur.studies.table_study.table import COLUMNS, ResultsTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

PUBLISHED, PAPER, OWN_RUN = COLOURS[7], COLOURS[0], COLOURS[3]  # other methods, the paper's own, runs
SIDES = ((6, 4, "left"), (6, -10, "left"), (-6, 4, "right"), (-6, -10, "right"), (6, 12, "left"))  # points; alignment
MARKER = 4  # pixels from the centre of a point to its edge, at the figure's own resolution


def write_table(found: ResultsTable, folder: StudyFolder) -> Path:
    """Write study.json, table.csv and a picture of the change of accuracy against MACs removed."""
    folder.start()
    pictures = draw_table(found, folder.path)
    return folder.finish("Runs compared with the paper's tables", found.rows, pictures, found.notes, columns=COLUMNS)


def draw_table(found: ResultsTable, folder: Path) -> list[dict[str, str]]:
    """One picture for each network and data set in the table, for `StudyFolder.finish`."""
    pictures = []
    for network, data in dict.fromkeys((row["network"], row["data"]) for row in found.rows):
        rows = [row for row in found.rows if (row["network"], row["data"]) == (network, data)]
        key = "top1" if all(row["top1"] is not None for row in rows) else "top5"
        rows = [row for row in rows if row[f"{key}_drop"] is not None]
        if rows:
            pictures.append(_draw(rows, key, f"{network} on {data}", folder))
    return pictures


def _draw(rows: Sequence[StudyRow], key: str, title: str, folder: Path) -> dict[str, str]:
    """key: top1 or top5."""
    name = {"top1": "top-1", "top5": "top-5"}[key]
    fig, axes = figure(PAGE, 3.4)
    with styled():
        axes.axhline(0, color=INK, linewidth=0.8)
        for row in rows:
            axes.plot(row["macs_removed"], -row[f"{key}_drop"], linestyle="none", markersize=6, **_marker(row))
        axes.set(xlabel="MACs removed (%)", ylabel=f"change of {name} accuracy (points)")
        axes.set_title(f"{title}: published results (squares: G-SD, circles: others) and runs (diamonds)")
        axes.margins(x=0.12, y=0.15)
        label(fig, axes, [(row["method"], (row["macs_removed"], -row[f"{key}_drop"])) for row in rows])
    plain = "".join(c if c.isalnum() else "-" for c in title.replace(" on ", "-").lower())
    return {
        "file": save(fig, folder, f"table-{plain}"),
        "alt": f"Change of {name} accuracy against MACs removed, {title}: {len(rows)} methods and runs",
        "caption": f"{title}. Above 0: better than before pruning.",
    }


def _marker(row: StudyRow) -> dict[str, Any]:
    if row["source"] != STATUS:
        return {"marker": "D", "color": OWN_RUN}
    own = row["method"].startswith("G-SD")
    return {"marker": "s", "color": PAPER} if own else {"marker": "o", "color": PUBLISHED}


def label(fig: Figure, axes: Axes, names: Sequence[tuple[str, tuple[float, float]]]) -> list[Annotation]:
    """Write each name next to its point, on a side where it covers no other name or point and stays inside the axes."""
    from matplotlib.transforms import Bbox

    fig.draw_without_rendering()  # sets limits and layout
    spots = [axes.transData.transform(point) for _, point in names]
    taken = [Bbox.from_extents(x - MARKER, y - MARKER, x + MARKER, y + MARKER) for x, y in spots]
    found = []
    for name, point in names:
        for number, (x, y, side) in enumerate(SIDES):
            words = axes.annotate(
                name, point, xytext=(x, y), textcoords="offset points", fontsize=7.5, color=INK, ha=side
            )
            box = words.get_window_extent()
            free = not any(box.overlaps(other) for other in taken)
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if (free and inside) or number == len(SIDES) - 1:
                taken.append(box)
                found.append(words)
                break
            words.remove()
    return found
