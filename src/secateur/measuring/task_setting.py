"""The setting `task`, declared once for everything that has it. Importing this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secateur.base.options import option
from secateur.measuring.tasks import DEFAULT_TASK, TASKS, Task, check_task


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
