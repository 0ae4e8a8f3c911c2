"""Tables that the reader can sort: headings are buttons, and the page's script sorts by their column."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape

from secateur.report.finished_run import LayerCost, Pair
from secateur.report.number_formats import big, percent

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
