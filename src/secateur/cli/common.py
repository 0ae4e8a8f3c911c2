"""What all verbs share: the console, the progress bar, and the exit codes of errors."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
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

EXIT_ERROR = 1  # a SecateurError: wrong input, a missing file, a goal that cannot be reached
EXIT_INTERRUPTED = 130


def friendly(verb: Callable[P, T]) -> Callable[P, T]:
    """Print a SecateurError as one red line on stderr and exit with code 1. Other exceptions give a traceback."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        columns = os.environ.get("COLUMNS", "")
        if columns.isdigit():  # it may have changed since this module was imported
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


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """After Ctrl-C, say which command continues the work."""
    try:
        yield
    except KeyboardInterrupt:
        complaints.print(f"interrupted; to continue: {command}", markup=False, soft_wrap=True)
        sys.exit(EXIT_INTERRUPTED)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


@contextmanager
def progress(transient: bool = True) -> Iterator[Progress]:
    """A progress bar with counts, elapsed and remaining time. It is on stderr, so that stdout can be piped."""
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
    """One progress bar per phase, added when the phase first reports: show(phase, done, total, note).

    speaks: whether this process shows anything; of several processes only one should.
    """
    with progress() as bar:
        tasks: dict[str, TaskID] = {}

        def show(phase: str, done: int, total: int, note: str) -> None:
            if speaks:
                if phase not in tasks:
                    tasks[phase] = bar.add_task(phase, total=total, note="")
                bar.update(tasks[phase], completed=done, total=total, note=note)

        yield show


def run_folder(name: str) -> Path:
    """runs/NAME, where NAME may contain a model or data set with slashes and colons in it."""
    return Path("runs") / "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def note_untrained() -> None:
    """Tell the user that the network has its initial weights."""
    complaints.print("[yellow]note:[/] no --weights were given, so the network is untrained")


def names_in(given: Sequence[str]) -> list[str]:
    """The names in an option that can be repeated and can contain several names, separated by commas."""
    return [name.strip() for text in given for name in text.split(",") if name.strip()]
