"""The sections that show rounds and units as charts."""

from __future__ import annotations

from html import escape
from typing import Any

from secateur.report.finished_run import FinishedRun, Round
from secateur.report.html import folded, key, paragraph, section
from secateur.report.number_formats import count, duration
from secateur.report.run_charts import cuts_chart, epochs_chart, rounds_chart, widths_chart
from secateur.report.training_charts import losses_chart, rates_chart
from secateur.report.unit_charts import lost_name, scores_chart, sensitivity_chart

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
