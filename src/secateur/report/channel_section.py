"""The section that shows the weakest channels, which were removed, and the strongest ones, on a few images."""

from __future__ import annotations

from html import escape

from secateur.pictures.png_strips import image_strip, map_strip
from secateur.pictures.run_pictures import RunPictures, ShownChannel, UnitPictures
from secateur.report.finished_run import FinishedRun
from secateur.report.html import paragraph, section


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
