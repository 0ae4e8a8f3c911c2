"""The effectiveness study's table (seeds averaged, with their spread), its picture, and what they say in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from secateur.pictures.drawing import PAGE, figure, legend, line, save, styled
from secateur.studies.folder import Row

STAGES = {"accuracy": "as cut", "repaired": "repaired", "retrained": "retrained"}
MEASURED = ("accuracy", "top5", "loss", "test_images", "repaired", "retrained")
COLUMNS = {
    "ratio": "share of channels removed",
    "images": "images scored on",
    "macs_removed": "share of MACs removed",
    "params_removed": "share of weights removed",
    "accuracy": "accuracy as cut (%)",
    "spread": "standard deviation over seeds",
    "top5": "top-5 (%)",
    "repaired": "accuracy repaired (%)",
    "repaired_spread": "standard deviation",
    "retrained": "accuracy retrained (%)",
    "retrained_spread": "standard deviation",
}


def averaged(single: Sequence[Row]) -> list[Row]:
    """One row for each network, metric and ratio: means over the seeds, and standard deviations where there are two."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in single:
        groups.setdefault((row["network"], row["metric"], row["ratio"]), []).append(row)
    return [_mean_row(rows) for rows in groups.values()]


def _mean_row(rows: Sequence[Row]) -> Row:
    first = rows[0]
    found: Row = {key: first[key] for key in ("network", "metric", "ratio", "images")}
    found["seeds"] = len(rows)
    found |= {key: round(mean(row[key] for row in rows), 6) for key in ("macs_removed", "params_removed")}
    for stage in (stage for stage in STAGES if stage in first):
        values = [row[stage] for row in rows]
        found[stage] = round(mean(values), 4)
        name = "spread" if stage == "accuracy" else f"{stage}_spread"
        found[name] = round(stdev(values), 4) if len(values) > 1 else None
    found["top5"] = None if first["top5"] is None else round(mean(row["top5"] for row in rows), 4)
    found["loss"] = round(mean(row["loss"] for row in rows), 6)
    return found


def draw(rows: Sequence[Row], folder: Path) -> dict[str, str]:
    """Accuracy against the share removed, a line per metric: a column of axes per network, a row per stage."""
    networks = list(dict.fromkeys(row["network"] for row in rows))
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    stages = [stage for stage in STAGES if stage in rows[0]]
    height = max((3.4 if len(stages) == 1 else 2.7) * len(stages), 0.21 * len(metrics) + 0.6)  # room for the legend
    fig, axes = figure(PAGE, height, len(stages), len(networks), squeeze=False, sharex=True, sharey="row")
    for i, stage in enumerate(stages):
        for j, network in enumerate(networks):
            for metric in _from_the_top(rows, metrics):  # the legend is in the order of the lines
                some = [row for row in rows if (row["network"], row["metric"]) == (network, metric)]
                _curve(axes[i, j], some, stage, metric, metrics.index(metric))
            with styled():
                axes[i, j].set_title(f"{network}, {STAGES[stage]}")
        axes[i, 0].set_ylabel("accuracy (%)")
    for one in axes[-1]:
        one.set_xlabel("channels removed (%)")
    legend(fig, axes[0, 0])
    return {
        "file": save(fig, folder, "accuracy"),
        "alt": f"Accuracy against the share of channels removed, one line for each of {len(metrics)} metrics.",
        "caption": "What is left of the accuracy when each metric picks the channels that go, the same share of every "
        "unit. Bars are standard deviations over seeds, where there are several.",
    }


def _from_the_top(rows: Sequence[Row], metrics: Sequence[str]) -> list[str]:
    """The metrics by their mean accuracy as cut, the best first."""
    means = {m: mean(row["accuracy"] for row in rows if row["metric"] == m) for m in metrics}
    return sorted(metrics, key=lambda metric: -means[metric])


def _curve(axes: Any, rows: Sequence[Row], stage: str, metric: str, number: int) -> None:
    rows = sorted(rows, key=lambda row: row["ratio"])
    places, values = [100 * row["ratio"] for row in rows], [row[stage] for row in rows]
    spread = [row["spread" if stage == "accuracy" else f"{stage}_spread"] for row in rows]
    bars: Mapping[str, Any] = {} if None in spread else {"yerr": spread, "capsize": 2, "elinewidth": 0.8}
    axes.errorbar(places, values, label=metric, **line(number), **bars)


def sentences(rows: Sequence[Row], single: Sequence[Row]) -> list[str]:
    """The base, and the best metric at each ratio."""
    found = []
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        base = next(row for row in mine if row["ratio"] == 0)
        images = next(row["test_images"] for row in single if row["network"] == network)
        found.append(f"{network}: {base['accuracy']:.2f}% on {images:,} test images before anything is removed.")
        for stage in (stage for stage in STAGES if stage in base):
            best = [_best(mine, stage, ratio) for ratio in sorted({row["ratio"] for row in mine} - {0})]
            if best:
                found.append(f"{network}, {STAGES[stage]}, the best metric: {', '.join(best)}.")
    found.append("Nothing was decided on the test images: every metric removes the same share of every unit.")
    return found


def _best(rows: Sequence[Row], stage: str, ratio: float) -> str:
    top = max((row for row in rows if row["ratio"] == ratio), key=lambda row: float(row[stage]))
    return f"{top['metric']} at {ratio:.0%} ({top[stage]:.2f}%)"
