"""`prunus report`: the page of a run or study, of a run at work, or of several runs beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli.console import Answer, Early, choice, complain, console, existing_folder, friendly, say, table
from prunus.errors import PrunusError
from prunus.util.files import PRUNING, held_by, read_object, refuse_overwriting

if TYPE_CHECKING:
    from prunus.report.compare import Comparison

SUMMARY = "summary.json"
COMPARISON = Path("runs/comparison")
FORMATS = ("html", "markdown", "latex", "bibtex")


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
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="html: write the page; markdown or latex: print the table; bibtex: print what to cite for the metrics",
        ),
        choice("format", *FORMATS),
    ] = "html",
) -> Answer:
    """Write the page of a run or a study: one self-contained HTML file.

    Of several runs, one page compares them: quality against MACs, weights, bytes and time, settings, classes and
    widths, with the paper's rows where network and data are the same. Runs on the same test images are compared image
    by image (McNemar's exact test, or a paired bootstrap); runs that differ only in their seed are averaged.

    With --format latex, the table is printed for a paper (booktabs), and nothing is written.

    Of a run at work, the page shows rounds and epochs so far; `prune --watch` keeps it up to date.

    Examples:

        prunus report runs/prune-resnet8-digits --out report.html

        prunus report runs/prune-resnet8-digits runs/prune-resnet8-digits-2

        prunus report runs/a runs/b runs/c --out comparison

        prunus report runs/a runs/b --format latex > table.tex

        prunus report runs/a --format bibtex > metrics.bib

        prunus report runs/study-timing-vgg16-cifar10
    """
    if form != "html":
        if out is not None:
            raise PrunusError(f"--format {form} prints, and writes no page: leave out --out")
        return _print_bibtex(runs) if form == "bibtex" else _print_table(runs, form)
    if len(runs) > 1:
        return _compare(runs, out or COMPARISON)
    folder = runs[0]
    from prunus.report.live import write_progress
    from prunus.report.run_page import write_report

    at_work = held_by(folder) == PRUNING and not (folder / SUMMARY).exists()
    if at_work and out is None:
        page = write_progress(folder)
        say(f"the run is not finished; written: {page}")
    else:
        if out is not None and out.suffix != ".html":
            refuse_overwriting(out)
        page = write_report(folder, out)
        say(f"written: {page}")
    return Answer({"page": page, "finished": not at_work})


def _print_bibtex(runs: list[Path]) -> Answer:
    from prunus.scoring.metrics import METRICS, bibtex

    used: list[str] = []
    for folder in runs:
        config = read_object(folder / "config.json", f"; {folder} holds no run or study")
        settings = {**(config.get("asked") or {}), **(config.get("settings") or {})}
        named = settings.get("metrics") or settings.get("metric") or ()
        used += [named] if isinstance(named, str) else list(named)
    known = [name for name in dict.fromkeys(used) if METRICS.split_options(name)[0] in METRICS]
    entries = bibtex(known)
    console.print(entries, end="", soft_wrap=True)
    return Answer({"metrics": known, "bibtex": entries})


def _print_table(runs: list[Path], form: str) -> Answer:
    """The table of a study (in LaTeX, the one that it wrote), or of one or more runs."""
    from prunus.report.compare import compare
    from prunus.report.run_page import is_study
    from prunus.studies.folder import LATEX, read_study, text_cells
    from prunus.util.text import latex_table, markdown_table

    if len(runs) == 1 and is_study(runs[0]):
        study = read_study(runs[0])
        text = f"{markdown_table(*text_cells(study['rows'], study['columns']))}\n"
        text = (runs[0] / LATEX).read_text(encoding="utf-8") if form == "latex" else text
        console.print(text, end="", soft_wrap=True)
        return Answer({"table": text})
    comparison = compare(runs)
    parts: list[str] = []
    for titles, rows, caption, numbers in _tables(comparison):
        places = [place for place, title in enumerate(titles) if title in numbers]
        label = "" if parts else "tab:runs"
        text = f"{markdown_table(titles, rows)}\n"
        parts.append(latex_table(titles, rows, places, caption=caption, label=label) if form == "latex" else text)
    text = "\n".join(parts)
    console.print(text, end="", soft_wrap=True)
    for note in comparison.notes:
        complain("note", note)
    return Answer({"table": text, **comparison.to_dict()})


def _tables(comparison: Comparison) -> Iterator[tuple[list[str], list[list[str]], str, Sequence[str]]]:
    """Titles, rows, caption and right-aligned titles: of finished runs by quality, and of their means over seeds."""
    from prunus.report.compare import MACS, SPEEDUP, costs_of, run_table
    from prunus.report.paired import seed_table

    for quality in comparison.qualities():
        speeds = [cost for cost in costs_of(comparison.results(quality)) if cost.startswith(SPEEDUP)]
        shown = run_table(comparison, quality, [MACS, *speeds[:1]])
        titles, (first, *_) = list(shown.headings), comparison.entrants
        tested = any(title.startswith("p against") for title in titles)
        what = f" p: paired tests against {first.letter} on the same images." if tested else ""
        yield titles, [[cell.text for cell in row] for row in shown.rows], f"Pruned networks.{what}", titles[2:]
    means = seed_table(comparison.over_seeds, {each.letter: each.run.summary.quality for each in comparison.results()})
    if means is not None:
        cells = [[cell.text for cell in row] for row in means.rows]
        yield list(means.headings), cells, "Means over seeds, with standard errors.", means.headings[1:]


def _compare(runs: list[Path], out: Path) -> Answer:
    from prunus.report.compare import compare

    comparison = compare(runs)
    page = comparison.write(out)
    shown: set[str] = set()
    for titles, rows, caption, numbers in _tables(comparison):
        if shown:
            say(f"\n{caption}")
        shown |= {row[0] for row in rows}
        console.print(table(titles, rows, numbers=numbers))
    for entrant in comparison.entrants:
        if entrant.letter not in shown:
            say(f"{entrant.letter} {entrant.name}: not finished")
    for note in comparison.notes:
        say(f"note: {note}")
    for reason in sorted({pair.reason for pair in comparison.pairs if pair.result is None}):
        say(f"note: some runs are not tested in pairs: {reason}")
    say(f"page: {page} (open it in a browser)")
    return Answer({"page": page, **comparison.to_dict()})
