"""The rows of the paper's Tables 1 and 2, as published: not one of these figures was measured by secateur."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

FILE = "published.json"
STATUS = "as published"


@dataclass(frozen=True)
class Result:
    """A pruned network in a table: percent, multiply-adds and weights. None where it was not reported."""

    method: str
    by: str  # whose method it is
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
class Group:
    """The rows of one network and data set."""

    table: str  # 1a, 1b or 2
    network: str  # as the paper writes it
    data: str
    models: tuple[str, ...]  # names by which secateur knows the network
    rows: tuple[Result, ...]


@dataclass(frozen=True)
class Published:
    """Everything in the file."""

    source: str
    notes: tuple[str, ...]
    groups: tuple[Group, ...]


@cache
def published() -> Published:
    """The published rows, read once."""
    found = json.loads((files("secateur.studies.recipes") / FILE).read_text(encoding="utf-8"))
    return Published(found["source"], tuple(found["notes"]), tuple(_group(words) for words in found["groups"]))


def group_of(model: str, data: str) -> Group | None:
    """The rows for a network and a data set as they are named on the command line; None where the paper has none."""
    name = data.partition(":")[0]
    return next((group for group in published().groups if model in group.models and group.data == name), None)


def _group(words: dict[str, Any]) -> Group:
    known = {field.name for field in fields(Group)} - {"models", "rows"}
    rows = tuple(Result(**row) for row in words["rows"])
    return Group(**{key: words[key] for key in known}, models=tuple(words["models"]), rows=rows)
