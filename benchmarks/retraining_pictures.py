"""Pictures of what schedule.py, retrained.py and predictors.py have found.

    python benchmarks/retraining_pictures.py schedule docs/results/schedule.json docs/results
    python benchmarks/retraining_pictures.py retrained docs/results/retrained.json docs/results
    python benchmarks/retraining_pictures.py predictors docs/results/predictors.json docs/results

The last word is the folder; files are called after the JSON file.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prunus.plots.style import COLOURS, INK, PAGE, figure, save

NAMES = {
    "time": "ours, by time",
    "peer, time": "torch-pruning, equally fast",
    "macs": "ours, by MACs",
    "macs, 2": "ours, in two rounds",
    "macs, 4": "ours, in four rounds",
    "peer": "torch-pruning",
    "paper": "the paper's cut",
}
WORDS = {"none": "as cut", "bn": "batch norms re-estimated", "solve": "after solve", "error": "minus the summed error"}


def schedule(found: dict[str, Any]) -> Any:
    """Held-out accuracy after the last epoch of each choice of settings."""
    rows = sorted((row["holdout"][-1], label(title)) for title, row in found["rows"].items())
    drawing, axes = figure(PAGE, 0.8 + 0.21 * len(rows))
    places = range(len(rows))
    axes.plot([best for best, _ in rows], places, "o", color=COLOURS[0])
    axes.axvline(found["holdout"]["after"], color=COLOURS[3], linestyle="--", label="repaired, before the first epoch")
    axes.set_yticks(places, [title for _, title in rows])
    axes.set_xlabel("held-out accuracy after the last epoch, %")
    axes.legend(loc="lower right")
    return drawing


def label(title: str) -> str:
    """A row of schedule.py in words: without what most rows share, and with what these do not."""
    others = {" views=1": ", new crops in each epoch", " mixed_precision=bf16": ", float32"}
    for shared, other in others.items():
        title = title.replace(shared, "") if shared in title else f"{title}{other}"
    return title


def retrained(found: dict[str, Any]) -> Any:
    """Test accuracy of each row: all seeds, and their mean."""
    groups: dict[str, list[float]] = {}
    for title, row in found["rows"].items():
        groups.setdefault(title.rpartition(", seed ")[0], []).append(row["test"])
    groups = {title: groups[title] for title in [*NAMES, *(set(groups) - set(NAMES))] if title in groups}
    drawing, axes = figure(PAGE, 0.9 + 0.3 * len(groups))
    for place, values in enumerate(groups.values()):
        axes.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.5)
        axes.plot([statistics.mean(values)], [place], "|", color=INK, markersize=14)
    axes.set_yticks(range(len(groups)), [NAMES.get(title, title) for title in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel("test accuracy after retraining, %; a point for each seed, a bar for their mean")
    return drawing


def predictors(found: dict[str, Any]) -> Any:
    """Retrained accuracy over each predictor."""
    drawing, every = figure(PAGE, 2.4, 1, len(WORDS), sharey=True)
    for axes, (name, words) in zip(every, WORDS.items(), strict=True):
        sign = -1 if name == "error" else 1
        points = [(sign * row[name], row["retrained"]) for row in found["rows"].values()]
        axes.plot(*zip(*points, strict=True), "o", color=COLOURS[0], alpha=0.7)
        axes.set_title(f"correlation {found['correlations'][name]:.2f}", fontsize="medium")
        axes.set_xlabel(words)
    every[0].set_ylabel("retrained, %")
    return drawing


def main() -> None:
    """Draw one file."""
    what, path, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    draw = {"schedule": schedule, "retrained": retrained, "predictors": predictors}[what]
    save(draw(json.loads(path.read_text())), folder, path.stem)


if __name__ == "__main__":
    main()
