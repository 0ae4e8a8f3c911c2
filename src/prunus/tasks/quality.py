"""How the quality of a task is written: its name, its unit, its digits. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prunus.tasks import DEFAULT_TASK, TASKS, Task, check_task
from prunus.util.options import option


@dataclass(frozen=True)
class QualityText:
    """The name and unit of a quality. Fractions of 1 (unit "%") are shown in per cent, their differences in points."""

    name: str = "accuracy"
    unit: str = "%"

    @classmethod
    def of(cls, task: Task) -> QualityText:
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


ACCURACY = QualityText()


# The setting `task`, declared once for everything that has it. Importing this module does not import torch.


def task_option(group: str = "Data") -> Any:
    """The field `task: str | Task | None` of a settings class."""
    return option(
        None,
        f"What the network is for: {', '.join(TASKS)}, or your_module:make_task; {DEFAULT_TASK} by default",
        group=group,
        valid=check_task,
        user_code=True,
    )


@dataclass(frozen=True)
class TaskOptions:
    """What the network is for, for verbs without other settings that say it."""

    task: str | Task | None = task_option()
