"""The report of a run: one self-contained HTML page that shows what was removed, lost and gained."""

from __future__ import annotations

import shlex
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from secateur.base.atomic_files import write_atomically
from secateur.deciding.splits import SPLITS
from secateur.report.channel_section import channels
from secateur.report.chart_sections import over_rounds, scores, sensitivities, widths
from secateur.report.finished_run import FinishedRun, read_run
from secateur.report.html import folded, paragraph, section
from secateur.report.html_document import REPORT, document
from secateur.report.number_formats import big, change, count, milliseconds, percent, points
from secateur.report.rerun_command import call, command, loading, settings_of
from secateur.report.sentences import goal, verdict, what_it_cost, what_was_gained, what_was_removed
from secateur.report.sorting_table import layer_table
from secateur.running.settings import Settings
from secateur.scoring.metrics import METRICS


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
    parts = [_lead(run), _cards(run), _asked(run), over_rounds(run), widths(run), sensitivities(run)]
    parts += [scores(run), channels(run), _layers(run), _load(run), _again(run), _glossary()]
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
    )
    told = "".join(f"<p><b>{a}</b> {escape(b)}</p>" for a, b in rows)
    return f'<p class="verdict">{escape(verdict(run))}</p><div class="lead">{told}</div>'


# -- before and after


def _cards(run: FinishedRun) -> str:
    was, now = run.before, run.after
    cards = []
    for name, a, b in (("Test accuracy", was.test, now.test), ("Held-out accuracy", was.holdout, now.holdout)):
        if a is not None and b is not None:
            note = f"{points(b.top1 - a.top1)}; {count(b.num_images, 'image')}, each {100 / b.num_images:.2g} points"
            cards.append(_card(name, percent(b.top1, 2), percent(a.top1, 2), note))
            if a.top5 is not None and b.top5 is not None and a.top5 < 0.999:
                cards.append(_card(f"{name}, top-5", percent(b.top5, 2), percent(a.top5, 2), points(b.top5 - a.top5)))
    for name, x, y in (("MACs per image", was.macs, now.macs), ("Weights", was.params, now.params)):
        cards.append(_card(name, big(y), big(x), change(x, y)))
    cards.append(_card("Bytes on disk", f"{big(now.bytes)}B", f"{big(was.bytes)}B", change(was.bytes, now.bytes)))
    for size, before in was.latency.items():
        after = now.latency[size]
        name = f"Time for {count(int(size), 'image')}"
        cards.append(_card(name, milliseconds(after), milliseconds(before), f"{before / after:.2f}× the speed"))
    timed = (
        "Times are medians of forward passes on the machine of the run, measured alternately for both networks. Other "
        "programs on that machine make them less exact."
    )
    return '<div class="cards">' + "".join(cards) + "</div>" + (paragraph(timed, "soft") if was.latency else "")


def _card(what: str, now: str, was: str, note: str) -> str:
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="now">{escape(now)}</div>'
        f'<div class="was">before: {escape(was)}</div><div class="was">{escape(note)}</div></div>'
    )


# -- what was asked


def _asked(run: FinishedRun) -> str:
    asked, typed = run.settings, run.command or {}
    rows = [
        ("Network", f"{typed.get('model', run.model)}, {len(run.layers)} layers with weights"),
        ("Data", str(typed["data"]) if "data" in typed else ""),
        ("Goal", goal(run)),
        ("Channels scored by", _metric(run)),
        ("Where to cut", _where(run)),
        ("Repair", "" if asked.repair == "none" else asked.repair),
        ("Retraining", _retraining(asked)),
        ("Left alone", ", ".join(asked.exclude)),
        ("Seed", str(asked.seed)),
    ]
    listed = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows if b)
    return section("What was asked", f"<dl>{listed}</dl>")


def _retraining(asked: Settings) -> str:
    if asked.epochs == 0 and not asked.last_epochs:
        return "none"
    epochs = "the preset's epochs" if asked.epochs is None else count(asked.epochs, "epoch")
    words = [f"{asked.preset} schedule", f"{epochs} a round"]
    if asked.last_epochs is not None:
        words.append(f"{count(asked.last_epochs, 'epoch')} in the round that meets the goal")
    if asked.lr is not None:
        words.append(f"learning rate {asked.lr:g}")
    if asked.distill:
        words.append("towards the unpruned network's answers too")
    return ", ".join(words)


def _metric(run: FinishedRun) -> str:
    """What was asked for, or what a run without a wish has taken."""
    name = str(run.settings.metric or (run.rounds[0].scores.metric if run.rounds else ""))
    return f"{name}: {METRICS.help(name)}" if name in METRICS else name


def _where(run: FinishedRun) -> str:
    """The split and what it does, from the registry."""
    split = "uniform" if run.settings.ratio is not None else run.settings.split or "algorithm1"
    ranked = f", ranked on {count(run.before.holdout.num_images, 'held-out image')}" if run.settings.ranks else ""
    return f"{split}: {SPLITS.help(split)}{ranked}"


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
    code = command(run.command) if run.command is not None else call(run)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td><td>{'' if value == default else 'changed'}</td></tr>"
        for name, value, default in settings_of(run)
    )
    table = f'<div class="scroll"><table class="plain"><tbody>{rows}</tbody></table></div>'
    try:
        ours = version("secateur")
    except PackageNotFoundError:
        ours = "not installed"
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    return section(
        "Repeat this run",
        "<p>The same settings, data, versions and machine give the same network."
        + (" Add <code>--out FOLDER</code> to write to another folder.</p>" if run.command is not None else "</p>"),
        f'<pre class="wraps"><code>{escape(code)}</code></pre>',
        paragraph(f"Run with {versions}; report written by secateur {ours}. Folder: {run.folder}.", "soft"),
        folded("All settings", table, False),
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
