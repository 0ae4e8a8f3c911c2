"""Scores: one number for every channel of every unit, higher means keep. Files, and how alike two metrics are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from secateur.base.atomic_files import write_atomically
from secateur.errors import FileError, ScoreError

Vector = npt.NDArray[np.float64]
FORMAT = "secateur-scores"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Scores:
    """`values[unit][i]` is what channel i of that unit is worth by `metric`."""

    metric: str
    values: Mapping[str, Vector]
    images: int = 0  # how many images they come from; 0 where none were needed
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of_units(self, names: Iterable[str]) -> Scores:
        """The scores of some units only; a plan made of them leaves all others as they are."""
        wanted = list(names)
        unknown = [name for name in wanted if name not in self.values]
        if unknown:
            raise ScoreError(f"these scores have no unit {unknown[0]!r}; they have {_some(list(self.values))}")
        return Scores(self.metric, {n: self.values[n] for n in wanted}, self.images, self.options, self.notes)

    def order(self, unit: str) -> npt.NDArray[np.int64]:
        """The unit's channels from the weakest to the strongest; equal ones in the order of their numbers."""
        return np.argsort(self.values[unit], kind="stable")


def rank_correlation(a: Scores, b: Scores) -> float:
    """Spearman's rank correlation, the mean over the units that both have scored and that are not all ties."""
    found = []
    for unit in a.values.keys() & b.values.keys():
        x, y = _ranks(a.values[unit]), _ranks(b.values[unit])
        x, y = x - x.mean(), y - y.mean()
        size = np.sqrt((x @ x) * (y @ y))
        if size > 0:
            found.append(float(x @ y / size))
    return float(np.mean(found)) if found else float("nan")


def save_scores(scores: Mapping[str, Scores], folder: str | Path) -> None:
    """Write scores.safetensors (`metric/unit` -> vector) and scores.json (what they are) into a folder."""
    folder = Path(folder)
    tensors = {f"{name}/{unit}": v for name, each in scores.items() for unit, v in each.values.items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "metrics": {
            name: {"images": each.images, "options": dict(each.options), "notes": list(each.notes)}
            for name, each in scores.items()
        },
    }
    try:
        text = json.dumps(about, indent=2)
    except TypeError as error:
        raise FileError(f"an option of these scores cannot be written as JSON: {error}") from error
    write_atomically(folder / "scores.safetensors", save(tensors))
    write_atomically(folder / "scores.json", (text + "\n").encode())


def load_scores(folder: str | Path) -> dict[str, Scores]:
    """Read back what `save_scores` wrote."""
    folder = Path(folder)
    try:
        about = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "scores.safetensors")
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError) as error:
        raise FileError(f"cannot read scores from {folder}: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT or about.get("version") != VERSION:
        raise FileError(f"{folder / 'scores.json'} is not a list of scores that this secateur can read")
    values: dict[str, dict[str, Vector]] = {name: {} for name in about["metrics"]}
    for key, vector in tensors.items():
        metric, _, unit = key.partition("/")
        if metric not in values:
            raise FileError(
                f"{folder / 'scores.safetensors'} has scores by {metric!r}, which scores.json does not name"
            )
        values[metric][unit] = vector
    return {
        name: Scores(name, values[name], int(each["images"]), each["options"], tuple(each["notes"]))
        for name, each in about["metrics"].items()
    }


def checked(values: Mapping[str, Vector], metric: str, widths: Mapping[str, int]) -> dict[str, Vector]:
    """The same scores, once it is sure that they are finite and one a channel."""
    for unit, vector in values.items():
        if vector.shape != (widths[unit],):
            raise ScoreError(
                f"{metric} should give unit {unit} {widths[unit]} scores, one a channel, and gives {list(vector.shape)}"
            )
        if not np.isfinite(vector).all():
            channel = int(np.flatnonzero(~np.isfinite(vector))[0])
            raise ScoreError(
                f"{metric} gives channel {channel} of unit {unit} the score {vector[channel]}; "
                "a ridge above 0 keeps metrics that divide by variances finite"
            )
    return dict(values)


def _ranks(values: Vector) -> Vector:
    """Ranks from 0, ties sharing their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + last - 1) / 2)[place]


def _some(names: list[str], limit: int = 6) -> str:
    return ", ".join(names[:limit]) + (f", ... ({len(names)} in all)" if len(names) > limit else "")
