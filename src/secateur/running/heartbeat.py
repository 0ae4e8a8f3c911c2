"""What a run is doing right now, for others to look at: progress.json, while the run is at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from secateur.base.progress import PhaseProgress, phases, shown
from secateur.errors import FileError
from secateur.running.folder import CONFIG, PROGRESS, RunFolder

SECONDS = 1.0  # between two notes


@contextmanager
def reporting(progress: PhaseProgress | bool | None, folder: RunFolder) -> Iterator[PhaseProgress]:
    """What the run calls to report. It is shown as the caller asked, and written to the folder once a second."""
    with shown(progress, phases) as show, _noting(folder, show) as note:
        yield note


@contextmanager
def _noting(folder: RunFolder, report: PhaseProgress) -> Iterator[PhaseProgress]:
    """A note that cannot be written is left out: the run goes on. In the end the file is removed."""
    last = 0.0

    def note(phase: str, done: int, total: int, words: str) -> None:
        nonlocal last
        report(phase, done, total, words)
        now = time.time()
        if folder.writes and now - last >= SECONDS and folder.has(CONFIG):
            last = now
            with suppress(FileError, OSError):
                folder.write(PROGRESS, {"phase": phase, "done": done, "total": total, "note": words, "time": now})

    try:
        yield note
    finally:
        if last:  # it is this run's own
            with suppress(OSError):
                (folder.path / PROGRESS).unlink(missing_ok=True)
