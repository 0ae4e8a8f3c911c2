"""The report of a run: one self-contained HTML page that shows what was removed, lost and gained."""

from __future__ import annotations

import shlex
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from secateur.base.atomic_files import write_atomically
from secateur.measuring.quality_words import ACCURACY
from secateur.measuring.speedup import NO_DIFFERENCE
from secateur.report.channel_section import channels
from secateur.report.chart_sections import over_rounds, scores, sensitivities, widths
from secateur.report.class_section import classes
from secateur.report.code_snippets import call, loading
from secateur.report.downloads import downloads, run_files
from secateur.report.finished_run import FinishedRun, read_run
from secateur.report.html import paragraph, section
from secateur.report.html_document import REPORT, document
from secateur.report.latency_section import latencies
from secateur.report.layer_times_section import layer_times
from secateur.report.network_section import network
from secateur.report.number_formats import big, change, count, milliseconds, percent, points
from secateur.report.repair_section import repairs
from secateur.report.sentences import verdict, what_it_cost, what_was_gained, what_was_removed
from secateur.report.settings_section import all_settings, what_was_asked
from secateur.report.sorting_table import layer_table


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the finished run in `folder` to `out`, by default `report.html` in that folder.

    Returns the path of the report. A FileError names a file that is missing or damaged; an old report is then kept.
    """
    path = Path(folder) / REPORT if out is None else Path(out)
    page = render(read_run(folder))
    write_atomically(path, page.encode())
    return path


def render(run: FinishedRun) -> str:
    """The page as HTML."""
    title = _title(run)
    parts = [_lead(run), _cards(run), what_was_asked(run), latencies(run), layer_times(run), over_rounds(run)]
    parts += [network(run), widths(run), classes(run), repairs(run), sensitivities(run), scores(run), channels(run)]
    parts += [_layers(run), downloads(run_files(run)), _load(run), _again(run), _glossary()]
    body = "\n".join(part for part in parts if part)
    return document(title, body)


def _title(run: FinishedRun) -> str:
    gone = percent(1 - run.after.macs / run.before.macs) if run.before.macs else "0%"
    if run.command is None:
        return f"{run.model}, pruned: {gone} of the MACs removed"
    return f"{run.command.get('model')} on {run.command.get('data')}, pruned: {gone} of the MACs removed"


def _lead(run: FinishedRun) -> str:
    rows = (
        ("What was removed:", what_was_removed(run)),
        ("What was lost:", what_it_cost(run)),
        ("What was gained:", what_was_gained(run)),
        *(("Note:", note) for note in run.notes),
    )
    told = "".join(f"<p><b>{a}</b> {escape(b)}</p>" for a, b in rows)
    return f'<p class="verdict">{escape(verdict(run))}</p><div class="lead">{told}</div>'


# -- before and after


def _cards(run: FinishedRun) -> str:
    was, now = run.before, run.after
    cards = []
    words = run.quality
    for part, a, b in (("Test", was.test, now.test), ("Held-out", was.holdout, now.holdout)):
        if a is not None and b is not None:
            name, note = f"{part} {words.name}", f"{points(b.top1 - a.top1, words)}; {count(b.num_images, 'image')}"
            note += f", each {100 / b.num_images:.2g} points" if words == ACCURACY else ""
            cards.append(_card(name, words.shown(b.top1), words.shown(a.top1), note))
            if a.top5 is not None and b.top5 is not None and a.top5 < 0.999:
                cards.append(_card(f"{name}, top-5", percent(b.top5, 2), percent(a.top5, 2), points(b.top5 - a.top5)))
    for name, x, y in (("MACs per image", was.macs, now.macs), ("Weights", was.params, now.params)):
        cards.append(_card(name, big(y), big(x), change(x, y)))
    cards.append(_card("Bytes on disk", f"{big(now.bytes)}B", f"{big(was.bytes)}B", change(was.bytes, now.bytes)))
    for size, before in was.latency.items():
        after = now.latency[size]
        name = f"Time for {count(int(size), 'image')}"
        found = run.speedup.get(size)
        said = NO_DIFFERENCE if found is None or not found.measurable else f"{str(found).replace('x', '×')} the speed"
        cards.append(_card(name, milliseconds(after), milliseconds(before), said))
    if run.time is not None and run.time.seconds is not None:
        name = f"Time in {run.time.engine}, batch {run.time.batch}"
        said = f"{str(run.time.measured).replace('x', '×')} the speed, {run.time.predicted:.2f}× predicted"
        first, second = map(milliseconds, run.time.seconds)
        cards.append(_card(name, second, first, said))
    timed = (
        "Times are medians of forward passes on the machine of the run, measured alternately for both networks. A "
        "speed-up is the median over pairs of turns, with its 95% interval in brackets."
    )
    return '<div class="cards">' + "".join(cards) + "</div>" + (paragraph(timed, "soft") if was.latency else "")


def _card(what: str, now: str, was: str, note: str) -> str:
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="now">{escape(now)}</div>'
        f'<div class="was">before: {escape(was)}</div><div class="was">{escape(note)}</div></div>'
    )


# -- layers, loading, repeating


def _layers(run: FinishedRun) -> str:
    return (
        section("Layers", paragraph("Click a heading to sort.", "soft"), layer_table(run.layers)) if run.layers else ""
    )


def _load(run: FinishedRun) -> str:
    words = f"The pruned network is a model of the same class ({run.model}), with the same parameter names."
    parts = [paragraph(words), f'<pre class="wraps"><code>{escape(loading(run))}</code></pre>']
    if run.command is not None:
        ship = shlex.join(["secateur", "export", str(run.folder), "small.onnx"])
        parts += [paragraph("To run it without secateur:"), f'<pre class="wraps"><code>{escape(ship)}</code></pre>']
    return section("Load the pruned network", *parts)


def _again(run: FinishedRun) -> str:
    code = run.command_line or call(run)
    try:
        ours = version("secateur")
    except PackageNotFoundError:
        ours = "not installed"
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    return section(
        "Repeat this run",
        "<p>The same settings, data, versions and machine give the same network."
        + (" Add <code>--out FOLDER</code> to write to another folder.</p>" if run.command_line else "</p>"),
        f'<pre class="wraps"><code>{escape(code)}</code></pre>',
        paragraph(f"Run with {versions}; report written by secateur {ours}. Folder: {run.folder}.", "soft"),
        all_settings(run.settings, run.quality),
    )


def _glossary() -> str:
    rows = (
        ("Channel", "one of the feature maps that a layer computes; without it the layer is narrower."),
        ("MAC", "multiply-add: one multiplication and one addition."),
        ("Unit", "channels that are scored and removed together."),
        ("Held-out images", "images for decisions; they are not used for retraining."),
        ("Test images", "images that are used once, at the end, for this report only."),
        ("Round", "score the channels, choose what to remove, remove it, repair or retrain."),
    )
    listed = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows)
    return section("Glossary", f"<dl>{listed}</dl>")
