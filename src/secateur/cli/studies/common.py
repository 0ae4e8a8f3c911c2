"""What the commands of the studies share: options, the study's folder, and the last lines of their output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secateur.base.options import check, option
from secateur.cli.common import console, run_folder, typed_command
from secateur.cli.options import DataOptions
from secateur.cli.own_data import OwnData
from secateur.errors import DataError

if TYPE_CHECKING:
    from secateur.cli.options import AnyData
    from secateur.studies.folder import Provenance


@dataclass(frozen=True)
class StudyImages:
    """How a study reads images, in addition to `DataOptions`."""

    augment: bool = option(True, "Random crops and flips in retraining", group="Retraining")
    batch_size: int = option(128, "Images per training step", group="Retraining", least=1)
    limit: int | None = option(None, "Largest number of held-out and of test images", group="Data", least=1)

    def provenance(self, data: DataOptions, found: AnyData, **more: Any) -> Provenance:
        """The command line, and everything that is needed to get the same images again."""
        from secateur.studies.folder import Provenance

        check(self, DataError)
        about: dict[str, Any] = {"data": data.data, "limit": self.limit}
        if not isinstance(found, OwnData):
            about |= {"mean": found.mean, "std": found.std, "size": found.shape[-1], "holdout": data.holdout}
            about |= {"augment": self.augment, "batch_size": self.batch_size}
        return Provenance({**about, **more}, typed_command())


@dataclass(frozen=True)
class StudyOutput:
    """Where a study is written."""

    out: Path | None = option(None, "Study folder; runs/study-NAME-MODEL-DATA by default", group="Output")

    def folder(self, study: str, model: str, data: str) -> Path:
        """The folder that was asked for, or runs/study-NAME-MODEL-DATA."""
        return self.out or run_folder(f"study-{study}-{model}-{data}")


def is_first_process() -> bool:
    """Whether this is the only process, or the first one that torchrun started: the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def print_results(folder: Path) -> None:
    """Write the study's page, and print where the results are."""
    from secateur.report.study_page import write_study_report

    console.print(f"\nresults in {folder}: study.json, table.csv, pictures as .png and .svg", soft_wrap=True)
    console.print(f"report: {write_study_report(folder)} (open it in a browser)", soft_wrap=True)
