"""`prunus watch`: the page of a run that is at work, for the browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, console, friendly
from prunus.errors import FileError
from prunus.util.files import PRUNING, held_by

SUMMARY = "summary.json"
LOOK_EVERY = 0.5  # seconds


@friendly
def command(
    run_folder: Annotated[Path, typer.Argument(help="Folder of a run that is at work"), Early(early_checks.folder)],
) -> None:
    """Show a run that is at work in the browser: rounds and epochs so far, and the report when it has finished.

    The page is report.html in the folder, and loads itself again. Ctrl-C ends this, and does not stop the run.

    Example:

        prunus watch runs/prune-resnet56-cifar10
    """
    if held_by(run_folder) != PRUNING:
        found = held_by(run_folder)
        raise FileError(f"{run_folder} holds {found or 'no run'}; name the folder of a `prunus prune`")
    if (run_folder / SUMMARY).exists():
        console.print(f"the run has finished: prunus report {run_folder}", soft_wrap=True)
        return
    with showing(run_folder):
        try:
            while not (run_folder / SUMMARY).exists():
                time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            console.print("stopped watching; the run goes on")
            return
    console.print(f"the run has finished: {run_folder}", soft_wrap=True)


@contextmanager
def showing(folder: Path) -> Iterator[None]:
    """Write the page of a run while the work inside goes on, and say where it is."""
    from prunus.report.live import watching

    with watching(folder) as page:
        console.print(f"watch it: {page.resolve().as_uri()} (open it in a browser)", soft_wrap=True)
        yield
