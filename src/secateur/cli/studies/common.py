"""What the studies' commands share: the folder's name, what was typed, and the last lines on the screen."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from secateur.cli.common import console


def study_folder(out: Path | None, study: str, model: str, data: str) -> Path:
    """The folder as asked for, or runs/study-NAME-MODEL-DATA."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"study-{study}-{model}-{data}")
    return out or Path("runs") / plain


def typed() -> str:
    """The command as it was typed, for the study's folder."""
    return shlex.join(["secateur", *sys.argv[1:]])


def say_where(folder: Path) -> None:
    """Write the study's page, and say where everything is."""
    from secateur.report.study_page import write_study_report

    console.print(
        f"\nresults in {folder}: study.json, table.csv, pictures as .png and .svg", soft_wrap=True, markup=False
    )
    console.print(f"report: {write_study_report(folder)} (open it in a browser)", soft_wrap=True, markup=False)
