"""The sections that show rounds and units as charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from prunus.plots.run_pictures import RunPictures, ShownChannel, UnitPictures
from prunus.plots.style import image_strip, map_strip
from prunus.report import svg
from prunus.report.charts import (
    BAR,
    BARS,
    END,
    ROW,
    cuts_chart,
    epochs_chart,
    losses_chart,
    lost_name,
    rates_chart,
    rounds_chart,
    scores_chart,
    sensitivity_chart,
    widths_chart,
)
from prunus.report.html import folded, key, paragraph, section, sorting_row, sorting_table
from prunus.report.read import ClassTable, FinishedRun, Round, SpeedFigures
from prunus.report.text import change, count, duration, milliseconds, percent, points
from prunus.timing.latency import NO_DIFFERENCE

OPEN_ROUNDS = 2  # if there are more rounds, only the first one is unfolded


def over_rounds(run: FinishedRun) -> str:
    """Quality against MACs, and the effect of each cut."""
    if not run.rounds:
        return ""
    keys = [("blue round", "held-out images"), *([("green round", "test images")] if run.after.test else [])]
    parts = [key(*keys), f"<figure>{rounds_chart(run)}</figure>"]
    cut = "after the cut" if run.settings.repair == "none" else "after cut and repair"
    both = key(("orange round", f"held-out, {cut}"), ("blue round", "held-out, after retraining"))
    cuts, epochs = cuts_chart(run), epochs_chart(run)
    if cuts:
        words = f"{run.quality.title} directly after each cut, and after retraining:"
        parts += [paragraph(words), both, f"<figure>{cuts}</figure>"]
    if epochs:
        parts += [paragraph(f"{run.quality.title} in each epoch of retraining:"), both, f"<figure>{epochs}</figure>"]
    parts += _training(run)
    if run.undone > 0:
        parts.append(paragraph(f"Another round lost more {run.quality.name} than allowed and was undone."))
    return section(f"{run.quality.title} and MACs in each round", *parts, _time(run))


def _training(run: FinishedRun) -> list[str]:
    """Loss and learning rate over the epochs."""
    losses, rates = losses_chart(run), rates_chart(run)
    keys = key(("blue round", "training batches"), ("orange round", "held-out images"))
    parts = [paragraph("Loss in each epoch of retraining:"), keys, f"<figure>{losses}</figure>"] if losses else []
    if rates:
        parts += [paragraph("Learning rate at the end of each epoch:"), f"<figure>{rates}</figure>"]
    return parts


def _time(run: FinishedRun) -> str:
    spent = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in run.seconds.items() if phase != "this_call")
    return paragraph(f"Time spent: {spent}.", "soft") if spent else ""


def widths(run: FinishedRun) -> str:
    """Number of channels of each unit, before and after."""
    if not run.units:
        return ""
    words = (
        "A unit is a set of channels that are scored and pruned together. NAME:out are the output channels of layer "
        "NAME. NAME:in are the channels that layer NAME reads from a residual stream; other layers may still read "
        "the channels that it drops."
    )
    keys = key(("blue", "kept"), ("pale", "removed"))
    return section("Channels before and after", paragraph(words), keys, f"<figure>{widths_chart(run)}</figure>")


def _unfolded(run: FinishedRun, number: int) -> bool:
    return number == 1 or len(run.rounds) <= OPEN_ROUNDS


def sensitivities(run: FinishedRun) -> str:
    """The sensitivity of each unit in each round, with the chosen units marked."""
    rows = [(r, sensitivity_chart(r)) for r in run.rounds]
    folds = [folded(_round_title(r), f"<figure>{c}</figure>", _unfolded(run, r.outcome.number)) for r, c in rows if c]
    first = next((r.sensitivity for r, c in rows if c), None)
    if first is None:
        return ""
    words = (
        f"Sensitivity of the network to each unit: {lost_name(first)} when only this unit loses its weakest channels "
        "(their number is in brackets), without retraining. A shorter bar means a safer cut."
    )
    return section(
        "Sensitivity of each unit", paragraph(words), key(("blue", "chosen"), ("grey", "not chosen")), *folds
    )


def _round_title(done: Round) -> str:
    lost = sum(done.outcome.chosen.values())
    return f"Round {done.outcome.number}: {count(lost, 'channel')} from {count(len(done.outcome.chosen), 'unit')}"


def scores(run: FinishedRun) -> str:
    """Histograms of the scores of the units that lost channels."""
    folds = []
    for done in run.rounds:
        figures = [
            f"<figure><figcaption><b>{escape(unit)}</b>, {lost} of {done.step.widths[unit]} removed</figcaption>"
            f"{scores_chart(done, unit)}</figure>"
            for unit, lost in done.outcome.chosen.items()
            if unit in done.scores.values
        ]
        if figures:
            grid = '<div class="grid">' + "".join(figures) + "</div>"
            folds.append(folded(_round_title(done), grid, _unfolded(run, done.outcome.number)))
    if not folds:
        return ""
    words = (
        f"Each channel has a score ({_metric(run)}); higher is better. The bars count channels by their score. "
        "Channels to the left of the cut were removed."
    )
    return section("Scores and the cut", paragraph(words), key(("orange", "removed"), ("blue", "kept")), *folds)


def _metric(run: FinishedRun) -> str:
    """The metric with its options, as in gsd:ridge=0; those in its name come before `metric_options`."""
    given: Any = run.settings.metric
    name, *parts = given.split(":") if isinstance(given, str) else [""]
    scored_by = run.rounds[0].scores.metric
    in_name = dict(part.partition("=")[::2] for part in parts) if name == scored_by else {}
    options = {**run.settings.metric_options, **in_name}
    return ":".join([scored_by, *(f"{key}={value}" for key, value in options.items())])


# The section that shows the weakest channels, which were removed, and the strongest ones, on a few images.


def channels(run: FinishedRun) -> str:
    """Weakest and strongest channels; "" if the run saved no pictures, or if its first round was undone."""
    found = run.pictures
    if found is None or not run.rounds:
        return ""
    inputs = image_strip(found.images)
    figures = [_unit(run, unit, found, inputs) for unit in found.units]
    words = (
        "The response of a channel, pixel by pixel, to a few held-out images. In each unit, the weakest channels were "
        "removed in round 1 and the strongest were kept. Dark blue is the lowest and yellow the highest response in "
        "the unit, on the same scale for all its channels: a row that is dark throughout hardly responds to any image."
    )
    return section(
        "Responses of removed and kept channels",
        paragraph(words),
        '<div class="units">' + "".join(figures) + "</div>",
    )


def _unit(run: FinishedRun, unit: UnitPictures, found: RunPictures, inputs: str) -> str:
    round_one = run.rounds[0]
    lost, width = round_one.outcome.chosen.get(unit.unit, 0), round_one.step.widths.get(unit.unit, 0)
    said = ", ".join(found.labels)
    rows = [_row("images", inputs, f"Input images: {said}.", said)]
    for shown, maps in zip(unit.shown, unit.maps, strict=True):
        alt = (
            f"Responses of channel {shown.channel} of {unit.unit} ({_fate(shown)}) to images of {said}: "
            f"on average {_means(shown)}."
        )
        title = (
            f"channel {shown.channel}, {_fate(shown)}: score {shown.score:.3g}; mean response {_means(shown)}; "
            f"colours from {unit.low:.3g} to {unit.high:.3g}"
        )
        rows.append(_row(f"channel {shown.channel}, {_fate(shown)}", map_strip(maps), alt, title, shown.removed))
    caption = f"<b>{escape(unit.unit)}</b>, {lost} of {width} removed in round 1"
    return f'<figure class="maps"><figcaption>{caption}</figcaption>{"".join(rows)}</figure>'


def _fate(shown: ShownChannel) -> str:
    return "removed" if shown.removed else "kept"


def _means(shown: ShownChannel) -> str:
    return ", ".join(f"{mean:.2g}" for mean in shown.means)


def _row(name: str, uri: str, alt: str, title: str, removed: bool = False) -> str:
    kind = ' class="gone"' if removed else ""
    picture = f'<img src="{uri}" alt="{escape(alt)}" title="{escape(title)}">'
    return f"<div{kind}><span>{escape(name)}</span>{picture}</div>"


# The quality of each class before and after, the worst first, and which classes are taken for which.

MOST_ROWS = 50  # classes in a table
MOST_IN_PICTURE = 20  # classes in a picture of confusions
MOST_PAIRS = 15  # pairs in a table of confusions
OLD = "Runs of earlier versions have none, nor have tasks without classes and evaluations of your own."


def classes(run: FinishedRun) -> str:
    """The section of a run's report; "" if the run has no figures of classes."""
    found = run.classes
    if found is None:
        return ""
    listed = found.worst_first()
    rows = [_row_class_section(place, found, number) for place, number in enumerate(listed[:MOST_ROWS])]
    table = sorting_table(_headings(found), rows, f"{found.quality} of each class", first=False)
    words = f"{_title(found)} of each class on the {found.part} images, the lowest after pruning first."
    return section(f"{_title(found)} of each class", paragraph(words + left_out(found)), table, confusions(found))


def left_out(found: ClassTable) -> str:
    """What a table of the worst classes does not show."""
    listed, absent = len(found.worst_first()), sum(value is None for value in found.after.values)
    more = f" The table has the lowest {MOST_ROWS} of {listed} classes." if listed > MOST_ROWS else ""
    return more + (f" Left out because they do not occur: {absent}." if absent else "")


def _title(found: ClassTable) -> str:
    return found.quality[:1].upper() + found.quality[1:]


def _headings(found: ClassTable) -> tuple[str, ...]:
    return "class", found.of, "before", "after", "change"


def _row_class_section(place: int, found: ClassTable, number: int) -> str:
    was, now = found.before.values[number], found.after.values[number]
    cells = [(found.names[number], float(number), ""), (f"{found.sizes[number]:,}", float(found.sizes[number]), "")]
    cells += [value_cell(was), value_cell(now)]
    change = None if was is None or now is None else now - was
    cells.append(("–", 0.0, "") if change is None else (points(change), change, ""))
    return sorting_row(place, cells)


def value_cell(value: float | None) -> tuple[str, float, str]:
    """A cell of a sorting table."""
    return ("–", -1.0, "") if value is None else (percent(value), value, "")


# -- confusions


def confusions(found: ClassTable) -> str:
    """Which classes are taken for which: a picture of few classes, or a table of the most frequent pairs."""
    if found.after.confused is None or found.before.confused is None:
        return ""
    if not found.after.confused and not found.before.confused:
        return paragraph("No class is taken for another.")
    if not (found.after.complete and found.before.complete):
        return _pairs(found)
    return _picture(found, found.worst_first()[:MOST_IN_PICTURE])


def _picture(found: ClassTable, shown: Sequence[int]) -> str:
    """A table of counts in which frequent confusions are dark."""
    was = {(row, column): number for row, column, number in found.before.confused or ()}
    now = {(row, column): number for row, column, number in found.after.confused or ()}
    order = sorted(shown)
    most = max([now.get((a, b), 0) for a in order for b in order] + [1])
    head = "".join(f'<th scope="col"><span>{escape(found.names[number])}</span></th>' for number in order)
    rows = []
    for a in order:
        cells = "".join(_cell(found, (a, b), (was.get((a, b), 0), now.get((a, b), 0)), most) for b in order)
        rows.append(f'<tr><th scope="row">{escape(found.names[a])}</th>{cells}</tr>')
    some = f" of the {len(order)} classes with the lowest {found.quality}" if len(order) < len(found.sizes) else ""
    words = (
        f"Which classes{some} are taken for which after pruning: a row is the true class, a column what the network "
        f"said, a number how many {found.of}. An outline marks what became more frequent."
    )
    label = f"Confusions of {len(order)} classes after pruning"
    table = f'<table class="heat" aria-label="{label}"><thead><tr><td></td>{head}</tr></thead>'
    return paragraph(words) + f'<div class="scroll">{table}<tbody>{"".join(rows)}</tbody></table></div>'


def _cell(found: ClassTable, pair: tuple[int, int], counts: tuple[int, int], most: int) -> str:
    a, b = pair
    if a == b:
        return f'<td class="right" title="{escape(found.names[a])}: recognised"></td>'
    was, now = counts
    title = f"{found.names[a]} taken for {found.names[b]}: {now:,} after, {was:,} before"
    kind = ' class="more"' if now > was else ""
    shown = f"{now:,}" if now else ""
    return f'<td{kind} style="--heat:{70 * now / most:.0f}%" title="{escape(title)}">{shown}</td>'


def _pairs(found: ClassTable) -> str:
    """The most frequent confusions after pruning."""
    was = {(row, column): number for row, column, number in found.before.confused or ()}
    rows = []
    for place, (a, b, now) in enumerate((found.after.confused or ())[:MOST_PAIRS]):
        before = was.get((a, b))
        shown = "–" if before is None else f"{before:,}"
        cells = [(found.names[a], float(a), ""), (found.names[b], float(b), "")]
        cells += [(shown, float(before or 0), ""), (f"{now:,}", float(now), "")]
        rows.append(sorting_row(place, cells, words=(1,)))
    headings = ("class", "taken for", f"{found.of} before", f"{found.of} after")
    table = sorting_table(headings, rows, "Classes that are taken for each other", first=False, words=(1,))
    return paragraph(f"The {len(rows)} most frequent confusions after pruning.") + table


# The section about time: both networks at each batch size, with the spread of the turns.

BARS_LATENCY_SECTION, END_LATENCY_SECTION = 26.0, 70.0  # per cent of the width


def latencies(run: FinishedRun) -> str:
    """The section; "" for networks that were not timed and for runs of earlier versions, which have no spread."""
    if not run.before.quartiles or not run.after.quartiles:
        return ""
    words = (
        "Time of a forward pass on the machine of the run, in PyTorch. A bar is the median over turns that the two "
        "networks took alternately, and the line across its end goes from the lower to the upper quartile. Speed-ups "
        "are medians over pairs of turns, with their 95% intervals."
    )
    keys = key(("blue", "after"), ("pale", "before"))
    return section("Time of a forward pass", paragraph(words), keys, f"<figure>{latency_chart(run)}</figure>")


def latency_chart(run: FinishedRun) -> str:
    """Two bars for each batch size, and the speed-up with its interval."""
    body, y = [], 0.0
    for size in run.before.latency:
        sides = [
            (word, f.latency[size], f.quartiles[size]) for word, f in (("before", run.before), ("after", run.after))
        ]
        scale = svg.Scale(0, max(high for _, _, (_, high) in sides), BARS_LATENCY_SECTION, END_LATENCY_SECTION)
        body.append(svg.name(y + 14, count(int(size), "image"), "strong"))
        for word, median, (low, high) in sides:
            title = f"{count(int(size), 'image')}, {word}: {milliseconds(median)}, quartiles {milliseconds(low)} to "
            title += milliseconds(high)
            kind = "kept" if word == "after" else "lost"
            body.append(svg.rect(BARS_LATENCY_SECTION, y + 4, scale(median) - BARS_LATENCY_SECTION, BAR, kind, title))
            body.append(svg.line(scale(low), y + 4 + BAR / 2, scale(high), y + 4 + BAR / 2, "spread", title))
            body.append(svg.text(scale(high) + 1, y + 14, milliseconds(median), "small"))
            y += ROW
        found = run.speedup.get(size)
        known = found is not None and found.measurable
        said = f"{str(found).replace('x', '×')} the speed" if known else NO_DIFFERENCE
        body.append(svg.text(BARS_LATENCY_SECTION, y + 12, said, "small"))
        y += ROW + 8
    label = f"Time of a forward pass before and after, at {len(run.before.latency)} batch sizes, with quartiles."
    return svg.chart(body, y, label, "latency")


# The section about a goal in time: seconds of each layer, before and after.


def layer_times(run: FinishedRun) -> str:
    """Time of each layer; empty if the goal was not in time."""
    time = run.time
    if time is None:
        return ""
    threads = f"{time.threads} thread{'s' if time.threads != 1 else ''}"
    words = (
        f"Time of each layer in {time.engine} for a batch of {time.batch}, on {threads}: layers were timed alone, each "
        "with its batch norm and activation. What is not a layer (additions, pooling, overhead) is the rest. The split "
        "was made by these times; the speed-up above was measured on the whole network."
    )
    keys = key(("blue", "after"), ("pale", "before"))
    return section("Time of each layer", paragraph(words), keys, f"<figure>{layer_times_chart(time)}</figure>")


def layer_times_chart(time: SpeedFigures) -> str:
    """Seconds of each layer: before in grey, after in blue."""
    across = svg.Scale(0, max(max(0.0, *both) for both in time.layers.values()) or 1.0, BARS, END)
    body = []
    for i, (name, (before, after)) in enumerate(time.layers.items()):
        y = i * ROW + 4
        title = f"{name}: {milliseconds(before)} before, {milliseconds(after)} after ({change(before, after)})"
        changed = abs(after - before) > 0.005 * abs(before)
        body.append(svg.name(y + 10, name, "strong" if changed else ""))
        body.append(svg.rect(BARS, y, across(max(0.0, before)) - BARS, BAR, "lost", title))
        body.append(svg.rect(BARS, y, across(max(0.0, after)) - BARS, BAR, "kept", title))
        words = f"{milliseconds(after)}, was {milliseconds(before)}" if changed else milliseconds(before)
        body.append(svg.text(across(max(0.0, before, after)) + 1, y + 10, words, "small"))
    label = f"Time of {len(time.layers)} layers before and after."
    return svg.chart(body, len(time.layers) * ROW + 6, label, "times")


# The section that shows what the repair did to each layer.

THIN, ROW_REPAIR_SECTION = 7, 19  # pixels: a bar, and the two bars of a layer with their gap


def repairs(run: FinishedRun) -> str:
    """The error of each repaired layer before and after, in each round."""
    folds = [
        folded(f"Round {done.outcome.number}", f"<figure>{errors_chart(done)}</figure>", place == 0)
        for place, done in enumerate(done for done in run.rounds if done.outcome.layer_errors)
    ]
    if not folds:
        return ""
    words = (
        "Error of each layer that was repaired: the mean squared difference between its outputs and those of the "
        "network that the repair aims at, in per cent of their variance, on the images of the repair. 100% is as bad "
        "as a constant."
    )
    keys = key(("orange", "as cut, behind repaired layers"), ("blue", "repaired"))
    return section("Error of each layer", paragraph(words), keys, *folds)


def errors_chart(done: Round) -> str:
    """Two bars per layer: its relative error before and after its repair."""
    errors = done.outcome.layer_errors
    finite = [100 * value for pair in errors.values() for value in pair if math.isfinite(value)]
    across = svg.Scale(0.0, max(1e-9, *finite, 0.0), BARS, END)
    body = []
    for i, (name, pair) in enumerate(errors.items()):
        y = i * ROW_REPAIR_SECTION + 3
        title = f"{name}: error of {_shown(pair[0])} as cut, {_shown(pair[1])} repaired"
        body.append(svg.name(y + 11, name))
        for place, (kind, value) in enumerate(zip(("cut", "kept"), pair, strict=True)):
            end = across(100 * value if math.isfinite(value) else across.high)
            body.append(svg.rect(across(0), y + place * THIN, max(end - across(0), 0.3), THIN, kind, title))
        right = max(across(100 * value if math.isfinite(value) else across.high) for value in pair)
        body.append(svg.text(right + 1, y + 11, f"{_shown(pair[0])} → {_shown(pair[1])}", "small"))
    body.append(svg.line(across(0), 0, across(0), len(errors) * ROW_REPAIR_SECTION, "axis"))
    label = f"Round {done.outcome.number}: error of {len(errors)} layers before and after their repair."
    return svg.chart(body, len(errors) * ROW_REPAIR_SECTION + 6, label, "errors")


def _shown(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{100 * value:.2g}%" if value < 0.1 else f"{100 * value:.0f}%"
