"""Progress of long work: a bar in a terminal or a notebook, otherwise a line every half minute.

    with shown(progress, steps("score")) as report:
        for number, batch in enumerate(loader):
            ...
            report(number + 1, len(loader))

`progress` is what the caller asked for: a user-provided function, False for silence, or None. Work inside other work
that is shown adds its phases to the same display, and is silent where the outer work is.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, TypeVar

from prunus.util.text import duration

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("prunus.progress")
clock = time.monotonic

Progress = Callable[[int, int | None], None]  # steps done, steps in all (None where that is not known)
PhaseProgress = Callable[[str, int, int, str], None]  # phase, steps done, steps in all, note
Show = Callable[[str, int, int | None, str], None]  # the same, of a display
AnyProgress = TypeVar("AnyProgress", bound=Callable[..., None])

BAR_AFTER = 2.0  # seconds; shorter work shows nothing
LINE_EVERY = 30.0  # seconds


def steps(phase: str) -> Callable[[Show], Progress]:
    """For `shown`: reports of one phase, as (steps done, steps in all)."""
    return lambda show: lambda done, total: show(phase, done, total, "")


def phases(show: Show) -> PhaseProgress:
    """For `shown`: reports of several phases."""
    return show


@contextmanager
def shown(progress: AnyProgress | bool | None, adapt: Callable[[Show], AnyProgress]) -> Iterator[AnyProgress]:
    """What the work should call to report: the user-provided function, or one that feeds a display.

    Args:
        progress: What the caller asked for.
        adapt: Makes a function as the work calls it of a display's `show`.
    """
    quiet = progress is False or callable(progress)
    outer = None if quiet else _active.get()
    display = outer or (Silence() if quiet else _new_display())
    token = _active.set(display)
    try:
        yield progress if callable(progress) else adapt(display.show)
    finally:
        _active.reset(token)
        if outer is None:
            display.close()


class Silence:
    """A display that shows nothing; the others derive from it."""

    def show(self, phase: str, done: int, total: int | None, note: str) -> None:
        """Take a report of a phase."""

    def close(self) -> None:
        """The work is over."""


class Bars(Silence):
    """A bar for each phase that is not finished, if the work takes more than BAR_AFTER seconds."""

    def __init__(self, console: Console) -> None:
        from rich import progress as rich
        from rich.table import Column

        # Only the note may be shortened on a narrow terminal.
        columns: list[Any] = [
            rich.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            rich.BarColumn(bar_width=24 if console.width >= 110 else 8),
            rich.MofNCompleteColumn(table_column=Column(no_wrap=True)),
            rich.TimeElapsedColumn(table_column=Column(no_wrap=True)),
            rich.TextColumn("left", table_column=Column(no_wrap=True)),
            rich.TimeRemainingColumn(table_column=Column(no_wrap=True)),
            rich.TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        ]
        piped = not sys.stdout.isatty()  # what is printed there must not go where the bars are
        self._bars = rich.Progress(
            *columns, console=console, transient=True, expand=True, redirect_stdout=not piped, redirect_stderr=True
        )
        self._tasks: dict[str, Any] = {}
        self._start, self._started, self._lock = clock(), False, Lock()
        self._timer = Timer(BAR_AFTER, self._begin)  # one step may take longer than that
        self._timer.daemon = True
        self._timer.start()

    def show(self, phase: str, done: int, total: int | None, note: str) -> None:
        if phase not in self._tasks:
            for task in self._bars.tasks:
                self._bars.update(task.id, visible=not task.finished)
            self._tasks[phase] = self._bars.add_task(phase, total=total, note="")
        self._bars.update(self._tasks[phase], completed=done, total=total, note=note)
        if clock() - self._start >= BAR_AFTER:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._started and self._tasks:
                self._started = True
                self._bars.start()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            started, self._started = self._started, True
        if started:
            self._bars.stop()


class Lines(Silence):
    """A line about the phase at work every LINE_EVERY seconds: to the log if it is on, otherwise to stderr."""

    def __init__(self) -> None:
        self._last_line = self._last_report = clock()
        self._begun: dict[str, tuple[float, float, int]] = {}  # phase -> its start; time and steps of its first report

    def show(self, phase: str, done: int, total: int | None, note: str) -> None:
        now = clock()
        start, first, already = self._begun.setdefault(phase, (self._last_report, now, done))
        self._last_report = now  # the next phase starts here
        if now - self._last_line < LINE_EVERY:
            return
        self._last_line = now
        count = f"{done}" if total is None else f"{done} of {total}"
        texts = [f"{phase}: {count}", f"{duration(now - start)} so far"]
        if total is not None and already < done < total:
            texts.append(f"about {duration((now - first) * (total - done) / (done - already))} left")
        line = ", ".join([*texts, note] if note else texts)
        if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
            logger.info("%s", line)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


_active: ContextVar[Silence | None] = ContextVar("the display of the work around this one", default=None)


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that torchrun started: the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def _new_display() -> Silence:
    """Bars where they can be drawn; of several processes only the first one speaks."""
    if not is_first_process():
        return Silence()
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    terminal = sys.stderr.isatty() and not console.is_dumb_terminal
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    return Bars(console) if terminal or notebook else Lines()
