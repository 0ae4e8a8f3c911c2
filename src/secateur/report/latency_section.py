"""The section about time: both networks at each batch size, with the spread of the turns."""

from __future__ import annotations

from secateur.measuring.speedup import NO_DIFFERENCE
from secateur.report import svg
from secateur.report.finished_run import FinishedRun
from secateur.report.html import key, paragraph, section
from secateur.report.number_formats import count, milliseconds
from secateur.report.run_charts import BAR, ROW

BARS, END = 26.0, 70.0  # per cent of the width


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
        scale = svg.Scale(0, max(high for _, _, (_, high) in sides), BARS, END)
        body.append(svg.name(y + 14, count(int(size), "image"), "strong"))
        for word, median, (low, high) in sides:
            title = f"{count(int(size), 'image')}, {word}: {milliseconds(median)}, quartiles {milliseconds(low)} to "
            title += milliseconds(high)
            kind = "kept" if word == "after" else "lost"
            body.append(svg.rect(BARS, y + 4, scale(median) - BARS, BAR, kind, title))
            body.append(svg.line(scale(low), y + 4 + BAR / 2, scale(high), y + 4 + BAR / 2, "spread", title))
            body.append(svg.text(scale(high) + 1, y + 14, milliseconds(median), "small"))
            y += ROW
        found = run.speedup.get(size)
        known = found is not None and found.measurable
        said = f"{str(found).replace('x', '×')} the speed" if known else NO_DIFFERENCE
        body.append(svg.text(BARS, y + 12, said, "small"))
        y += ROW + 8
    label = f"Time of a forward pass before and after, at {len(run.before.latency)} batch sizes, with quartiles."
    return svg.chart(body, y, label, "latency")
