"""The picture of the sensitivity study: accuracy against MACs removed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.pictures.drawing import INK, PAGE, figure, legend, line, save
from secateur.studies.folder import StudyRow
from secateur.studies.sensitivity_study.table import METHODS


def draw_sensitivity(
    rows: Sequence[StudyRow], base: StudyRow, folder: Path, words: QualityWords = ACCURACY
) -> dict[str, str]:
    """Accuracy (or another quality) against MACs removed: one colour per method; test solid, held-out dotted."""
    fig, axes = figure(PAGE, 3.6)
    parts = [part for part in ("test", "holdout") if base[part] is not None]
    names = {"test": "test", "holdout": "held-out"}
    for number, (method, title) in enumerate(METHODS.items()):
        mine = [row for row in rows if row["method"] == method]
        for part in parts:
            style = line(number)
            if part != parts[0]:
                style |= {"linestyle": ":", "linewidth": 1.0, "markersize": 3.0}
            places = [100 * row["macs_removed"] for row in mine]
            axes.plot(places, [row[part] for row in mine], label=f"{title}, {names[part]}", **style)
    axes.axhline(base[parts[0]], color=INK, linewidth=0.9, linestyle="--", label=f"unpruned, {names[parts[0]]}")
    axes.set_xlabel("MACs removed (%)")
    axes.set_ylabel(words.axis)
    legend(fig, axes, where="below", columns=2)
    return {
        "file": save(fig, folder, "curves"),
        "alt": f"{words.title} against MACs removed in each iteration, for two ways of choosing the units to prune.",
        "caption": "Iterations of pruning and retraining from the same network, with the same metric, epochs and MACs "
        "removed in each iteration. Held-out images decide what is removed; test images are only for this report.",
    }
