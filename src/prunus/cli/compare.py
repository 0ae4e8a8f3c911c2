"""`prunus compare`: several runs on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prunus.cli.console import console, friendly


@friendly
def command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs")],
    out: Annotated[Path, typer.Option(help="Folder for compare.html and compare.json")] = Path("runs/comparison"),
) -> None:
    """Compare runs on one page: quality against cost, settings, classes and widths.

    Quality is plotted over MACs, weights, bytes and time, with the paper's rows where network and data are the same.

    Examples:

        prunus compare runs/prune-resnet8-digits runs/prune-resnet8-digits-2

        prunus compare runs/a runs/b runs/c --out runs/comparison
    """
    from prunus.cli.console import columns
    from prunus.report.compare import compare, finished, sides
    from prunus.util.text import big_number, relative_change

    found = compare(runs)
    page = found.write(out)
    rows = []
    for entrant, run in finished(found.entrants):
        was, now, words = *sides(run), run.summary.quality
        before, after = (side.costs["MACs per image"] for side in (was, now))
        macs = f"{big_number(after)} ({relative_change(before, after)})".replace("−", "-")
        quality = [words.name, words.shown(now.quality), words.change(now.quality - was.quality)]
        rows.append([entrant.letter, entrant.name, *quality, macs])
    titles = ["", "run", "quality", "after", "change", "MACs"]
    console.print(columns(titles, rows, numbers=("after", "change", "MACs")))
    for entrant in found.entrants:
        if entrant.letter not in {row[0] for row in rows}:
            console.print(f"{entrant.letter} {entrant.name}: not finished", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}")
    console.print(f"page: {page} (open it in a browser)", soft_wrap=True)
