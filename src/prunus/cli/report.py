"""`prunus report`: write the report of a finished run or study again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prunus.cli import console as early_checks
from prunus.cli.console import Early, console, friendly
from prunus.util.files import refuse_overwriting


@friendly
def command(
    run_folder: Annotated[Path, typer.Argument(help="Folder of a finished run or study"), Early(early_checks.folder)],
    out: Annotated[Path | None, typer.Option(help="File to write; by default report.html in that folder")] = None,
) -> None:
    """Write the report of a finished run or study: one self-contained HTML page.

    Examples:

        prunus report runs/prune-resnet8-digits --out report.html

        prunus report runs/study-timing-vgg16-cifar10
    """
    from prunus.report.run_page import write_report
    from prunus.report.study_page import is_study, write_study_report

    if out is not None and out.suffix != ".html":
        refuse_overwriting(out)
    write = write_study_report if is_study(run_folder) else write_report
    console.print(f"written: {write(run_folder, out)}", soft_wrap=True)
