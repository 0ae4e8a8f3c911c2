"""The table of layers. Headings are buttons; the page's script sorts by what they stand over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from secateur.report.reading import LayerCost, Pair
from secateur.report.words import big, percent

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
    """One row a layer, in the order of the network."""
    rows = [_row(i, name, layer) for i, (name, layer) in enumerate(layers.items())]
    return sorting_table(HEADINGS, rows, "Layers before and after")


def sorting_table(headings: Sequence[str], rows: Sequence[str], label: str, sorted_by_first: bool = True) -> str:
    """A table that the page's script sorts; the rows are made by `sorting_row`."""
    first = ' aria-sort="ascending"' if sorted_by_first else ""
    heads = "".join(
        f'<th scope="col"{first if i == 0 else ""}><button type="button">{escape(words)}</button></th>'
        for i, words in enumerate(headings)
    )
    inside = "\n".join(rows)
    return (
        f'<div class="scroll"><table class="sorts" aria-label="{escape(label)}">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{inside}\n</tbody></table></div>"
    )


def sorting_row(place: int, cells: Sequence[tuple[str, float, str]]) -> str:
    """A row from (what is shown, what it is sorted by, what it says when pointed at)."""
    inside = "".join(
        f'<td data-value="{value}"{f" title={chr(34)}{escape(title)}{chr(34)}" if title else ""}>{escape(words)}</td>'
        for words, value, title in cells
    )
    return f'<tr data-place="{place}">{inside}</tr>'


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
