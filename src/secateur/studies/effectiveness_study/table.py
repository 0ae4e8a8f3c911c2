"""The table of the effectiveness study, averaged over seeds, and its notes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from secateur.measuring.quality_words import ACCURACY, QualityWords
from secateur.studies.folder import StudyRow

STAGES = {"accuracy": "as cut", "repaired": "repaired", "retrained": "retrained"}
AS_CUT = ("accuracy", "top5", "loss", "test_images")
MEASURED = (*AS_CUT, "repaired", "retrained")


def columns(words: QualityWords) -> dict[str, str]:
    """Column -> its title."""
    unit = f" ({words.unit})" if words.unit else ""
    return {
        "ratio": "fraction of channels removed",
        "images": "number of images scored on",
        "macs_removed": "fraction of MACs removed",
        "params_removed": "fraction of weights removed",
        as_cut(words): f"{words.name} as cut{unit}",
        "spread": "standard deviation over seeds",
        "top5": "top-5 (%)",
        "repaired": f"{words.name} repaired{unit}",
        "repaired_spread": "standard deviation",
        "retrained": f"{words.name} retrained{unit}",
        "retrained_spread": "standard deviation",
    }


def as_cut(words: QualityWords) -> str:
    """The column of the quality as cut."""
    return "accuracy" if words == ACCURACY else "quality"


def written(rows: Sequence[StudyRow], words: QualityWords) -> list[StudyRow]:
    """The rows as they are written: what is no accuracy is not called so."""
    return [{as_cut(words) if key == "accuracy" else key: value for key, value in row.items()} for row in rows]


def averaged(single: Sequence[StudyRow]) -> list[StudyRow]:
    """One row per network, metric and ratio: means over the seeds, and standard deviations if there are several."""
    groups: dict[tuple[Any, ...], list[StudyRow]] = {}
    for row in single:
        groups.setdefault((row["network"], row["metric"], row["ratio"]), []).append(row)
    return [_mean_row(rows) for rows in groups.values()]


def _mean_row(rows: Sequence[StudyRow]) -> StudyRow:
    first = rows[0]
    found: StudyRow = {key: first[key] for key in ("network", "metric", "ratio", "images")}
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


def sentences(rows: Sequence[StudyRow], single: Sequence[StudyRow], words: QualityWords) -> list[str]:
    """Notes on the quality before pruning and on the best metric at each ratio."""
    found = []
    for network in dict.fromkeys(row["network"] for row in rows):
        mine = [row for row in rows if row["network"] == network]
        base = next(row for row in mine if row["ratio"] == 0)
        images = next(row["test_images"] for row in single if row["network"] == network)
        value = f"{words.name_unless_accuracy}{words.scaled(base['accuracy'])}"
        found.append(f"{network}: {value} on {images:,} test images before pruning.")
        for stage in (stage for stage in STAGES if stage in base):
            best = [_best(mine, stage, ratio, words) for ratio in sorted({row["ratio"] for row in mine} - {0})]
            if best:
                found.append(f"{network}, {STAGES[stage]}, the best metric: {', '.join(best)}.")
    found.append("No decision used the test images: every metric removes the same fraction of every unit.")
    return found


def _best(rows: Sequence[StudyRow], stage: str, ratio: float, words: QualityWords) -> str:
    top = max((row for row in rows if row["ratio"] == ratio), key=lambda row: float(row[stage]))
    return f"{top['metric']} at {ratio:.0%} ({words.scaled(top[stage])})"
