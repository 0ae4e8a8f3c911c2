"""The effectiveness study in print: its table for a paper, its chart, and the correlations between metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from prunus.plots.style import PAGE, figure, legend, line, save, styled
from prunus.studies.folder import StudyRow
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.files import write_atomically
from prunus.util.text import latex_table

STAGES = {"accuracy": "before repair", "repaired": "after repair", "retrained": "after retraining"}


def column_of(what: str, stage: str) -> str:
    """The column with the standard error, or the p-value, of a stage: retrained_p; that of the cut itself is p."""
    return what if stage == "accuracy" else f"{stage}_{what}"


def pivoted(rows: Sequence[StudyRow], stage: str, text: QualityText) -> tuple[list[str], list[list[str]]]:
    """Titles and cells: one line per network and metric, one column per ratio; means ± standard errors over seeds."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in sorted(rows, key=lambda row: float(row["ratio"])):
        values = row[stage], row[column_of("standard_error", stage)]
        numbers = [text.scaled(value).rstrip("%") for value in values if value is not None]
        lines.setdefault((row["network"], row["metric"]), []).append(" ±".join(numbers))
    ratios = [f"{ratio:.0%}" for ratio in sorted({row["ratio"] for row in rows})]
    return ["network", "metric", *ratios], [[*key, *values] for key, values in lines.items()]


def as_latex(rows: Sequence[StudyRow], text: QualityText) -> str:
    """A LaTeX table for each stage that was measured."""
    tables, seeds = [], rows[0]["seeds"]
    for stage in (stage for stage in STAGES if stage in rows[0]):
        titles, cells = pivoted(rows, stage, text)
        error = f"; mean and standard error over {seeds} seeds" if seeds > 1 else ""
        unit = f" in {text.unit}" if text.unit else ""
        caption = f"{text.title} {STAGES[stage]}{unit}, by the fraction of channels removed{error}."
        numbers = range(2, len(titles))
        tables.append(latex_table(titles, cells, numbers, caption=caption, label=f"tab:effectiveness-{stage}"))
    return "\n".join(tables)


FILE = "correlations.csv"


def write_correlations(tables: Mapping[str, Mapping[str, Mapping[str, float]]], folder: Path) -> list[dict[str, str]]:
    """Write the correlations of all networks (metric -> metric -> number) as CSV, and one picture for each.

    Returns the pictures.
    """
    lines, pictures = [], []
    for number, (network, table) in enumerate(tables.items()):
        lines.append(",".join(["network", "metric", *table]))
        lines += [",".join([network, a, *(f"{value:.4f}" for value in row.values())]) for a, row in table.items()]
        if len(table) < 2:
            continue
        names = list(table)
        side = max(2.5, min(PAGE, 0.26 * len(names) + 1.4))
        fig, axes = figure(side + 0.6, side)
        with styled():
            shown: Any = axes.imshow([[table[a][b] for b in names] for a in names], cmap="RdBu", vmin=-1, vmax=1)
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
            axes.grid(False)
            axes.set_title(f"{network}, rank correlation")
            fig.colorbar(shown, ax=axes, shrink=0.7)
        pictures.append(
            {
                "file": save(fig, folder, f"correlations-{number + 1}"),
                "alt": f"Rank correlation between {len(names)} metrics on {network}, as a table of colours.",
                "caption": f"{network}: Spearman's rank correlation of the channels' scores, averaged over the units "
                f"that are pruned (first sample). The numbers are in {FILE}.",
            }
        )
    write_atomically(folder / FILE, ("\n".join(lines) + "\n").encode())
    return pictures


def draw_effectiveness(rows: Sequence[StudyRow], folder: Path, text: QualityText = ACCURACY) -> dict[str, str]:
    """Accuracy, or another quality, against the fraction removed: networks side by side, stages below each other."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    stages = [stage for stage in STAGES if stage in rows[0]]
    height = max((3.4 if len(stages) == 1 else 2.7) * len(stages), 0.21 * len(metrics) + 0.6)  # room for the legend
    fig, axes = figure(PAGE, height, len(stages), len(networks), squeeze=False, sharex=True, sharey="row")
    means = {m: mean(row["accuracy"] for row in rows if row["metric"] == m) for m in metrics}
    for i, stage in enumerate(stages):
        for j, network in enumerate(networks):
            for metric in sorted(metrics, key=lambda metric: -means[metric]):  # the order of the legend: best first
                some = [row for row in rows if (row["network"], row["metric"]) == (network, metric)]
                some.sort(key=lambda row: float(row["ratio"]))
                places, values = [100 * row["ratio"] for row in some], [row[stage] for row in some]
                errors = [row[column_of("standard_error", stage)] for row in some]
                bars: Mapping[str, Any] = {} if None in errors else {"yerr": errors, "capsize": 2, "elinewidth": 0.8}
                axes[i, j].errorbar(places, values, label=metric, **line(metrics.index(metric)), **bars)
            with styled():
                axes[i, j].set_title(f"{network}, {STAGES[stage]}")
        axes[i, 0].set_ylabel(text.axis)
    for one in axes[-1]:
        one.set_xlabel("channels removed (%)")
    legend(fig, axes[0, 0])
    return {
        "file": save(fig, folder, "accuracy"),
        "alt": f"{text.title} against the fraction of channels removed, one line for each of {len(metrics)} metrics.",
        "caption": f"{text.title} after each metric has removed the same fraction of every unit. Error bars are "
        "standard errors over seeds, if there are several.",
    }
