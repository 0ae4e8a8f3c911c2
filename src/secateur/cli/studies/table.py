"""`secateur study table`: finished runs among the rows of the paper's Tables 1 and 2."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur.cli import early_checks
from secateur.cli.common import console, friendly, typed_command
from secateur.cli.early_checks import Early, choice
from secateur.cli.studies.common import print_results

if TYPE_CHECKING:
    from secateur.studies.table_study.table import ResultsTable

FORMATS = ("text", "csv", "json", "markdown")
TITLES = {  # short ones, so that a line fits a terminal
    "method": "method",
    "by": "by",
    "base_top1": "before",
    "top1": "top-1",
    "top1_drop": "drop",
    "top5": "top-5",
    "top5_drop": "drop",
    "macs": "MACs",
    "macs_removed": "cut",
    "params": "weights",
    "params_removed": "cut",
    "source": "",
}


@friendly
def command(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of finished `secateur prune` runs"), Early(early_checks.folder)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Network, if a folder does not record it; without folders, the rows to print")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set, if a folder does not record it; without folders, the rows to print")
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="text, csv, json or markdown"), choice("format", *FORMATS)
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="Also write a study folder with a picture")] = None,
) -> None:
    """Print runs as rows among the paper's published rows of their network and data set.

    Published figures are marked "as published". Without runs, only published rows are printed.

    Examples:

        secateur study table runs/prune-resnet56-cifar10

        secateur study table --model resnet56 --data cifar10 --format markdown
    """
    from secateur.studies.folder import Provenance, StudyFolder
    from secateur.studies.table_study.picture import write_table
    from secateur.studies.table_study.table import table

    found = table(runs or (), model=model, data=data)
    _print_table(found, form)
    if out is not None:
        asked = {"runs": [str(run) for run in runs or ()], "model": model, "data": data}
        print_results(write_table(found, StudyFolder(out, "table", asked, Provenance(command=typed_command()))))


def _print_table(found: ResultsTable, form: str) -> None:
    from secateur.studies.table_study.formats import as_csv, as_json, as_markdown

    if form == "csv":
        console.print(as_csv(found.rows), end="", soft_wrap=True)
    elif form == "json":
        console.print(as_json(found), soft_wrap=True)
    else:
        if form == "markdown":
            console.print(as_markdown(found.rows), soft_wrap=True)
        else:
            _print_text(found)
        console.print()
        for note in found.notes:
            console.print(note if form == "text" else f"- {note}", soft_wrap=True)


def _print_text(found: ResultsTable) -> None:
    from secateur.cli.columns import columns
    from secateur.studies.table_study.formats import as_cells
    from secateur.studies.table_study.table import OWN

    for (network, images), rows in groupby(found.rows, key=lambda row: (row["network"], row["data"])):
        own = [row if row["source"] == OWN else {**row, "source": ""} for row in rows]
        titles, cells = as_cells(own, TITLES)
        console.print(
            f"{network} on {images}, as published unless marked; accuracies and cuts in %",
            soft_wrap=True,
        )
        console.print(columns(titles, cells, set(titles) - {"method", "by", ""}), soft_wrap=True)
