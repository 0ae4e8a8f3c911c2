"""HTML elements that all sections use. Text is escaped here."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

from prunus.report.read import FinishedRun, LayerCost, Pair
from prunus.report.style import CSS, JAVASCRIPT
from prunus.report.text import big, percent


def section(title: str, *parts: str) -> str:
    """A section with its heading; empty parts are left out."""
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{inside}\n</section>"


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(words)}</p>' if kind else f"<p>{escape(words)}</p>"


def key(*rows: tuple[str, str]) -> str:
    """The legend of a chart."""
    return '<ul class="key">' + "".join(f'<li class="{kind}">{escape(words)}</li>' for kind, words in rows) + "</ul>"


def folded(title: str, inside: str, unfolded: bool) -> str:
    """Content that is shown when the reader clicks its title."""
    return f"<details{' open' if unfolded else ''}><summary>{escape(title)}</summary>\n{inside}\n</details>"


# The HTML document around every page: its head, content policy, style and script.

REPORT = "report.html"
# The page may use only what it contains: nothing is loaded from elsewhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def document(title: str, body: str, refresh: int | None = None) -> str:
    """A complete page; `body` is HTML, `title` is plain text. refresh: seconds until the browser loads it again."""
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh}">\n'
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
{again}<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
{body}
</main>
<script>{JAVASCRIPT}</script>
</body>
</html>
"""


# An SVG file as part of a page, so that its tooltips work.

# Our pictures never contain these: they could run code or load something.
FOREIGN = re.compile(
    r"""<script|<foreignObject|\son\w+\s*=|href\s*=\s*["'](?!#|data:image/)|url\((?!#)|@import""", re.I
)


def inline(svg: str, alt: str) -> str:
    """The drawing as an element of the page, with `alt` as its text for screen readers.

    What only a file needs (XML header, namespaces, metadata) is left out. So are ids that nothing refers to, because
    two drawings in one page must not share an id. A drawing with code or links in it becomes an image, in which nothing
    can run.
    """
    start = svg.find("<svg")
    if start < 0 or FOREIGN.search(_without_metadata(svg[start:])):
        return f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" alt="{escape(alt)}">'
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", _without_metadata(svg[start:]))
    # This rule would apply to the whole page.
    text = re.sub(r"<style[^>]*>\*\{(.*?)\}</style>", r"<style>.plot svg *{\1}</style>", text)
    wanted = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r'\sid="([^"]*)"', lambda found: found[0] if found[1] in wanted else "", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1).strip()


def _without_metadata(svg: str) -> str:
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


# Tables that the reader can sort: headings are buttons, and the page's script sorts by their column.

HEADINGS = (
    "layer",
    "inputs",
    "outputs",
    "MACs before",
    "MACs after",
    "MACs removed",
    "weights before",
    "weights after",
)


def layer_table(layers: Mapping[str, LayerCost]) -> str:
    """One row per layer, in the order of the network."""
    rows = [_row(i, name, layer) for i, (name, layer) in enumerate(layers.items())]
    return sorting_table(HEADINGS, rows, "Layers before and after")


def sorting_table(
    headings: Sequence[str], rows: Sequence[str], label: str, *, first: bool = True, words: Collection[int] = ()
) -> str:
    """A table that the page's script sorts; `sorting_row` makes the rows.

    first: whether the rows are already sorted by the first column. words: columns of text instead of numbers.
    """
    heads = []
    for i, heading in enumerate(headings):
        order = ' aria-sort="ascending"' if first and i == 0 else ""
        kind = ' class="words"' if i in words else ""
        heads.append(f'<th scope="col"{order}{kind}><button type="button">{escape(heading)}</button></th>')
    inside = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="sorts" aria-label="{escape(label)}">'
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{inside}\n</tbody></table></div>"
    )


def sorting_row(place: int, cells: Sequence[tuple[str, float, str]], words: Collection[int] = ()) -> str:
    """A row of (text, value to sort by, tooltip)."""
    inside = []
    for i, (shown, value, title) in enumerate(cells):
        more = f' title="{escape(title)}"' if title else ""
        kind = ' class="words"' if i in words else ""
        inside.append(f'<td data-value="{value}"{more}{kind}>{escape(shown)}</td>')
    return f'<tr data-place="{place}">{"".join(inside)}</tr>'


def _row(place: int, name: str, layer: LayerCost) -> str:
    was, now = layer.macs
    gone = 1 - now / was if was else 0.0
    cells = [
        (name, place),
        (_width(layer.inputs), layer.inputs[1]),
        (_width(layer.outputs), layer.outputs[1]),
        (big(was), was),
        (big(now), now),
        (percent(gone) if gone else "–", gone),
        (big(layer.params[0]), layer.params[0]),
        (big(layer.params[1]), layer.params[1]),
    ]
    return sorting_row(place, [(words, value, "") for words, value in cells])


def _width(pair: Pair) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]} → {pair[1]}"


# Buttons that save the figures of a page as files. The figures are in the page: no network is needed.


def downloads(files: Mapping[str, str]) -> str:
    """A section with one button for each file: name -> content."""
    buttons = [
        f'<button type="button" class="download" data-file="{escape(name)}">{escape(name)}</button>' for name in files
    ]
    inside = json.dumps(dict(files)).replace("<", "\\u003c")  # nothing in it can end the script
    kept = f'<script type="application/json" id="downloads">{inside}</script>'
    words = "The figures of this page, to save as files:"
    return section("Data", paragraph(words), f'<p class="downloads">{" ".join(buttons)}</p>{kept}')


def run_files(run: FinishedRun) -> dict[str, str]:
    """The figures of a run: all as JSON, and each table as CSV."""
    files = {"run.json": as_json(_figures(run)), "layers.csv": _layers(run), "units.csv": _units(run)}
    files |= {"rounds.csv": _rounds(run), "epochs.csv": _epochs(run)}
    if run.classes is not None:
        found = run.classes
        rows = zip(found.names, found.sizes, found.before.values, found.after.values, strict=False)
        files["classes.csv"] = as_csv(("class", found.of, f"{found.quality} before", f"{found.quality} after"), rows)
    return files


def as_json(value: Any) -> str:
    """JSON text, in which numbers that are not finite are null."""
    return f"{json.dumps(_finite(value), indent=1, default=str)}\n"


def as_csv(headings: Sequence[str], rows: Any) -> str:
    """CSV text; None is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return out.getvalue()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _figures(run: FinishedRun) -> dict[str, Any]:
    sides = {}
    for name, side in (("before", run.before), ("after", run.after)):
        words = {**vars(side), "holdout": vars(side.holdout), "test": None if side.test is None else vars(side.test)}
        sides[name] = words
    return {
        "model": run.model,
        "command_line": run.command_line,
        "quality": vars(run.quality),
        **sides,
        "speedup": {size: vars(found) for size, found in run.speedup.items()},
        "notes": run.notes,
        "rounds": [_round(run, done.outcome.to_dict()) for done in run.rounds],
        "units": {name: vars(unit) for name, unit in run.units.items()},
        "layers": {name: vars(layer) for name, layer in run.layers.items()},
        "seconds": run.seconds,
        "versions": run.versions,
    }


def _round(run: FinishedRun, words: dict[str, Any]) -> dict[str, Any]:
    """A round, in which the quality over training batches has its own name."""
    epochs = [{run.quality.name if key == "accuracy" else key: v for key, v in e.items()} for e in words["retraining"]]
    return {**words, "retraining": epochs}


def _layers(run: FinishedRun) -> str:
    kinds = ("inputs", "outputs", "macs", "params")
    headings = ["layer", *(f"{kind} {when}" for kind in kinds for when in ("before", "after"))]
    rows = [[name, *(n for kind in kinds for n in getattr(layer, kind))] for name, layer in run.layers.items()]
    return as_csv(headings, rows)


def _units(run: FinishedRun) -> str:
    rows = [(name, unit.kind, unit.width, unit.kept) for name, unit in run.units.items()]
    return as_csv(("unit", "kind", "width", "kept"), rows)


def _rounds(run: FinishedRun) -> str:
    name = run.quality.name
    headings = ("round", "macs", "weights", f"{name} before", f"{name} pruned", f"{name} after", "channels removed")
    outcomes = [done.outcome for done in run.rounds]
    rows = [
        (o.number, o.macs, o.params, o.before.quality, o.pruned.quality, o.after.quality, sum(o.chosen.values()))
        for o in outcomes
    ]
    return as_csv(headings, rows)


def _epochs(run: FinishedRun) -> str:
    headings = ("round", "epoch", "learning rate", "training loss", "held-out loss", f"held-out {run.quality.name}")
    rows = []
    for done in run.rounds:
        for e in done.outcome.retraining:
            held = (None, None) if e.holdout is None else (e.holdout.loss, e.holdout.quality)
            rows.append((done.outcome.number, e.number, e.lr, e.loss, *held))
    return as_csv(headings, rows)
