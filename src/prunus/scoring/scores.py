"""Scores: one number for every channel of every unit, higher means keep. Files, and correlation of two metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from prunus.errors import FileError, ScoreError
from prunus.util.files import write_atomically
from prunus.util.text import short_table
from prunus.util.typed_json import read_record, write_record

Vector = npt.NDArray[np.float64]
FORMAT = "prunus-scores"
VERSION = 2
SHOWN = 6  # units in a message


def check_scores(scores: Any) -> None:
    """ScoreError unless `scores` are those of one metric, as `score` returns them."""
    if not isinstance(scores, Scores):
        several = "; several metrics give a dict, of which one is needed" if isinstance(scores, dict) else ""
        raise ScoreError(f"expected the scores that prunus.score returns, got {type(scores).__name__}{several}")


@dataclass(frozen=True, eq=False)
class Scores:
    """The score of each channel by a metric.

    Attributes:
        metric: Its name.
        values: `values[unit][i]` is the score of channel i of that unit.
        num_images: Images that they were computed on; 0 if none were needed.
        options: Of the metric.
        notes: What was left out, and why.
    """

    metric: str
    values: Mapping[str, Vector]
    num_images: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        images = f", {self.num_images:,} images" if self.num_images else ""
        rows = [
            [unit, str(len(vector)), *(f"{figure(vector):.4g}" for figure in (np.min, np.median, np.max))]
            for unit, vector in self.values.items()
        ]
        title = f"Scores by {self.metric}: {len(self.values)} units{images}; higher means keep"
        return short_table(title, ["unit", "channels", "lowest", "median", "highest"], rows)

    def of_units(self, names: Iterable[str]) -> Scores:
        """The scores of some units only; a plan made from them leaves all other units as they are."""
        wanted = list(names)
        unknown = [name for name in wanted if name not in self.values]
        if unknown:
            some = ", ".join(list(self.values)[:SHOWN]) + (", ..." if len(self.values) > SHOWN else "")
            raise ScoreError(f"the scores have no unit {unknown[0]!r}; they have {some}")
        return Scores(self.metric, {n: self.values[n] for n in wanted}, self.num_images, self.options, self.notes)

    def order(self, unit: str) -> npt.NDArray[np.int64]:
        """The unit's channels from the lowest to the highest score; ties in the order of their numbers."""
        return np.argsort(self.values[unit], kind="stable")


def rank_correlation(a: Scores, b: Scores) -> float:
    """Spearman's rank correlation, averaged over the units that both have scored.

    Units whose channels all have the same score are left out; nan if no unit is left.
    """
    from scipy.stats import spearmanr

    common = [(a.values[unit], b.values[unit]) for unit in a.values.keys() & b.values.keys()]
    each = [float(spearmanr(x, y).statistic) for x, y in common if np.ptp(x) > 0 and np.ptp(y) > 0]
    return float(np.mean(each)) if each else float("nan")


@dataclass(frozen=True)
class _MetricRecord:
    num_images: int
    options: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _ScoresRecord:
    """scores.json. The scores themselves are in scores.safetensors, `metric/unit` -> vector."""

    metrics: dict[str, _MetricRecord]


def save_scores(scores: Mapping[str, Scores], folder: str | Path) -> None:
    """Write scores.safetensors and scores.json into a folder."""
    folder = Path(folder)
    tensors = {f"{name}/{unit}": v for name, each in scores.items() for unit, v in each.values.items()}
    records = {name: _MetricRecord(each.num_images, dict(each.options), each.notes) for name, each in scores.items()}
    write_atomically(folder / "scores.safetensors", save(tensors))
    write_record(folder / "scores.json", _ScoresRecord(records), FORMAT, VERSION)


def load_scores(folder: str | Path) -> dict[str, Scores]:
    folder = Path(folder)
    record = read_record(folder / "scores.json", _ScoresRecord, FORMAT, VERSION)
    try:
        tensors = load_file(folder / "scores.safetensors")
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot read scores from {folder}: {error}") from error
    values: dict[str, dict[str, Vector]] = {name: {} for name in record.metrics}
    for key, vector in tensors.items():
        metric, _, unit = key.partition("/")
        if metric not in values:
            raise FileError(
                f"{folder / 'scores.safetensors'} has scores by {metric!r}, which scores.json does not name"
            )
        values[metric][unit] = vector
    return {
        name: Scores(name, values[name], each.num_images, each.options, each.notes)
        for name, each in record.metrics.items()
    }
