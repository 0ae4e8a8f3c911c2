"""The page of a finished run (what was removed, lost and gained) or of a study: one self-contained HTML file."""

from __future__ import annotations

import dataclasses
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from prunus.deciding.sensitivity import Sensitivity
from prunus.deciding.settings import RANKING, TimeSettings
from prunus.errors import FileError
from prunus.plots.run_pictures import image_strip, map_strip
from prunus.plots.style import data_uri
from prunus.report.charts import inline, round_charts, score_histogram
from prunus.report.network import NetworkDrawing, sides
from prunus.report.page import (
    REPORT,
    Bar,
    Cell,
    Table,
    about_classes,
    as_json,
    class_table,
    confusions,
    drawn_bars,
    render_page,
    sentence,
    setting_text,
)
from prunus.report.read import FinishedRun, Round, read_run
from prunus.run.final_timing import how_timed
from prunus.run.summary import first_line, headline, removes_anything, versions
from prunus.studies.folder import RESULT, TABLE, as_csv, cell_text, read_study
from prunus.tasks import DEFAULT_TASK, UNLABELLED
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.util.files import STUDY, held_by, write_atomically
from prunus.util.options import GROUPS, default_of, options_of
from prunus.util.text import big_number, count, duration, milliseconds, percent, relative_change
from prunus.util.typed_json import to_data

OPEN_ROUNDS = 2  # if there are more rounds, only the first one is unfolded


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a finished run or study in `folder` to `out`, by default report.html there. Returns its path.

    FileError names a file that is missing or damaged; an old report is then kept.
    """
    path = Path(folder) / REPORT if out is None else Path(out)
    page = render_study(Path(folder)) if is_study(folder) else render(read_run(folder))
    write_atomically(path, page.encode())
    return path


def render(run: FinishedRun) -> str:
    """The page as HTML."""
    summary, command = run.summary, run.command
    ranked = [(done, done.sensitivity) for done in run.rounds if done.sensitivity and done.sensitivity.tried]
    scores = []  # of each round: unit, channels removed, width, and the histogram of its scores
    for done in run.rounds:
        chosen = [(unit, lost) for unit, lost in done.outcome.chosen.items() if unit in done.scores.values]
        if chosen:
            widths = done.step.widths
            scores.append((done, [(unit, n, widths[unit], score_histogram(done, unit)) for unit, n in chosen]))
    reached, goal = summary.goal.text.split(": ", 1)  # the line that the terminal prints
    rows, timed = headline(summary), len(summary.speeds)
    rows = [*rows[:timed][:1], *rows[timed:]]  # of speeds, the one that was asked for
    spent = [
        f"{phase} {duration(seconds)}"
        for phase, seconds in summary.seconds.items()
        if phase != "this_call" and seconds >= 0.05
    ]
    return render_page(
        "run.html",
        title=title(run),
        run=run,
        summary=summary,
        quality=summary.quality,
        verdict=verdict(run),
        lead=[
            (f"{reached}:", goal),
            ("What was removed:", what_was_removed(run)),
            ("Measured on:", measured_on(run)),
            *(("Note:", note) for note in summary.notes),
        ],
        cards=[[sentence(what.replace("ms in", "milliseconds in")), *rest] for what, *rest in rows],
        asked=what_was_asked(run),
        speeds=_speeds(run),
        how_timed=how_timed(summary.speeds),
        layer_times=_layer_times(run),
        charts=round_charts(run),
        spent=", ".join(spent),
        network=NetworkDrawing(run),
        widths=_widths(run),
        classes=run.classes and class_table([("", run.classes)]),
        about_classes=run.classes and about_classes(run.classes),
        confusions=run.classes and confusions(run.classes),
        boxes=run.boxes and data_uri(run.boxes),
        repairs=[(done, _errors(done)) for done in run.rounds if done.outcome.layer_errors],
        sensitivities=[(done, _losses(done, measured)) for done, measured in ranked],
        lost_name=lost_name(ranked[0][1]) if ranked else "",
        scores=scores,
        metric=metric_text(run) if run.rounds else "",
        strip=image_strip,
        maps=map_strip,
        sides=sides,
        unfolded=[done.outcome.number for done in run.rounds if len(run.rounds) <= OPEN_ROUNDS][:OPEN_ROUNDS] or [1],
        layers=_layers(run),
        files=run_files(run),
        loading=loading(run),
        ship=shlex.join(["prunus", "export", str(run.folder), "small.onnx"]) if command else "",
        command_line=run.config.get("command_line"),
        call=call(run),
        settings=all_settings(run.settings, summary.quality),
        our_version=versions()["prunus"],
    )


# -- sentences


def title(run: FinishedRun) -> str:
    """The name of the network, and what the run came to in a few words: speed first."""
    summary, command = run.summary, run.command
    name = f"{command.get('model')} on {command.get('data')}" if command else summary.model
    if not removes_anything(summary):
        return f"{name}: nothing was removed"
    parts = [summary.speeds[0].verdict] if summary.speeds else []
    parts.append(f"{percent(summary.removed['macs'])} of the MACs removed")
    return f"{name}, pruned: {', '.join(parts)}"


def verdict(run: FinishedRun) -> str:
    """The result in one sentence, the one that `prunus prune` prints first."""
    return sentence(f"{first_line(run.summary).replace('->', '→')}.")


def what_was_removed(run: FinishedRun) -> str:
    """The number of removed channels, and the units that lost most of them."""
    units = run.summary.units
    narrowed = sorted((-(u.width - u.kept), name) for name, u in units.items() if u.kept < u.width)
    if not narrowed:
        return "No channels were removed."
    most = [f"{name} (from {units[name].width} channels to {units[name].kept})" for _, name in narrowed[:3]]
    rest = len(narrowed) - len(most)
    where = " and ".join(most) if len(most) < 3 else f"{most[0]}, {most[1]} and {most[2]}"
    more = f"; the others from {count(rest, 'other unit')}" if rest else ""
    whole = len(units) - len(narrowed)
    left = f" {whole} of {len(units)} units kept all channels." if whole else ""
    lost, width = -sum(row[0] for row in narrowed), sum(unit.width for unit in units.values())
    return (
        f"{lost:,} of {count(width, 'channel')} in {count(len(run.rounds), 'round')}, "
        f"{'most of them ' if rest else ''}from {where}{more}.{left}"
    )


# -- before and after


def measured_on(run: FinishedRun) -> str:
    """The images behind the figures: with few of them, small differences mean little."""
    texts, before = [], run.summary.before
    for part, measured in (("test", before.test), ("held-out", before.holdout)):
        if measured is not None:
            images = count(measured.num_images, f"{part} image")
            worth = f", each worth {100 / measured.num_images:.2g} points" if run.summary.quality == ACCURACY else ""
            texts.append(images + worth + (", which decisions used" if part == "held-out" else ""))
    return f"{'; '.join(texts)}."


def _speeds(run: FinishedRun) -> list[Bar]:
    """Time in each engine as a share of the original's, with the interval of the speed-up."""
    rows, longest = [], 1.2 * max([1.0, *(1 / each.ratio for each in run.summary.speeds)])
    for place, each in enumerate(run.summary.speeds):
        # A wide interval is cut off, so that bars stay as long as they can be; its text is whole.
        least, most = (min(1 / end if end else longest, longest) for end in (each.high, each.low))
        bars = [(0.0, 1.0, "lost"), (0.0, 1 / each.ratio, "kept"), (least, most, "spread")]
        title = f"{each}: {milliseconds(each.before)} before, {milliseconds(each.after)} after"
        rows.append(Bar(each.place, bars, each.change.replace("x", "×"), title, strong=place == 0))
    return drawn_bars(rows)


def _layer_times(run: FinishedRun) -> list[Bar]:
    """Predicted seconds of each layer; empty without a latency target."""
    rows = []
    for name, (before, after) in (run.summary.time.layers if run.summary.time else {}).items():
        was, now = milliseconds(before), milliseconds(after)
        changed = abs(after - before) > 0.005 * abs(before)
        bars = [(0.0, max(0.0, before), "lost"), (0.0, max(0.0, after), "kept")]
        title = f"{name}: {was} before, {now} after ({relative_change(before, after)})"
        rows.append(Bar(name, bars, f"{now}, was {was}" if changed else was, title, changed))
    return drawn_bars(rows)


def _widths(run: FinishedRun) -> list[Bar]:
    """Channels of each unit: all in grey, kept ones in blue."""
    rows = []
    for name, unit in run.summary.units.items():
        lost = unit.width - unit.kept
        title = f"{name}: {unit.kept} of {unit.width} channels kept, {lost} removed ({percent(lost / unit.width)})"
        bars = [(0.0, unit.width, "lost"), (0.0, unit.kept, "kept")]
        left = f"{unit.kept} of {unit.width}" if unit.kept else f"block removed, was {unit.width}"
        title = title if unit.kept else f"{name}: the residual branch around its {unit.width} channels was removed"
        rows.append(Bar(name, bars, left if lost else f"{unit.width}", title, lost > 0))
    return drawn_bars(rows)


def _layers(run: FinishedRun) -> Table:
    rows = []
    for place, (name, layer) in enumerate(run.summary.layers.items()):
        was, now = layer.macs
        gone = 1 - now / was if was else 0.0
        cells = [Cell(name, place), Cell(sides(layer.inputs), layer.inputs[1])]
        cells += [Cell(sides(layer.outputs), layer.outputs[1]), Cell(big_number(was), was), Cell(big_number(now), now)]
        cells.append(Cell(percent(gone) if gone else "–", gone))
        rows.append([*cells, *(Cell(big_number(number), number) for number in layer.params)])
    macs = ("MACs before", "MACs after", "MACs removed")
    headings = ("layer", "inputs", "outputs", *macs, "weights before", "weights after")
    return Table("Layers before and after", headings, rows)


# -- rounds


def lost_name(measured: Sensitivity) -> str:
    """What bars of sensitivity show."""
    if measured.unit == "%":
        return f"points of {measured.measure} lost"
    return "loss added" if measured.measure == "loss" else f"{measured.measure} lost"


def _losses(done: Round, measured: Sensitivity) -> list[Bar]:
    """How much worse the network is when each unit alone loses channels, without retraining."""
    rows = []
    for name, row in measured.tried.items():
        lost = (100 if measured.unit == "%" else 1) * (measured.base_value - row.value)
        shown = f"{lost:.1f}" if abs(lost) >= 10 or lost == 0 else f"{lost:.2g}"
        chosen = done.outcome.chosen.get(name, 0)
        title = (
            f"{name}: {shown} {lost_name(measured)} when it loses {row.channels} of {row.width} channels, without "
            f"retraining. " + (f"Chosen: it lost {chosen}." if chosen else "Not chosen.")
        )
        # A cut that breaks the network gives a loss of inf or nan, and a full bar.
        bars = [(0.0, lost, "kept" if chosen else "other")]
        rows.append(Bar(name, bars, f"{shown} (−{row.channels})", title, chosen > 0))
    return drawn_bars(rows)


def _errors(done: Round) -> list[Bar]:
    """Two bars per layer: its relative error before and after its repair."""

    def shown(value: float) -> str:
        if not math.isfinite(value):
            return "not finite"
        return f"{100 * value:.2g}%" if value < 0.1 else f"{100 * value:.0f}%"

    rows = []
    for name, (before, after) in done.outcome.layer_errors.items():
        title = f"{name}: error of {shown(before)} before repair, {shown(after)} repaired"
        bars = [(0.0, before, "cut upper"), (0.0, after, "kept lower")]
        rows.append(Bar(name, bars, f"{shown(before)} → {shown(after)}", title))
    return drawn_bars(rows)


def metric_text(run: FinishedRun) -> str:
    """The metric with its options, as in gsd:ridge=0; those in its name come before `metric_options`."""
    given: Any = run.settings.metric
    name, *parts = given.split(":") if isinstance(given, str) else [""]
    scored_by = run.rounds[0].scores.metric
    in_name = dict(part.partition("=")[::2] for part in parts) if name == scored_by else {}
    options = {**run.settings.metric_options, **in_name}
    return ":".join([scored_by, *(f"{key}={value}" for key, value in options.items())])


# -- settings, and the code that repeats the run


def what_was_asked(run: FinishedRun) -> dict[str, list[str]]:
    """The network, the data, and the settings that decided something and are not at their defaults: title -> text."""
    typed, settings = run.command, run.settings
    rows = {"Network": [f"{typed.get('model', run.summary.model)}, {len(run.summary.layers)} layers with weights"]}
    if "data" in typed:
        rows["Data set"] = [str(typed["data"])]
    unused = [] if settings.needs_times else [field.name for field in dataclasses.fields(TimeSettings)]
    unused += [] if settings.ranks else RANKING
    unused += [] if settings.retrains_at_all else ["distill"]
    changed: dict[str, list[str]] = {}
    for group, name, value, mark, _ in all_settings(settings, run.summary.quality):
        if mark and name not in unused:
            changed.setdefault(group, []).append(f"{name.replace('_', ' ')} {value}")
    return rows | {group: [", ".join(texts)] for group, texts in changed.items()}


def all_settings(settings: Any, quality: QualityText = ACCURACY) -> list[tuple[str, str, str, str, str]]:
    """Group, name, value, whether it was changed, and help of all settings. quality: what `measure` calls accuracy."""
    rows, places = [], {group: place for place, group in enumerate(GROUPS)}
    for field, about in sorted(options_of(settings), key=lambda pair: places.get(pair[1].group, len(places))):
        value = getattr(settings, field.name)
        changed = "" if value == default_of(field) else "changed"
        shown = quality.name if (field.name, value) == ("measure", "accuracy") else setting_text(value)
        rows.append((about.group, field.name, shown, changed, about.help))
    return rows


def call(run: FinishedRun) -> str:
    """The library call that repeats the run; the caller has the model and the loaders."""
    task = str(run.settings.task or "").removesuffix(UNLABELLED)  # whether there are labels, the loaders say
    settings = dataclasses.replace(run.settings, task=None if task in ("", DEFAULT_TASK) else task)
    values = [(field, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
    changed = [f"{field.name}={value!r}" for field, value in values if value != default_of(field)]
    return f"prunus.compress({', '.join(['model', 'train', 'holdout', *changed, f'folder={str(run.folder)!r}'])})"


def loading(run: FinishedRun) -> str:
    """Three lines of Python that load the pruned network."""
    name = str(run.start.get("network", run.command.get("model")))
    example: Any = run.plan.example
    shape = list(example.get("shape", ())) if isinstance(example, dict) else []
    imports, original = [], ""
    if not run.command:
        original = f"{run.summary.model}(...)  # a new network of this class; its weights do not matter"
    elif name.endswith(".onnx"):
        kept = run.folder / "original.onnx"
        original = f"prunus.from_onnx({str(kept if kept.is_file() else name)!r})"
        if classes := (run.config.get("built") or {}).get("classes"):
            imports.append("import torch")
            original += f"\noriginal = prunus.keep_classes(original, torch.zeros({shape}), {classes})"
    if original:
        loaded = f"prunus.load({str(run.folder)!r}, original)"
        return "\n".join(["import prunus", *imports, f"original = {original}", f"small = {loaded}.eval()"])
    arguments = [repr(name)]
    if run.summary.layers:
        arguments.append(f"num_classes={list(run.summary.layers.values())[-1].outputs[0]}")
    channels = int(shape[1]) if len(shape) == 4 else None  # of a batch of images
    if channels is not None and ":" not in name:
        from prunus.zoo.models import config

        if config(name).shape[0] != channels:
            arguments.append(f"in_channels={channels}")
    elif channels not in (None, 3) and name.startswith("timm:"):
        arguments.append(f"in_chans={channels}")
    small = f"prunus.load({str(run.folder)!r}, create({', '.join(arguments)})).eval()"
    return f"import prunus\nfrom prunus.zoo.models import create\nsmall = {small}"


# -- files to save


def run_files(run: FinishedRun) -> dict[str, str]:
    """The figures of a run: all as JSON, and each table as CSV."""
    summary, name, outcomes = run.summary, run.summary.quality.name, [done.outcome for done in run.rounds]
    whole = {key: value for key, value in to_data(summary).items() if key not in ("settings", "removed", "time")}
    kinds = ("inputs", "outputs", "macs", "params")
    layers = [[layer, *(n for kind in kinds for n in getattr(cost, kind))] for layer, cost in summary.layers.items()]
    units = [(unit, each.kind, each.width, each.kept) for unit, each in summary.units.items()]
    rounds = [
        (o.number, o.macs, o.params, o.before.quality, o.pruned.quality, o.after.quality, sum(o.chosen.values()))
        for o in outcomes
    ]
    epochs = [
        (o.number, e.number, e.lr, e.loss, e.holdout and e.holdout.loss, e.holdout and e.holdout.quality)
        for o in outcomes
        for e in o.retraining
    ]
    quality_headings = [f"{name} {when}" for when in ("before", "pruned", "after")]
    files = {
        "run.json": as_json({"model": summary.model, "command_line": run.config.get("command_line"), **whole}),
        "layers.csv": as_csv(["layer", *(f"{kind} {when}" for kind in kinds for when in ("before", "after"))], layers),
        "units.csv": as_csv(("unit", "kind", "width", "kept"), units),
        "rounds.csv": as_csv(("round", "macs", "weights", *quality_headings, "channels removed"), rounds),
        "epochs.csv": as_csv(
            ("round", "epoch", "learning rate", "training loss", "held-out loss", f"held-out {name}"), epochs
        ),
    }
    if (table := run.classes) is not None:
        names = [table.name(number) for number in range(len(table.sizes))]
        rows = zip(names, table.sizes, table.before.values, table.after.values, strict=True)
        headings = ("class", table.of, f"{table.quality} before", f"{table.quality} after")
        files["classes.csv"] = as_csv(headings, rows)
    return files


# -- the page of a study: figures, table, settings, and the command that repeats it


def is_study(folder: str | Path) -> bool:
    """Whether a folder is that of a study, finished or not."""
    return held_by(Path(folder)) == STUDY


def render_study(folder: Path) -> str:
    """The page as HTML."""
    study = read_study(folder)
    try:
        versions = ", ".join(f"{name} {number}" for name, number in (study["versions"] or {}).items())
        given = {name: value for name, value in study["asked"].items() if value not in (None, [], "", {})}
        return render_page(
            "study.html",
            title=str(study["title"]),
            pictures=[(_embedded(folder / p["file"], p["alt"]), p["caption"]) for p in study["pictures"]],
            notes=study["notes"],
            table=_study_table(study["columns"], study["rows"]),
            table_file=TABLE,
            asked=[(name.replace("_", " "), [setting_text(value, sys.maxsize)]) for name, value in given.items()],
            command=study["command"],
            provenance=f"Study {study['study']}, run with {versions}. Folder: {folder}.",
        )
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{folder / RESULT} has unexpected content: {what}") from error


def _embedded(path: Path, alt: str) -> Markup:
    """A figure of the study as part of the page: the SVG, or the PNG if there is no SVG."""
    if path.suffix == ".svg" and path.is_file():
        return inline(path.read_text(encoding="utf-8"), alt)
    picture = path.with_suffix(".png")
    if not picture.is_file():
        raise FileError(f"{path} is missing, although {RESULT} lists it; run the study's command again to draw it")
    return Markup('<img src="{}" alt="{}">').format(data_uri(picture.read_bytes()), alt)


def _study_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """All rows, without empty columns. Text sorts in alphabetical order, and missing values come first."""
    shown = [key for key in columns if any(cell_text(row[key]) != "–" for row in rows)]
    texts = {key: sorted({row[key] for row in rows if isinstance(row[key], str)}) for key in shown}

    def cell(key: str, value: Any) -> Cell:
        rank = texts[key].index(value) if isinstance(value, str) else -math.inf if cell_text(value) == "–" else value
        whole = repr(value) if isinstance(value, float) and cell_text(value) != repr(value) else ""
        return Cell(cell_text(value), float(rank), whole)

    cells = [[cell(key, row[key]) for key in shown] for row in rows]
    text_columns = [place for place, key in enumerate(shown) if texts[key]]
    return Table("All results", [columns[key] for key in shown], cells, sorted=False, texts=text_columns)
