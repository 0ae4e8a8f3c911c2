"""The page of a run at work: what it does now, its rounds and epochs so far. It loads itself again every few seconds.

It is written to the run's folder as report.html, which the report replaces when the run has finished.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prunus.errors import PrunusError
from prunus.report.charts import course_chart
from prunus.report.page import REPORT, Cell, Table, render_page
from prunus.report.read import UnfinishedRun, read_unfinished
from prunus.run.folder import CONFIG, SUMMARY
from prunus.util.files import write_atomically
from prunus.util.text import big_number, duration, percent

EVERY = 3  # seconds between two pages
SILENT = 60.0  # seconds without a sign of life


@contextmanager
def watching(folder: Path) -> Iterator[Path]:
    """Write the page of a run every few seconds while the block runs; gives its path.

    The page is written by a thread of its own, which has ended when the block ends, so that the report comes last.
    """
    path, stop = folder / REPORT, threading.Event()

    def work() -> None:
        while not stop.is_set():
            if (folder / CONFIG).exists() and not (folder / SUMMARY).exists():
                write_progress(folder)
            stop.wait(EVERY)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        stop.set()
        thread.join()


def write_progress(folder: Path) -> Path:
    """Write the page of a run that has not finished to its folder, and return its path.

    If a file cannot be read, perhaps because it is being written, the page that is there stays.
    """
    with suppress(PrunusError, OSError):
        write_atomically(folder / REPORT, render_progress(read_unfinished(folder), time.time()).encode())
    return folder / REPORT


def render_progress(run: UnfinishedRun, now: float) -> str:
    """The page as HTML. now: seconds since 1970, to tell how old the last sign of life is."""
    command, quality = run.command, run.quality
    name = f"{command['model']} on {command.get('data')}" if command.get("model") else "A run"
    listed = [("Command", [str(run.config["command_line"])])] if run.config.get("command_line") else []
    if run.base is not None:
        listed.append((f"Held-out {quality.name} before", [quality.shown(run.base.quality)]))
    listed.append(("If it stops", [shlex.join(["prunus", "prune", "--resume", str(run.folder)])]))
    silent = 0.0 if run.doing is None else max(0.0, now - run.doing.time)
    rounds, epochs, chart = [], [], None
    for done in run.rounds:
        lost, seconds = sum(done.chosen.values()), sum(done.seconds.values())
        gone = 1 - done.macs / run.macs if run.macs else 0.0
        cells = [Cell(f"{done.number}", done.number), Cell(f"{lost:,}", lost), Cell(big_number(done.macs), done.macs)]
        cells.append(Cell(percent(gone) if run.macs else "–", gone))
        cells.append(Cell(quality.shown(done.after.quality), done.after.quality))
        rounds.append([*cells, Cell(duration(seconds), seconds)])
    for epoch in run.epochs:  # of the round at work
        held = epoch.holdout
        last = Cell("–", 0.0) if held is None else Cell(quality.shown(held.quality), held.quality)
        cells = [Cell(f"{epoch.number}", epoch.number), Cell(f"{epoch.lr:.4g}", epoch.lr)]
        epochs.append([*cells, Cell(f"{epoch.loss:.4f}", epoch.loss), last])
    what = f"held-out {quality.name}"
    round_titles = ("round", "channels removed", "MACs", "MACs removed", what, "time")
    epoch_titles = ("epoch", "learning rate", "training loss", what)
    if run.base is not None and run.macs and run.rounds:
        course = [0.0, *(100 * (1 - done.macs / run.macs) for done in run.rounds)]
        values = [run.base.quality, *(done.after.quality for done in run.rounds)]
        chart = course_chart(course, [quality.factor * value for value in values], quality)
    return render_page(
        "progress.html",
        title=f"{name}: round {len(run.rounds) + 1} is at work",
        refresh=EVERY,
        run=run,
        doing=run.doing,
        ago=duration(silent) if silent >= 1 else "",
        interrupted=silent > SILENT,
        written=time.strftime("%H:%M:%S", time.localtime(now)),
        listed_rows=listed,
        chart=chart,
        rounds=Table("Rounds so far", round_titles, rounds),
        epochs=Table("Epochs so far", epoch_titles, epochs),
    )
