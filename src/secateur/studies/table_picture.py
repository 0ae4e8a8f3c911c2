"""The picture of a table: accuracy lost against MACs removed, published methods and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from secateur.studies.drawing import COLOURS, INK, PAGE, figure, save, styled

if TYPE_CHECKING:
    from secateur.studies.tables import Table

PUBLISHED, OURS, OWN_RUN = COLOURS[7], COLOURS[0], COLOURS[3]  # others' methods, the paper's own, runs


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
                axes.annotate(row["method"], point, xytext=(5, 4), textcoords="offset points", fontsize=7.5, color=INK)
            name = {"top1": "top-1", "top5": "top-5"}[key]
            axes.set(xlabel="MACs removed (%)", ylabel=f"change of {name} accuracy (points)")
            axes.set_title(f"{network} on {data}: squares G-SD and circles others, as published; diamonds runs")
            axes.margins(x=0.12, y=0.15)
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
