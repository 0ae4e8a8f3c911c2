"""The rows of the paper's Tables 1 and 2, as published. Secateur did not measure these figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "published.json"
STATUS = "as published"


@dataclass(frozen=True)
class PublishedRow:
    """A pruned network in a table: accuracies in percent, MACs and weights. None if a figure was not reported."""

    method: str
    by: str  # the authors of the method
    base_top1: float | None
    top1: float | None
    top1_drop: float | None  # as printed; below 0 where the pruned network is better
    base_top5: float | None
    top5: float | None
    top5_drop: float | None
    macs: int | None
    macs_removed: float | None
    params: int | None
    params_removed: float | None


@dataclass(frozen=True)
class PublishedGroup:
    """The rows of one network and data set."""

    table: str  # 1a, 1b or 2
    network: str  # as written in the paper
    data: str
    models: tuple[str, ...]  # secateur's names of the network
    rows: tuple[PublishedRow, ...]


@dataclass(frozen=True)
class Published:
    """Everything in the file."""

    source: str
    notes: tuple[str, ...]
    groups: tuple[PublishedGroup, ...]


@cache
def published() -> Published:
    """The published rows, read once."""
    found = json.loads((files("secateur.studies.recipes") / FILE).read_text(encoding="utf-8"))
    return Published(found["source"], tuple(found["notes"]), tuple(_group(words) for words in found["groups"]))


def group_of(model: str, data: str) -> PublishedGroup | None:
    """The rows of a network and a data set, named as on the command line; None if the paper has none."""
    name = data.partition(":")[0]
    return next((group for group in published().groups if model in group.models and group.data == name), None)


def _group(words: dict[str, Any]) -> PublishedGroup:
    known = {field.name for field in fields(PublishedGroup)} - {"models", "rows"}
    rows = tuple(PublishedRow(**row) for row in words["rows"])
    return PublishedGroup(**{key: words[key] for key in known}, models=tuple(words["models"]), rows=rows)
