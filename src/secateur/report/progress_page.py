"""The page of a run that has not finished: what it does now, its rounds and epochs so far. The browser reloads it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from html import escape
from typing import Any

from secateur.report import svg
from secateur.report.axes import Axes
from secateur.report.html import paragraph, section
from secateur.report.html_document import document
from secateur.report.number_formats import big, count, duration, percent
from secateur.report.sorting_table import sorting_row, sorting_table
from secateur.report.unfinished_run import UnfinishedRun

EVERY = 3  # seconds between two loads
SILENT = 60.0  # seconds without a sign of life


def starting_page(words: str) -> str:
    """A page that says why there is nothing to show yet."""
    return document("Waiting for the run", paragraph(words), refresh=EVERY)


def render_progress(run: UnfinishedRun, now: float) -> str:
    """The page as HTML. now: seconds since 1970, to tell how old the last sign of life is."""
    command = run.command
    name = f"{command['model']} on {command.get('data')}" if command.get("model") else "A run"
    title = f"{name}: round {len(run.rounds) + 1} is at work"
    parts = [_doing(run.doing, now), _asked(run), _rounds(run), _epochs(run)]
    return document(title, "\n".join(part for part in parts if part), refresh=EVERY)


def _doing(found: Mapping[str, Any] | None, now: float) -> str:
    again = f"This page loads itself again every {EVERY} seconds."
    if found is None:
        words = "The run has not said what it is doing. It may have been interrupted."
        return f'<p class="verdict">{escape(words)}</p>' + paragraph(again, "soft")
    done, total = int(found["done"]), int(found["total"])
    words = f"{found['phase']}: {done:,} of {total:,}"
    silent = max(0.0, now - float(found["time"]))
    share = 100 * done / total if total else 0
    bar = (
        f'<div class="progress" role="img" aria-label="{share:.0f}% done"><div style="width:{share:.0f}%"></div></div>'
    )
    ago = f"Last sign of life {duration(silent)} ago." if silent >= 1 else ""
    if silent > SILENT:
        ago += " The run may have been interrupted."
    note = " ".join(each for each in (f"{found['note']}." if found.get("note") else "", ago, again) if each)
    return f'<p class="verdict">{escape(words)}</p>{bar}' + paragraph(note, "soft")


def _asked(run: UnfinishedRun) -> str:
    line = run.config.get("command_line")
    rows = {"Command": str(line)} if line else {}
    if run.base is not None:
        rows[f"Held-out {run.quality.name} before"] = run.quality.shown(run.base.top1)
    rows["If it stops"] = shlex.join(["secateur", "prune", "--resume", str(run.folder)])
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows.items())
    return f"<dl>{listed}</dl>"


def _rounds(run: UnfinishedRun) -> str:
    if not run.rounds:
        return section("Rounds", paragraph("No round is finished yet."))
    rows = []
    for place, done in enumerate(run.rounds):
        gone = 1 - done.macs / run.macs if run.macs else 0.0
        cells = [
            (f"{done.number}", float(done.number), ""),
            (f"{sum(done.chosen.values()):,}", float(sum(done.chosen.values())), ""),
            (big(done.macs), float(done.macs), ""),
            (percent(gone) if run.macs else "–", gone, ""),
            (run.quality.shown(done.after.top1), done.after.top1, ""),
            (duration(sum(done.seconds.values())), sum(done.seconds.values()), ""),
        ]
        rows.append(sorting_row(place, cells))
    headings = ("round", "channels removed", "MACs", "MACs removed", f"held-out {run.quality.name}", "time")
    table = sorting_table(headings, rows, "Rounds so far")
    return section(f"{count(len(run.rounds), 'round')} so far", _chart(run), table)


def _chart(run: UnfinishedRun) -> str:
    """Held-out quality against MACs removed."""
    if run.base is None or not run.macs:
        return ""
    factor, words = run.quality.factor, run.quality
    course = [(0.0, factor * run.base.top1)]
    course += [(100 * (1 - done.macs / run.macs), factor * done.after.top1) for done in run.rounds]
    axes = Axes.around([value for _, value in course], [gone for gone, _ in course], 230, words)
    body = axes.grid()
    for start, end in itertools.pairwise(course):
        body.append(svg.line(*axes.at(*start), *axes.at(*end), "curve"))
    for gone, value in course:
        title = f"{words.scaled(value)} with {gone:.1f}% of the MACs removed"
        body.append(svg.dot(*axes.at(gone, value), "kept", title))
    label = f"Held-out {words.name} after {count(len(run.rounds), 'round')}, now {words.scaled(course[-1][1])}."
    return f"<figure>{svg.chart(body, axes.height, label, 'rounds')}</figure>"


def _epochs(run: UnfinishedRun) -> str:
    """The epochs of the round at work."""
    if not run.epochs:
        return ""
    rows = []
    for place, epoch in enumerate(run.epochs):
        held = epoch.holdout
        cells = [
            (f"{epoch.number}", float(epoch.number), ""),
            (f"{epoch.lr:.4g}", epoch.lr, ""),
            (f"{epoch.loss:.4f}", epoch.loss, ""),
            ("–", 0.0, "") if held is None else (run.quality.shown(held.top1), held.top1, ""),
        ]
        rows.append(sorting_row(place, cells))
    headings = ("epoch", "learning rate", "training loss", f"held-out {run.quality.name}")
    table = sorting_table(headings, rows, "Epochs so far")
    return section(f"Retraining in round {len(run.rounds) + 1}", table)
