"""The report of a run: one self-contained HTML page that shows what was removed, lost and gained."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Collection, Iterator
from dataclasses import fields
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prunus.decide.goal import Goal
from prunus.decide.settings import TimeSettings
from prunus.report.html import REPORT, document, downloads, folded, layer_table, paragraph, run_files, section
from prunus.report.network_drawing import network
from prunus.report.read import FinishedRun, read_run
from prunus.report.sections import (
    channels,
    classes,
    latencies,
    layer_times,
    over_rounds,
    repairs,
    scores,
    sensitivities,
    widths,
)
from prunus.report.text import (
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
from prunus.tasks.quality import ACCURACY, QualityWords
from prunus.timing.latency import NO_DIFFERENCE
from prunus.util.files import write_atomically
from prunus.util.options import GROUPS, Option, default_of, options_of
from prunus.util.registry import Registry

# The Python code on the page: the call that repeats the run, and the lines that load the pruned network.


def call(run: FinishedRun) -> str:
    """The library call that repeats the run; the caller has the model and the loaders."""
    values = [(field, getattr(run.settings, field.name)) for field in fields(run.settings)]
    changed = [f"{field.name}={value!r}" for field, value in values if value != default_of(field)]
    return f"prunus.compress({', '.join(['model', 'train', 'holdout', *changed, f'folder={str(run.folder)!r}'])})"


def loading(run: FinishedRun) -> str:
    """Three lines of Python that load the pruned network."""
    folder = repr(str(run.folder))
    if run.command is None:
        return (
            "import prunus\n"
            f"original = {run.model}(...)  # a new network of this class; its weights do not matter\n"
            f"small = prunus.load({folder}, original).eval()"
        )
    original = f"create({', '.join(_create_arguments(run))})"
    for earlier in run.earlier:
        original = f"prunus.load({earlier!r}, {original})"
    return f"import prunus\nfrom prunus.zoo.models import create\nsmall = prunus.load({folder}, {original}).eval()"


def _create_arguments(run: FinishedRun) -> list[str]:
    """Arguments of `create` for the original: name, classes, and the input channels if they are not the default."""
    name = str(run.network)
    arguments = [repr(name)]
    if run.layers:
        arguments.append(f"num_classes={list(run.layers.values())[-1].outputs[0]}")
    channels = _image_channels(run.plan.example)
    if channels is not None and ":" not in name:
        from prunus.zoo.models import config

        if config(name).shape[0] != channels:
            arguments.append(f"in_channels={channels}")
    elif channels not in (None, 3) and name.startswith("timm:"):
        arguments.append(f"in_chans={channels}")
    return arguments


def _image_channels(example: Any) -> int | None:
    """Number of channels of an image, from the plan's example input; None if that is not one batch of images."""
    shape = example.get("shape") if isinstance(example, dict) else None
    return int(shape[1]) if isinstance(shape, list) and len(shape) == 4 else None


# The sections about settings: what was asked, and a table of all settings.

LISTED = 4  # largest number of values of one setting in a sentence


def what_was_asked(run: FinishedRun) -> str:
    """The network, the data, the goal, and the settings that were chosen or changed."""
    typed = run.command or {}
    rows = {"Network": [f"{typed.get('model', run.model)}, {len(run.layers)} layers with weights"]}
    if "data" in typed:
        rows["Data set"] = [str(typed["data"])]
    rows["Goal"] = [goal(run)]
    unused = () if run.settings.needs_times else [field.name for field in dataclasses.fields(TimeSettings)]
    for group, lines in chosen_settings(run.settings, unused).items():
        rows[group] = rows.get(group, []) + lines
    listed = [f"<dt>{escape(title)}</dt><dd>{'<br>'.join(map(escape, lines))}</dd>" for title, lines in rows.items()]
    return section("What was asked", f"<dl>{''.join(listed)}</dl>")


def chosen_settings(settings: Any, without: Collection[str] = ()) -> dict[str, list[str]]:
    """Group -> lines of text about the settings that were chosen from a registry or differ from their defaults.

    A choice from a registry has a line of its own, with the registry's help; the others share a line. Goals are left
    out, because the report has a sentence about them. without: others that decided nothing.
    """
    goals = {field.name for field in dataclasses.fields(Goal)}
    groups: dict[str, tuple[list[str], list[str]]] = {}  # group -> lines, settings that share a line
    for field, about in _by_group(settings):
        if field.name in without:
            continue
        value, name = getattr(settings, field.name), field.name.replace("_", " ")
        lines, shared = groups.setdefault(about.group, ([], []))
        if isinstance(about.choices, Registry) and about.choice_of(value) in about.choices:
            lines.append(f"{name} {value}: {about.choices.help(about.choice_of(value))}")
        elif field.name not in goals and value != default_of(field):
            shared.append(f"{name} {setting_text(value)}")
    joined = {group: [*lines, ", ".join(shared)] if shared else lines for group, (lines, shared) in groups.items()}
    return {group: lines for group, lines in joined.items() if lines}


def all_settings(settings: Any, quality: QualityWords = ACCURACY) -> str:
    """A folded table of all settings: group, name, value, whether it was changed, and help.

    quality: what the setting `measure` means by "accuracy".
    """
    rows = []
    for field, about in _by_group(settings):
        value = getattr(settings, field.name)
        changed = "" if value == default_of(field) else "changed"
        text = quality.name if (field.name, value) == ("measure", "accuracy") else setting_text(value)
        cells = (about.group, field.name, text, changed, about.help)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f'<div class="scroll"><table class="plain"><tbody>{"".join(rows)}</tbody></table></div>'
    return folded("All settings", table, False)


def _by_group(settings: Any) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """The options in the order of their groups."""
    places = {group: place for place, group in enumerate(GROUPS)}
    yield from sorted(options_of(settings), key=lambda pair: places.get(pair[1].group, len(places)))


def setting_text(value: Any) -> str:
    """A setting's value for people."""
    if value is None or value in ((), [], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        more = f" and {len(value) - LISTED} more" if len(value) > LISTED else ""
        return ", ".join(setting_text(each) for each in value[:LISTED]) + more
    if isinstance(value, dict):
        return ", ".join(f"{key} {setting_text(each)}" for key, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "__name__", value))


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
            name, note = (
                f"{part} {words.name}",
                f"{points(b.quality - a.quality, words)}; {count(b.num_images, 'image')}",
            )
            note += f", each {100 / b.num_images:.2g} points" if words == ACCURACY else ""
            cards.append(_card(name, words.shown(b.quality), words.shown(a.quality), note))
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
        ship = shlex.join(["prunus", "export", str(run.folder), "small.onnx"])
        parts += [paragraph("To run it without prunus:"), f'<pre class="wraps"><code>{escape(ship)}</code></pre>']
    return section("Load the pruned network", *parts)


def _again(run: FinishedRun) -> str:
    code = run.command_line or call(run)
    try:
        ours = version("prunus")
    except PackageNotFoundError:
        ours = "not installed"
    versions = ", ".join(f"{name} {number}" for name, number in run.versions.items())
    return section(
        "Repeat this run",
        "<p>The same settings, data, versions and machine give the same network."
        + (" Add <code>--out FOLDER</code> to write to another folder.</p>" if run.command_line else "</p>"),
        f'<pre class="wraps"><code>{escape(code)}</code></pre>',
        paragraph(f"Run with {versions}; report written by prunus {ours}. Folder: {run.folder}.", "soft"),
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
