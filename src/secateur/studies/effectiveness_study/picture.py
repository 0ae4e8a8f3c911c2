"""The picture of the effectiveness study: accuracy against the fraction of channels removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.pictures.drawing import PAGE, figure, legend, line, save, styled
from secateur.studies.effectiveness_study.table import STAGES
from secateur.studies.folder import StudyRow


def draw_effectiveness(rows: Sequence[StudyRow], folder: Path, words: QualityWords = ACCURACY) -> dict[str, str]:
    """Accuracy, or another quality, against the fraction removed: networks side by side, stages below each other."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    stages = [stage for stage in STAGES if stage in rows[0]]
    height = max((3.4 if len(stages) == 1 else 2.7) * len(stages), 0.21 * len(metrics) + 0.6)  # room for the legend
    fig, axes = figure(PAGE, height, len(stages), len(networks), squeeze=False, sharex=True, sharey="row")
    for i, stage in enumerate(stages):
        for j, network in enumerate(networks):
            for metric in _best_first(rows, metrics):  # the order of the legend
                some = [row for row in rows if (row["network"], row["metric"]) == (network, metric)]
                _curve(axes[i, j], some, stage, metric, metrics.index(metric))
            with styled():
                axes[i, j].set_title(f"{network}, {STAGES[stage]}")
        axes[i, 0].set_ylabel(words.axis)
    for one in axes[-1]:
        one.set_xlabel("channels removed (%)")
    legend(fig, axes[0, 0])
    return {
        "file": save(fig, folder, "accuracy"),
        "alt": f"{words.title} against the fraction of channels removed, one line for each of {len(metrics)} metrics.",
        "caption": f"{words.title} after each metric has removed the same fraction of every unit. Error bars are "
        "standard deviations over seeds, if there are several.",
    }


def _best_first(rows: Sequence[StudyRow], metrics: Sequence[str]) -> list[str]:
    """The metrics by their mean accuracy as cut, best first."""
    means = {m: mean(row["accuracy"] for row in rows if row["metric"] == m) for m in metrics}
    return sorted(metrics, key=lambda metric: -means[metric])


def _curve(axes: Any, rows: Sequence[StudyRow], stage: str, metric: str, number: int) -> None:
    rows = sorted(rows, key=lambda row: row["ratio"])
    places, values = [100 * row["ratio"] for row in rows], [row[stage] for row in rows]
    spread = [row["spread" if stage == "accuracy" else f"{stage}_spread"] for row in rows]
    bars: Mapping[str, Any] = {} if None in spread else {"yerr": spread, "capsize": 2, "elinewidth": 0.8}
    axes.errorbar(places, values, label=metric, **line(number), **bars)
