"""A figure of the sensitivity of every unit: one value per unit, or Li et al.'s curves over ratios."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from prunus.decide.sensitivity import Sensitivity

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#999999"  # colour-blind readers can distinguish them


def draw_sensitivity(found: Sensitivity, chosen: Collection[str], path: str | Path) -> None:
    """Write a PNG or SVG: the held-out accuracy (or loss) when each unit alone loses channels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7.0, 0.22 * len(found.tried) + 2), 4.4), layout="constrained")
    axes = figure.add_subplot()
    if found.curves:
        _curves(axes, found)
    else:
        _bars(axes, found, chosen)
    figure.savefig(path, dpi=150)


def _level(found: Sensitivity, value: float) -> float:
    """Accuracy in per cent; the loss unchanged."""
    return (
        100 * value
        if found.unit == "%" or found.measure == "accuracy"
        else (-value if found.measure == "loss" else value)
    )


def _name(found: Sensitivity) -> str:
    if found.unit == "%" or found.measure == "accuracy":
        return f"held-out {found.measure} (%)"
    return "held-out loss" if found.measure == "loss" else found.measure


def _bars(axes: Any, found: Sensitivity, chosen: Collection[str]) -> None:
    """A line from the original network's value to each unit's, with a dot that is visible even if nothing is lost."""
    names = list(found.tried)
    base = _level(found, found.base_value)
    for picked, colour, label in ((True, BLUE, "chosen"), (False, GREY, "not chosen")):
        places = [i for i, n in enumerate(names) if (n in chosen) == picked]
        values = [_level(found, found.tried[names[i]].value) for i in places]
        axes.vlines(places, base, values, color=colour, linewidth=3)
        axes.scatter(places, values, color=colour, s=28, zorder=3, label=label)
    axes.axhline(base, color=ORANGE, linewidth=1.2, zorder=1, label="original network")
    axes.set_xticks(range(len(names)), [f"{n} (-{found.tried[n].channels})" for n in names], rotation=90, fontsize=7)
    axes.set_xlabel("unit (channels lost)")
    axes.set_ylabel(_name(found))
    saved = {"macs": "MACs", "params": "weights"}.get(found.cost, found.cost)
    axes.set_title(f"Every unit loses channels worth the same {saved} (alpha {found.alpha:.2g}); no retraining")
    axes.set_xlim(-0.8, len(names) - 0.2)
    axes.figure.legend(ncols=3, loc="outside lower center", frameon=False, fontsize=8)


def _curves(axes: Any, found: Sensitivity) -> None:
    from matplotlib import colormaps

    colours = colormaps["viridis"]
    for i, (name, curve) in enumerate(found.curves.items()):
        shares = [0.0, *(100 * row.channels / row.width for row in curve)]
        values = [_level(found, found.base_value), *(_level(found, row.value) for row in curve)]
        axes.plot(shares, values, color=colours(i / max(1, len(found.curves) - 1)), linewidth=1, label=name)
    axes.set_xlabel("channels removed from the unit (%)")
    axes.set_ylabel(_name(found))
    axes.set_title("Sensitivity of each unit, first (dark) to last (light), no retraining")
    if len(found.curves) <= 12:
        axes.legend(fontsize=7, loc="lower left")
