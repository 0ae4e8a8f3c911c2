"""Progress of long work: a bar in a terminal or a notebook, otherwise a line soon and then every half minute.

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
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, Any, TypeVar

from prunus.util.text import duration

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("prunus.progress")
clock = time.monotonic

Progress = Callable[[int, int | None], None]  # steps done, steps in all (None where that is not known)
PhaseProgress = Callable[[str, int, int | None, str], None]  # phase, steps done, steps in all, note
AnyProgress = TypeVar("AnyProgress", bound=Callable[..., None])

BAR_AFTER = 2.0  # seconds; shorter work shows nothing
FIRST_LINE, LINE_EVERY = 5.0, 30.0  # seconds
LOOK_EVERY = 1.0  # seconds; a step may take longer than a line may be late
PREPARING = "preparing"  # the phase before the first report


def steps(phase: str) -> Callable[[PhaseProgress], Progress]:
    """For `shown`: reports of one phase, as (steps done, steps in all)."""
    return lambda show: lambda done, total: show(phase, done, total, "")


def phases(show: PhaseProgress) -> PhaseProgress:
    """For `shown`: reports of several phases."""
    return show


@contextmanager
def shown(progress: AnyProgress | bool | None, adapt: Callable[[PhaseProgress], AnyProgress]) -> Iterator[AnyProgress]:
    """What the work should call to report: the user-provided function, or `adapt` of a display's `show`."""
    quiet = progress is False or callable(progress)
    outer = None if quiet else _active.get()
    display = outer or (Silence() if quiet else _new_display())
    token, warned = _active.set(display), _warned.get()
    warned_token = _warned.set(set() if warned is None else warned)
    try:
        yield progress if callable(progress) else adapt(display.show)
    finally:
        _warned.reset(warned_token)
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
        with self._lock:
            if phase not in self._tasks:
                for task in self._bars.tasks:
                    self._bars.update(task.id, visible=not task.finished and task.description != PREPARING)
                self._tasks[phase] = self._bars.add_task(phase, total=total, note="")
            self._bars.update(self._tasks[phase], completed=done, total=total, note=note)
        if clock() - self._start >= BAR_AFTER:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                if not self._tasks:  # the first report may take long
                    self._bars.add_task(PREPARING, total=None, note="")
                self._bars.start()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            started, self._started = self._started, True
        if started:
            self._bars.stop()


class Lines(Silence):
    """A line about the phase at work after FIRST_LINE seconds and then every LINE_EVERY seconds, whether steps are
    reported or not: to the log if it is on, otherwise to stderr."""

    def __init__(self) -> None:
        self._last_report = clock()
        self._next_line = self._last_report + FIRST_LINE
        self._begun: dict[str, tuple[float, float, int]] = {}  # phase -> its start; time and steps of its first report
        self._now: tuple[str, int, int | None, str] = (PREPARING, 0, None, "")  # the latest report
        self._begun[PREPARING] = (self._last_report, self._last_report, 0)
        self._lock, self._closed = Lock(), Event()
        Thread(target=self._watch, daemon=True).start()

    def show(self, phase: str, done: int, total: int | None, note: str) -> None:
        with self._lock:
            now = clock()
            self._begun.setdefault(phase, (self._last_report, now, done))
            self._last_report, self._now = now, (phase, done, total, note)  # the next phase starts here
            self._line_if_due()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_EVERY):
            with self._lock:
                self._line_if_due()

    def _line_if_due(self) -> None:
        now, (phase, done, total, note) = clock(), self._now
        if now < self._next_line or self._closed.is_set():
            return
        self._next_line = now + LINE_EVERY
        start, first, already = self._begun[phase]
        texts = [f"{phase}: done", f"the next step takes {duration(now - self._last_report)} so far"]
        if total is None or done < total or now <= self._last_report:
            count = f": {done} of {total}" if total is not None else f": {done}" if done else ""
            texts = [f"{phase}{count}", f"{duration(now - start)} so far"]
            if total is not None and already < done < total:
                texts.append(f"about {duration((now - first) * (total - done) / (done - already))} left")
            texts += [note] if note else []
        line = ", ".join(texts)
        if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
            logger.info("%s", line)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


_active: ContextVar[Silence | None] = ContextVar("the display of the work around this one", default=None)
_warned: ContextVar[set[str] | None] = ContextVar("what the work that is shown has warned about", default=None)


def warn_once(log: logging.Logger, about: str, text: str, *values: Any) -> None:
    """Log a warning. In work that is shown, later warnings about the same thing are details, of the level INFO."""
    warned = _warned.get()
    level = logging.INFO if warned is not None and about in warned else logging.WARNING
    log.log(level, text, *values, stacklevel=2)
    if warned is not None:
        warned.add(about)


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
