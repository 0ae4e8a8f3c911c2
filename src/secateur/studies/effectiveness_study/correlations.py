"""Rank correlation between all metrics of the effectiveness study: which of them order channels alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secateur.base.atomic_files import write_atomically
from secateur.pictures.drawing import PAGE, figure, save, styled
from secateur.scoring.scores import Scores, rank_correlation

FILE = "correlations.csv"
Table = dict[str, dict[str, float]]


def correlation_table(scores: Mapping[str, Scores]) -> Table:
    """metric -> metric -> Spearman's rank correlation of their scores, averaged over the units that both have."""
    return {a: {b: round(rank_correlation(x, y), 4) for b, y in scores.items()} for a, x in scores.items()}


def write_correlations(tables: Mapping[str, Table], folder: Path) -> list[dict[str, str]]:
    """Write the tables of all networks as CSV, and one picture for each. Returns the pictures."""
    lines, pictures = [], []
    for number, (network, table) in enumerate(tables.items()):
        lines.append(",".join(["network", "metric", *table]))
        lines += [",".join([network, a, *(f"{value:.4f}" for value in row.values())]) for a, row in table.items()]
        if len(table) > 1:
            pictures.append(_picture(network, table, folder, f"correlations-{number + 1}"))
    write_atomically(folder / FILE, ("\n".join(lines) + "\n").encode())
    return pictures


def _picture(network: str, table: Table, folder: Path, name: str) -> dict[str, str]:
    names = list(table)
    side = max(2.5, min(PAGE, 0.26 * len(names) + 1.4))
    fig, axes = figure(side + 0.6, side)
    values = [[table[a][b] for b in names] for a in names]
    with styled():
        shown: Any = axes.imshow(values, cmap="RdBu", vmin=-1, vmax=1)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        axes.grid(False)
        axes.set_title(f"{network}, rank correlation")
        fig.colorbar(shown, ax=axes, shrink=0.7)
    return {
        "file": save(fig, folder, name),
        "alt": f"Rank correlation between {len(names)} metrics on {network}, as a table of colours.",
        "caption": f"{network}: Spearman's rank correlation of the channels' scores, averaged over the units that are "
        f"pruned (first sample). The numbers are in {FILE}.",
    }
