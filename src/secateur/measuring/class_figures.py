"""The quality of each class, and which classes are taken for which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur.base.batches import Batches
from secateur.measuring.accuracy import Accuracy, each_answer, sums_for
from secateur.measuring.tasks import ByClass, Task

MOST_CLASSES = 1000  # with more, counts of pairs would need too much memory, and no page could show them
MOST_PAIRS = 2500  # of classes that are confused; all of them up to 50 classes


@dataclass(frozen=True)
class ClassFigures:
    """Figures of each class, in the order of the classes."""

    values: tuple[float | None, ...]  # quality, a fraction of 1; None if the class does not occur
    sizes: tuple[int, ...]  # images or pixels of the class
    confused: tuple[tuple[int, int, int], ...] | None  # class, what it was taken for, how often; the most frequent
    complete: bool = True  # whether `confused` lists all


class _Counts:
    """Counts of the batches so far, on the device of the network."""

    def __init__(self, how: ByClass) -> None:
        self._how = how
        self._total: Tensor | None = None

    def add(self, outputs: Any, labels: Any) -> None:
        if not isinstance(outputs, Tensor) or outputs.ndim < 2 or outputs.shape[1] > MOST_CLASSES:
            return  # a task of the user's own may be a changed copy of a built-in one
        counts = self._how.counts(outputs, labels)
        self._total = counts if self._total is None else self._total + counts

    def figures(self) -> ClassFigures | None:
        if self._total is None:
            return None
        counts = self._total.cpu().double()
        values = [None if math.isnan(value) else value for value in self._how.values(counts).tolist()]
        sizes = [int(size) for size in self._how.sizes(counts).tolist()]
        if counts.shape[0] != counts.shape[1]:
            return ClassFigures(tuple(values), tuple(sizes), None)
        pairs = _pairs(counts)
        return ClassFigures(tuple(values), tuple(sizes), tuple(pairs[:MOST_PAIRS]), len(pairs) <= MOST_PAIRS)


def _pairs(counts: Tensor) -> list[tuple[int, int, int]]:
    """Classes that were confused, the most frequent first."""
    places = (counts * (1 - torch.eye(len(counts)))).nonzero().tolist()
    found = [(row, column, int(counts[row, column])) for row, column in places]
    return sorted(found, key=lambda pair: -pair[2])


def evaluate_by_class(model: nn.Module, loader: Batches, task: Task) -> tuple[Accuracy, ClassFigures | None]:
    """The quality of all images, and of each class if the task has classes, in one pass."""
    sums, counts = sums_for(task), None if task.by_class is None else _Counts(task.by_class)

    def see(outputs: Any, labels: Any, count: int) -> None:
        sums.add(outputs, labels, count)
        if counts is not None:
            counts.add(outputs, labels)

    each_answer(model, loader, task, see)
    return sums.accuracy(), None if counts is None else counts.figures()
