"""How the quality of a task is written: its name, its unit, its digits. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunus.tasks import DEFAULT_TASK, TASKS, ByClass, Task, check_task
from prunus.tasks.evaluate import Accuracy, each_answer, sums_for
from prunus.util.batches import Batches
from prunus.util.options import option


@dataclass(frozen=True)
class QualityWords:
    """The name and unit of a quality. Fractions of 1 (unit "%") are shown in per cent, their differences in points."""

    name: str = "accuracy"
    unit: str = "%"

    @classmethod
    def of(cls, task: Task) -> QualityWords:
        """The name and unit of a task's quality."""
        return cls(task.measured.name, task.measured.unit)

    @property
    def factor(self) -> float:
        """A value times this is the number that is shown, and that max_drop is compared with."""
        return 100.0 if self.unit == "%" else 1.0

    @property
    def title(self) -> str:
        """The name at the start of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    @property
    def axis(self) -> str:
        """The title of an axis: the name and the unit of what is shown."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def name_unless_accuracy(self) -> str:
        """The name and a space, where per cent alone would be understood as accuracy; else nothing."""
        return "" if self == ACCURACY else f"{self.name} "

    @property
    def difference_unit(self) -> str:
        """The unit of a difference, such as max_drop."""
        return "points" if self.unit == "%" else self.unit

    def number(self, value: float) -> str:
        """0.9339 as 93.39 if it is per cent; otherwise four digits."""
        return f"{100 * value:.2f}" if self.unit == "%" else f"{value:.4g}"

    def shown(self, value: float) -> str:
        """0.9339 as 93.39%; -0.667 people as -0.667 people."""
        return f"{self.number(value)}%" if self.unit == "%" else f"{self.number(value)} {self.unit}".rstrip()

    def scaled(self, value: float, digits: int = 2) -> str:
        """A value that has been multiplied by `factor` already, as an axis has it."""
        return f"{value:.{digits}f}%" if self.unit == "%" else f"{value:.4g}"

    def size(self, difference: float) -> str:
        """A difference without its sign: 0.0068 as 0.68 points."""
        return f"{self.number(abs(difference))} {self.difference_unit}".rstrip()

    def change(self, difference: float) -> str:
        """A difference with its sign: 0.0068 as +0.68 points."""
        number = f"{100 * difference:+.2f}" if self.unit == "%" else f"{difference:+.4g}"
        return f"{number} {self.difference_unit}".rstrip()


ACCURACY = QualityWords()


# The setting `task`, declared once for everything that has it. Importing this module does not import torch.


def task_option(group: str = "Data") -> Any:
    """The field `task: str | Task | None` of a settings class."""
    return option(
        None,
        f"What the network is for: {', '.join(TASKS)}, or your_module:make_task; {DEFAULT_TASK} by default",
        group=group,
        valid=check_task,
        own=True,
    )


@dataclass(frozen=True)
class TaskOptions:
    """What the network is for, for verbs without other settings that say it."""

    task: str | Task | None = task_option()


# The quality of each class, and which classes are taken for which.

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
