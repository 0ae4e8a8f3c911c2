"""What every verb shares: the console, the progress bar, and errors turned into exit codes."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from secateur.errors import SecateurError

P = ParamSpec("P")
T = TypeVar("T")

console = Console(highlight=False)
complaints = Console(stderr=True, highlight=False)

EXIT_ERROR = 1  # something secateur knows to be wrong: bad input, a missing file, a target out of reach
EXIT_INTERRUPTED = 130


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """Turn a SecateurError into one red line on stderr and exit code 1; let everything unexpected be a traceback."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit():  # as it is now, not as it was when this module was imported
            console.width = complaints.width = int(columns)
        try:
            return verb(*args, **kwargs)
        except SecateurError as error:
            complaints.print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
            sys.exit(EXIT_ERROR)
        except KeyboardInterrupt:
            complaints.print("interrupted")
            sys.exit(EXIT_INTERRUPTED)

    return run


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def progress(transient: bool = True) -> Iterator[Progress]:
    """A progress bar with counts, time spent and time left, on stderr so that stdout stays clean for pipes."""
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=complaints, transient=transient) as bar:
        yield bar


@contextmanager
def phases(speaks: bool = True) -> Iterator[Callable[[str, int, int, str], None]]:
    """A bar for each phase, made when it is first heard of: show(phase, done, total, note).

    Of several processes only the one that speaks shows anything.
    """
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int, note: str) -> None:
            if speaks:
                if phase not in tasks:
                    tasks[phase] = bar.add_task(phase, total=total, note="")
                bar.update(tasks[phase], completed=done, total=total, note=note)

        yield show


def names_in(given: Sequence[str]) -> list[str]:
    """The names of an option that may be repeated, and may hold several with commas between them."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]
