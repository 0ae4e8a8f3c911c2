"""`secateur study table`: finished runs among the rows of the paper's Tables 1 and 2."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from secateur.cli.common import console, friendly

FORMATS = ("text", "csv", "json", "markdown")
TITLES = {  # short ones, so that a line fits a terminal
    "method": "method",
    "by": "by",
    "base_top1": "before",
    "top1": "top-1",
    "top1_drop": "lost",
    "top5": "top-5",
    "top5_drop": "lost",
    "macs": "MACs",
    "macs_removed": "gone",
    "params": "weights",
    "params_removed": "gone",
    "source": "",
}


@friendly
def command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of finished `secateur prune` runs.")] = None,
    model: Annotated[str | None, typer.Option(help="The network, if a folder does not say; or whose rows.")] = None,
    data: Annotated[str | None, typer.Option(help="The data set, if a folder does not say; or whose rows.")] = None,
    form: Annotated[str, typer.Option("--format", help="text, csv, json or markdown.")] = "text",
    out: Annotated[Path | None, typer.Option(help="Also write a study folder with a picture here.")] = None,
) -> None:
    """Print runs as rows among the paper's published rows of that network and data set.

    Published figures are marked "as published"; without runs only they are printed.

    Examples:

        secateur study table runs/prune-resnet56-cifar10

        secateur study table --model resnet56 --data cifar10 --format markdown
    """
    from secateur.cli.columns import columns
    from secateur.errors import RunError
    from secateur.studies.folder import StudyFolder
    from secateur.studies.table_study.table import OWN, as_cells, as_csv, as_json, as_markdown, table, write_table

    if form not in FORMATS:
        raise RunError(f"--format should be one of {', '.join(FORMATS)}, not {form!r}")
    found = table(runs or (), model=model, data=data)
    if form == "csv":
        console.print(as_csv(found.rows), end="", markup=False, soft_wrap=True)
    elif form == "json":
        console.print(as_json(found), markup=False, soft_wrap=True)
    elif form == "markdown":
        console.print(as_markdown(found.rows), markup=False, soft_wrap=True)
    else:
        for (network, images), rows in groupby(found.rows, key=lambda row: (row["network"], row["data"])):
            own = [row if row["source"] == OWN else {**row, "source": ""} for row in rows]
            titles, cells = as_cells(own, TITLES)
            console.print(
                f"{network} on {images}, as published unless marked; accuracies and shares in %", markup=False
            )
            console.print(columns(titles, cells, set(titles) - {"method", "by", ""}), markup=False, soft_wrap=True)
    if form in ("text", "markdown"):
        console.print()
        for note in found.notes:
            console.print(note if form == "text" else f"- {note}", markup=False, soft_wrap=True)
    if out is not None:
        from secateur.cli.studies.common import say_where, typed

        asked = {"runs": [str(run) for run in runs or ()], "model": model, "data": data}
        say_where(write_table(found, StudyFolder(out, "table", asked, typed())))
