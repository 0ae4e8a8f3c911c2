"""The report: one HTML page that tells what a run removed, what it cost and what was gained. Nothing is fetched."""

from __future__ import annotations

import shlex
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from secateur.base.atomic_files import write_atomically
from secateur.report.channel_parts import channels
from secateur.report.chart_parts import over_rounds, scores, sensitivities, widths
from secateur.report.document import REPORT, document
from secateur.report.html import folded, paragraph, section
from secateur.report.reading import Run, read_run
from secateur.report.rerun_command import call, command, loading, settings_of
from secateur.report.table import layer_table
from secateur.report.words import (
    big,
    change,
    count,
    goal,
    milliseconds,
    percent,
    points,
    verdict,
    what_it_cost,
    what_was_gained,
    what_was_removed,
)
from secateur.running.settings import Settings
from secateur.scoring.metrics import METRICS


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of the finished run in `folder` (to `report.html` in it, unless `out` says where else).

    Returns where it is. FileError names a file of the run that is missing or broken; an old report then stays.
    """
    path = Path(folder) / REPORT if out is None else Path(out)
    page = render(read_run(folder))
    write_atomically(path, page.encode())
    return path


def render(run: Run) -> str:
    """The page as text."""
    title = _title(run)
    parts = [_lead(run), _cards(run), _asked(run), over_rounds(run), widths(run), sensitivities(run)]
    parts += [scores(run), channels(run), _layers(run), _load(run), _again(run), _glossary()]
    body = "\n".join(part for part in parts if part)
    return document(title, body)


def _title(run: Run) -> str:
    gone = percent(1 - run.after.macs / run.before.macs) if run.before.macs else "0%"
    if run.command is None:
        return f"{run.model}, pruned: {gone} of the MACs removed"
    return f"{run.command.get('model')} on {run.command.get('data')}, pruned: {gone} of the MACs removed"


def _lead(run: Run) -> str:
    rows = (
        ("What was removed:", what_was_removed(run)),
        ("What it cost:", what_it_cost(run)),
        ("What was gained:", what_was_gained(run)),
    )
    told = "".join(f"<p><b>{a}</b> {escape(b)}</p>" for a, b in rows)
    return f'<p class="verdict">{escape(verdict(run))}</p><div class="lead">{told}</div>'


# -- before and after in numbers


def _cards(run: Run) -> str:
    was, now = run.before, run.after
    cards = []
    for name, a, b in (("Test accuracy", was.test, now.test), ("Held-out accuracy", was.holdout, now.holdout)):
        if a is not None and b is not None:
            note = f"{points(b.top1 - a.top1)}; {count(b.num_images, 'image')}, {100 / b.num_images:.2g} points each"
            cards.append(_card(name, percent(b.top1, 2), percent(a.top1, 2), note))
            if a.top5 is not None and b.top5 is not None and a.top5 < 0.999:
                cards.append(_card(f"{name}, top-5", percent(b.top5, 2), percent(a.top5, 2), points(b.top5 - a.top5)))
    for name, x, y in (("MACs for an image", was.macs, now.macs), ("Weights", was.params, now.params)):
        cards.append(_card(name, big(y), big(x), change(x, y)))
    cards.append(_card("Bytes on disk", f"{big(now.bytes)}B", f"{big(was.bytes)}B", change(was.bytes, now.bytes)))
    for size, before in was.latency.items():
        after = now.latency[size]
        name = f"Time for {count(int(size), 'image')}"
        cards.append(_card(name, milliseconds(after), milliseconds(before), f"{before / after:.2f}× the speed"))
    timed = (
        "Times are medians of forward passes on the machine of the run, both networks in turns; whatever else that "
        "machine was doing blurs them."
    )
    return '<div class="cards">' + "".join(cards) + "</div>" + (paragraph(timed, "soft") if was.latency else "")


def _card(what: str, now: str, was: str, note: str) -> str:
    return (
        f'<div class="card"><div class="what">{escape(what)}</div><div class="now">{escape(now)}</div>'
        f'<div class="was">before: {escape(was)}</div><div class="was">{escape(note)}</div></div>'
    )


# -- what was asked


def _asked(run: Run) -> str:
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


def _metric(run: Run) -> str:
    """What was asked for, or what a run without a wish has taken."""
    name = run.settings.metric or (run.rounds[0].scores.metric if run.rounds else "")
    return f"{name}: {METRICS.help(name)}" if name in METRICS else name


def _where(run: Run) -> str:
    if run.settings.method == "errors" and run.settings.ratio is None:
        return "each unit loses as much as makes the error that no repair can mend the least in all"
    if not run.settings.ranks:
        return "the same share everywhere"
    cost = {"macs": "MACs", "params": "number of weights"}.get(run.settings.cost, run.settings.cost)
    how = "each unit loses channels" + (f" worth the same {cost}" if run.settings.method == "flops" else "")
    images = count(run.before.holdout.num_images, "held-out image")
    return f"{how}; those that the network misses least on {images} lose theirs for good"


# -- table, loading, settings


def _layers(run: Run) -> str:
    return (
        section("Layer by layer", paragraph("Press a heading to sort.", "soft"), layer_table(run.layers))
        if run.layers
        else ""
    )


def _load(run: Run) -> str:
    words = f"The pruned network is a model of the same class ({run.model}), with the same parameter names."
    parts = [paragraph(words), f'<pre class="wraps"><code>{escape(loading(run))}</code></pre>']
    if run.command is not None:
        ship = shlex.join(["secateur", "export", str(run.folder), "small.onnx"])
        parts += [paragraph("To run it elsewhere:"), f'<pre class="wraps"><code>{escape(ship)}</code></pre>']
    return section("Load the pruned network", *parts)


def _again(run: Run) -> str:
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
        "Do it again",
        "<p>The same settings, data, versions and machine give the same network."
        + (" Add <code>--out FOLDER</code> to keep this run as it is.</p>" if run.command is not None else "</p>"),
        f'<pre class="wraps"><code>{escape(code)}</code></pre>',
        paragraph(f"Run with {versions}; report written by secateur {ours}. Folder: {run.folder}.", "soft"),
        folded("All settings", table, False),
    )


def _glossary() -> str:
    rows = (
        ("Channel", "one of the feature maps that a layer makes; removing it makes the layer narrower."),
        ("MAC", "multiply-add: one multiplication and one addition. Fewer of them is less work for each image."),
        ("Unit", "channels that are scored and removed together."),
        ("Held-out images", "set aside for decisions; not used for retraining."),
        ("Test images", "looked at once, at the end, for this page only."),
        ("Round", "score the channels, decide where to cut, cut, retrain."),
    )
    listed = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in rows)
    return section("Words used here", f"<dl>{listed}</dl>")
