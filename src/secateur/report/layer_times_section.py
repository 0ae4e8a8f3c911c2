"""The section about a goal in time: seconds of each layer, before and after."""

from __future__ import annotations

from secateur.report import svg
from secateur.report.finished_run import FinishedRun, SpeedFigures
from secateur.report.html import key, paragraph, section
from secateur.report.number_formats import change, milliseconds
from secateur.report.run_charts import BAR, BARS, END, ROW


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
