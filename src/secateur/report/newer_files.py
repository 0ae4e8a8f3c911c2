"""Files that only runs of newer versions have: the quality of each class, and which layer feeds which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from secateur.running import class_summary, network_shape
from secateur.running.folder import CLASSES, NETWORK, RunFolder

Pair = tuple[int, int, int]  # class, what it was taken for, how often


@dataclass(frozen=True)
class ClassSide:
    """Figures of the classes, before or after."""

    values: tuple[float | None, ...]  # None for a class that does not occur
    confused: tuple[Pair, ...] | None  # the most frequent first; None if classes do not exclude each other
    complete: bool  # whether `confused` lists all pairs


@dataclass(frozen=True)
class ClassTable:
    """The quality of each class before and after."""

    part: str  # test or held-out
    quality: str  # accuracy, IoU, F1
    of: str  # images or pixels
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    before: ClassSide
    after: ClassSide

    def worst_first(self) -> list[int]:
        """The classes that occur, the lowest quality after pruning first."""
        known = [(value, place) for place, value in enumerate(self.after.values) if value is not None]
        return [place for _, place in sorted(known)]


@dataclass(frozen=True)
class Node:
    """A layer, or a place where values meet."""

    kind: str
    name: str
    sources: tuple[int, ...]  # places of the nodes that it reads


def read_classes(files: RunFolder) -> ClassTable | None:
    """classes.json, or None if there is none."""
    return files.parse(CLASSES, _classes) if files.has(CLASSES) else None


def read_shape(files: RunFolder) -> tuple[Node, ...]:
    """The nodes of network.json; empty if there is no such file."""
    return files.parse(NETWORK, _nodes) if files.has(NETWORK) else ()


def _check(words: Mapping[str, Any], form: str, version: int) -> None:
    if words.get("format") != form or words.get("version") != version:
        raise ValueError(f'expected "format": "{form}", "version": {version}')


def _classes(words: dict[str, Any]) -> ClassTable:
    _check(words, class_summary.FORMAT, class_summary.VERSION)
    sizes = tuple(int(size) for size in words["sizes"])
    names = words["names"] or [f"class {number}" for number in range(len(sizes))]
    return ClassTable(
        part="test" if words["part"] == "test" else "held-out",
        quality=str(words["quality"]),
        of=str(words["of"]),
        names=tuple(str(name) for name in names),
        sizes=sizes,
        before=_side(words["before"], len(sizes)),
        after=_side(words["after"], len(sizes)),
    )


def _side(words: Mapping[str, Any], classes: int) -> ClassSide:
    values = tuple(None if value is None else float(value) for value in words["values"])
    if len(values) != classes:
        raise ValueError(f"{len(values)} values for {classes} classes")
    found = words["confused"]
    pairs = None if found is None else tuple((int(a), int(b), int(count)) for a, b, count in found)
    return ClassSide(values, pairs, bool(words["complete"]))


def _nodes(words: dict[str, Any]) -> tuple[Node, ...]:
    _check(words, network_shape.FORMAT, network_shape.VERSION)
    return tuple(Node(str(n["kind"]), str(n["name"]), tuple(int(i) for i in n["from"])) for n in words["nodes"])
