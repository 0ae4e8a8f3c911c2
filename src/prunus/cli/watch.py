"""`prunus watch`: the report of a run that is at work, in the browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, console, friendly
from prunus.errors import FileError
from prunus.util.files import PRUNING, held_by

if TYPE_CHECKING:
    from prunus.report.live import LiveServer

SUMMARY = "summary.json"
LOOK_EVERY = 0.5  # seconds


@friendly
def command(
    run_folder: Annotated[Path, typer.Argument(help="Folder of a run that is at work"), Early(early_checks.folder)],
    port: Annotated[int, typer.Option(help="Port to listen on; a free one by default", min=0, max=65535)] = 0,
) -> None:
    """Show a run that is at work in the browser: rounds and epochs so far, and the report when it has finished.

    The page is served on this machine only. It ends with the run, or with Ctrl-C, which does not stop the run.

    Examples:

        prunus watch runs/prune-resnet56-cifar10

        prunus watch runs/prune-resnet56-cifar10 --port 8000
    """
    if held_by(run_folder) != PRUNING:
        found = held_by(run_folder)
        raise FileError(f"{run_folder} holds {found or 'no run'}; name the folder of a `prunus prune`")
    if (run_folder / SUMMARY).exists():
        console.print(f"the run has finished: prunus report {run_folder}", soft_wrap=True)
        return
    with serving(run_folder, port) as live:
        try:
            while not (run_folder / SUMMARY).exists():
                time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            live.gave_report = True  # nobody waits for it
            console.print("stopped watching; the run goes on")
            return
    console.print(f"the run has finished: {run_folder}", soft_wrap=True)


@contextmanager
def serving(folder: Path, port: int) -> Iterator[LiveServer]:
    """Serve the page of a run while the work inside goes on, and say where. A browser that looks gets the report."""
    from prunus.report.live import LiveServer

    live = LiveServer(folder, port)
    live.start()
    console.print(f"watch it: {live.address}", soft_wrap=True)
    try:
        yield live
        live.farewell()
    finally:
        live.stop()
