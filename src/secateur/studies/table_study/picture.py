"""The picture of a table: accuracy lost against MACs removed, published methods and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from secateur.pictures.drawing import COLOURS, INK, PAGE, figure, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

    from secateur.studies.table_study.table import Table

PUBLISHED, OURS, OWN_RUN = COLOURS[7], COLOURS[0], COLOURS[3]  # others' methods, the paper's own, runs
SIDES = ((6, 4, "left"), (6, -10, "left"), (-6, 4, "right"), (-6, -10, "right"), (6, 12, "left"))  # points; alignment
MARKER = 4  # pixels from a point's middle to its edge, at the size of the screen


def draw_table(found: Table, folder: Path) -> list[dict[str, str]]:
    """One picture for each network and data set in the table, as `StudyFolder.finish` wants them."""
    pictures = []
    places = list(dict.fromkeys((row["network"], row["data"]) for row in found.rows))
    for network, data in places:
        rows = [row for row in found.rows if (row["network"], row["data"]) == (network, data)]
        key = "top1" if all(row["top1"] is not None for row in rows) else "top5"
        rows = [row for row in rows if row[f"{key}_drop"] is not None]
        if not rows:
            continue
        fig, axes = figure(PAGE, 3.4)
        with styled():
            axes.axhline(0, color=INK, linewidth=0.8)
            for row in rows:
                own = row["source"] != "as published"
                colour = OWN_RUN if own else OURS if row["method"].startswith("G-SD") else PUBLISHED
                marker = "D" if own else "s" if colour == OURS else "o"
                point = (row["macs_removed"], -row[f"{key}_drop"])
                axes.plot(*point, marker=marker, color=colour, linestyle="none", markersize=6)
            name = {"top1": "top-1", "top5": "top-5"}[key]
            axes.set(xlabel="MACs removed (%)", ylabel=f"change of {name} accuracy (points)")
            axes.set_title(f"{network} on {data}: squares G-SD and circles others, as published; diamonds runs")
            axes.margins(x=0.12, y=0.15)
            label(fig, axes, [(row["method"], (row["macs_removed"], -row[f"{key}_drop"])) for row in rows])
        alt = f"Change of {name} accuracy against MACs removed, {network} on {data}: {len(rows)} methods and runs"
        plain = "".join(c if c.isalnum() else "-" for c in f"{network}-{data}".lower())
        pictures.append(
            {
                "file": save(fig, folder, f"table-{plain}"),
                "alt": alt,
                "caption": f"{network} on {data}. Above 0: better than before pruning.",
            }
        )
    return pictures


def label(fig: Figure, axes: Axes, names: Sequence[tuple[str, tuple[float, float]]]) -> list[Annotation]:
    """Write each name beside its point: on the side where it covers no other name or point and stays in the picture."""
    from matplotlib.transforms import Bbox

    fig.draw_without_rendering()  # limits and layout are settled by drawing only
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
