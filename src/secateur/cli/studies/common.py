"""What the studies' commands share: the folder's name, what was typed, and the last lines on the screen."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.cli.common import console

if TYPE_CHECKING:
    from secateur.zoo.data import ImageData


def study_folder(out: Path | None, study: str, model: str, data: str) -> Path:
    """The folder as asked for, or runs/study-NAME-MODEL-DATA."""
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in f"study-{study}-{model}-{data}")
    return out or Path("runs") / plain


def about_images(
    data: str, found: ImageData, holdout: str, limit: int | None, augment: bool, batch_size: int
) -> dict[str, Any]:
    """What one needs to get the same images again."""
    taken = {"data": data, "mean": found.mean, "std": found.std, "size": found.shape[-1], "holdout": holdout}
    return {**taken, "limit": limit, "augment": augment, "batch_size": batch_size}


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
