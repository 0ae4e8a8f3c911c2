"""`prunus report`: the page of a run or study, of a run at work, or of several runs beside each other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from prunus.cli.console import Answer, Early, console, existing_folder, friendly, say, table
from prunus.errors import FileError, PrunusError
from prunus.util.files import PRUNING, held_by, refuse_overwriting

SUMMARY = "summary.json"
LOOK_EVERY = 0.5  # seconds
COMPARISON = Path("runs/comparison")


@friendly
def command(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of one study"), Early(existing_folder)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"File to write; by default report.html in the folder. Of several runs: a folder, {COMPARISON}"
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page of a run at work again and again, until it has finished")
    ] = False,
) -> Answer:
    """Write the page of a run or a study: one self-contained HTML file.

    Of several runs, one page compares them: quality against MACs, weights, bytes and time, settings, classes and
    widths, with the paper's rows where network and data are the same.

    Of a run at work, the page shows rounds and epochs so far; with --live it is kept up to date, and loads itself
    again. Ctrl-C ends that, and does not stop the run.

    Examples:

        prunus report runs/prune-resnet8-digits --out report.html

        prunus report runs/prune-resnet8-digits runs/prune-resnet8-digits-2

        prunus report runs/a runs/b runs/c --out comparison

        prunus report runs/prune-resnet56-cifar10 --live

        prunus report runs/study-timing-vgg16-cifar10
    """
    if live and (len(runs) > 1 or out is not None):
        raise PrunusError("--live writes report.html in the folder of one run: leave out other folders and --out")
    if len(runs) > 1:
        return _compare(runs, out or COMPARISON)
    folder = runs[0]
    from prunus.report.live import write_progress
    from prunus.report.run_page import write_report

    at_work = held_by(folder) == PRUNING and not (folder / SUMMARY).exists()
    if live:
        _follow(folder, at_work)
        return Answer({"page": folder / "report.html", "finished": (folder / SUMMARY).exists()})
    if at_work and out is None:
        page = write_progress(folder)
        say(f"the run is not finished; written: {page}")
    else:
        if out is not None and out.suffix != ".html":
            refuse_overwriting(out)
        page = write_report(folder, out)
        say(f"written: {page}")
    return Answer({"page": page, "finished": not at_work})


def _follow(folder: Path, at_work: bool) -> None:
    """Keep the page of a run up to date until the run has finished."""
    content = held_by(folder)
    if content != PRUNING:
        raise FileError(f"{folder} holds {content or 'no run'}; name the folder of a `prunus prune`")
    if not at_work:
        say(f"the run has finished: prunus report {folder}")
        return
    with live_page(folder):
        try:
            while not (folder / SUMMARY).exists():
                time.sleep(LOOK_EVERY)
        except KeyboardInterrupt:
            say("stopped watching; the run goes on")
            return
    say(f"the run has finished: {folder}")


@contextmanager
def live_page(folder: Path) -> Iterator[None]:
    """Write the page of a run while the work inside goes on, and say where it is."""
    from prunus.report.live import watching

    with watching(folder) as page:
        say(f"watch it: {page.resolve().as_uri()} (open it in a browser)")
        yield


def _compare(runs: list[Path], out: Path) -> Answer:
    from prunus.report.compare import compare, finished, sides
    from prunus.util.text import big_number, relative_change

    comparison = compare(runs)
    page = comparison.write(out)
    rows = []
    for entrant, run in finished(comparison.entrants):
        was, now, text = *sides(run), run.summary.quality
        before, after = (side.costs["MACs per image"] for side in (was, now))
        macs = f"{big_number(after)} ({relative_change(before, after)})".replace("−", "-")
        quality = [text.name, text.shown(now.quality), text.change(now.quality - was.quality)]
        speeds = run.since_original.speeds
        speed = f"{speeds[0].change} in {speeds[0].place}" if speeds else "not measured"
        rows.append([entrant.letter, entrant.name, *quality, macs, speed])
    titles = ("", "run", "quality", "after", "change", "MACs", "speed-up")
    console.print(table(titles, rows, numbers=("after", "change", "MACs")))
    for entrant in comparison.entrants:
        if entrant.letter not in {row[0] for row in rows}:
            say(f"{entrant.letter} {entrant.name}: not finished")
    for note in comparison.notes:
        say(f"note: {note}")
    say(f"page: {page} (open it in a browser)")
    return Answer({"page": page, **comparison.to_dict()})
