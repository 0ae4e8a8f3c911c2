"""secateur report: the page of a finished run, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.common import console, friendly


@friendly
def command(
    run_folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="File to write; report.html in the run folder by default.")] = None,
) -> None:
    """Write a finished run's report: one HTML page, complete in itself.

    Example:

        secateur report runs/prune-resnet8-digits --out report.html
    """
    from secateur.report.page import write_report

    console.print(f"written: {write_report(run_folder, out)}", soft_wrap=True, markup=False)
