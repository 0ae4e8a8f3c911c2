"""The parts of the page that show rounds and units as charts."""

from __future__ import annotations

from html import escape

from secateur.report.charts import cuts_chart, epochs_chart, rounds_chart, widths_chart
from secateur.report.html import folded, key, paragraph, section
from secateur.report.reading import Round, Run
from secateur.report.unit_charts import lost_name, scores_chart, sensitivity_chart
from secateur.report.words import count, duration

OPEN_ROUNDS = 2  # with more rounds than this, only the first is unfolded


def over_rounds(run: Run) -> str:
    """Accuracy against MACs, and what each cut did."""
    if not run.rounds:
        return ""
    keys = [("blue round", "held-out images"), *([("green round", "test images")] if run.after.test else [])]
    parts = [key(*keys), f"<figure>{rounds_chart(run)}</figure>"]
    cut = "just cut" if run.settings.repair == "none" else "cut and repaired"
    both = key(("orange round", f"held-out, {cut}"), ("blue round", "held-out, retrained"))
    cuts, epochs = cuts_chart(run), epochs_chart(run)
    if cuts:
        words = "What each cut left of the accuracy, and where retraining took it:"
        parts += [paragraph(words), both, f"<figure>{cuts}</figure>"]
    if epochs:
        parts += [paragraph("Retraining, epoch by epoch:"), both, f"<figure>{epochs}</figure>"]
    if run.undone > 0:
        parts.append(paragraph("A further round lost more accuracy than was allowed, and was taken back."))
    return section("Accuracy against MACs, round by round", *parts, _time(run))


def _time(run: Run) -> str:
    spent = ", ".join(f"{phase} {duration(seconds)}" for phase, seconds in run.seconds.items() if phase != "this_call")
    return paragraph(f"Time spent: {spent}.", "soft") if spent else ""


def widths(run: Run) -> str:
    """Channels of each unit, before and after."""
    if not run.units:
        return ""
    words = (
        "A unit is a set of channels that are kept or removed together. NAME:out are the channels that layer NAME "
        "makes; NAME:in are those that it picks from the stream of a residual network, where others may still use them."
    )
    keys = key(("blue", "kept"), ("pale", "removed"))
    return section("Widths before and after", paragraph(words), keys, f"<figure>{widths_chart(run)}</figure>")


def _unfolded(run: Run, number: int) -> bool:
    return number == 1 or len(run.rounds) <= OPEN_ROUNDS


def sensitivities(run: Run) -> str:
    """What each round found of each unit, with the chosen ones marked."""
    rows = [(r, sensitivity_chart(r)) for r in run.rounds]
    folds = [folded(_round_title(r), f"<figure>{c}</figure>", _unfolded(run, r.outcome.number)) for r, c in rows if c]
    first = next((r.sensitivity for r, c in rows if c), None)
    if first is None:
        return ""
    words = (
        f"How much the network misses each unit: {lost_name(first)} when the unit loses its weakest channels "
        "(how many: in brackets), before any retraining. The shorter the bar, the safer the cut."
    )
    return section(
        "Sensitivity of each unit", paragraph(words), key(("blue", "chosen"), ("grey", "left alone")), *folds
    )


def _round_title(done: Round) -> str:
    lost = sum(done.outcome.chosen.values())
    return f"Round {done.outcome.number}: {count(lost, 'channel')} from {count(len(done.outcome.chosen), 'unit')}"


def scores(run: Run) -> str:
    """The scores of the units that lost channels, with the cut."""
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
        f"Each channel has a score ({run.rounds[0].scores.metric}); higher means keep. The bars count channels, from "
        "weak (left) to strong (right). Channels left of the cut were removed."
    )
    return section("Scores and the cut", paragraph(words), key(("orange", "removed"), ("blue", "kept")), *folds)
