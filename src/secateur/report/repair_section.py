"""The section that shows what the repair did to each layer."""

from __future__ import annotations

import math

from secateur.report import svg
from secateur.report.finished_run import FinishedRun, Round
from secateur.report.html import folded, key, paragraph, section
from secateur.report.run_charts import BARS, END

THIN, ROW = 7, 19  # pixels: a bar, and the two bars of a layer with their gap


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
        y = i * ROW + 3
        title = f"{name}: error of {_shown(pair[0])} as cut, {_shown(pair[1])} repaired"
        body.append(svg.name(y + 11, name))
        for place, (kind, value) in enumerate(zip(("cut", "kept"), pair, strict=True)):
            end = across(100 * value if math.isfinite(value) else across.high)
            body.append(svg.rect(across(0), y + place * THIN, max(end - across(0), 0.3), THIN, kind, title))
        right = max(across(100 * value if math.isfinite(value) else across.high) for value in pair)
        body.append(svg.text(right + 1, y + 11, f"{_shown(pair[0])} → {_shown(pair[1])}", "small"))
    body.append(svg.line(across(0), 0, across(0), len(errors) * ROW, "axis"))
    label = f"Round {done.outcome.number}: error of {len(errors)} layers before and after their repair."
    return svg.chart(body, len(errors) * ROW + 6, label, "errors")


def _shown(value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{100 * value:.2g}%" if value < 0.1 else f"{100 * value:.0f}%"
