"""The table of layers. Headings are buttons; the page's script sorts by what they stand over."""

from __future__ import annotations

from collections.abc import Mapping
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
    heads = "".join(
        f'<th scope="col"{" aria-sort=" + chr(34) + "ascending" + chr(34) if i == 0 else ""}>'
        f'<button type="button">{escape(words)}</button></th>'
        for i, words in enumerate(HEADINGS)
    )
    rows = "\n".join(_row(i, name, layer) for i, (name, layer) in enumerate(layers.items()))
    return (
        f'<div class="scroll"><table class="sorts" aria-label="Layers before and after">'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(place: int, name: str, layer: LayerCost) -> str:
    was, now = layer.macs
    gone = 1 - now / was if was else 0.0
    cells = [
        (escape(name), place),
        (_width(layer.inputs), layer.inputs[1]),
        (_width(layer.outputs), layer.outputs[1]),
        (big(was), was),
        (big(now), now),
        (percent(gone) if gone else "–", gone),
        (big(layer.params[0]), layer.params[0]),
        (big(layer.params[1]), layer.params[1]),
    ]
    inside = "".join(f'<td data-value="{value}">{words}</td>' for words, value in cells)
    return f'<tr data-place="{place}">{inside}</tr>'


def _width(pair: Pair) -> str:
    return f"{pair[0]}" if pair[0] == pair[1] else f"{pair[0]} → {pair[1]}"
