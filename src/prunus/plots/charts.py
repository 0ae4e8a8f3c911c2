"""Charts of measurements: times in a latency table, the sensitivity of every unit, and quality over speed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prunus.deciding.sensitivity import Sensitivity
from prunus.plots.style import BLUE, GREY, ORANGE, PAGE, RULE, figure, legend, line, styled
from prunus.timing.latency import Speedup
from prunus.timing.latency_table import LatencyTable, LayerTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS, COLUMNS = 6, 3
DOTS = tuple({**line(number), "linestyle": "none"} for number in range(2))


def draw_latency(table: LatencyTable, title: str) -> Figure:
    """Milliseconds of the layer shapes that take most of the time: over the outputs with all inputs, and over the
    inputs with all outputs. Steps are those of the engine's kernels."""
    shapes = longest_shapes(table)
    rows = -(-len(shapes) // COLUMNS)
    fig, panels = figure(PAGE, 0.9 + 1.9 * rows, rows, COLUMNS, squeeze=False)
    with styled():
        for axes, (names, times) in zip(panels.flat, shapes.items(), strict=False):
            grid = 1e3 * times.grid
            axes.plot(times.outputs, grid[-1], label="outputs, all inputs", **line(0))
            axes.plot(times.inputs, grid[:, -1], label="inputs, all outputs", **line(1))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            axes.set_title(f"{names[0]}{more}\n{times.inputs[-1]} to {times.outputs[-1]}", fontsize=7.5)
            axes.set_ylim(0, 1.1 * grid.max())
            axes.set_xlabel("channels")
        for axes in panels.flat[len(shapes) :]:
            axes.set_visible(False)
        fig.suptitle(f"{title}\n{table.measured_with}", fontsize=8.5)
        fig.supylabel("milliseconds per batch", fontsize=8.5)
    legend(fig, panels.flat[0], where="below", columns=2)
    return fig


def longest_shapes(table: LatencyTable, count: int = PANELS) -> Mapping[tuple[str, ...], LayerTimes]:
    """The layer shapes that take most time in all: names of the layers of that shape -> times of one of them."""
    shapes: dict[tuple[object, ...], list[str]] = {}
    for name, times in table.layers.items():
        shapes.setdefault((table.layers[name], times.inputs[-1], times.outputs[-1]), []).append(name)
    total = {tuple(names): sum(table.layers[n].seconds[-1][-1] for n in names) for names in shapes.values()}
    longest = sorted(total, key=lambda names: -total[names])[:count]
    return {names: table.layers[names[0]] for names in longest}


def draw_sensitivity(measured: Sensitivity, chosen: Collection[str], path: str | Path) -> None:
    """Write a PNG or SVG: the held-out quality (or loss) when each unit alone loses channels.

    With curves over several ratios (Li et al.), a line for each unit. Otherwise a line from the original network's
    value to each unit's, with a dot that is visible even if nothing is lost.
    """
    from matplotlib import colormaps

    def level(value: float) -> float:
        """As the axis shows it: fractions in per cent, and the loss, which is ranked by its negative, as it is."""
        return 100 * value if measured.unit == "%" else -value if measured.measure == "loss" else value

    names, base = list(measured.tried), level(measured.base_value)
    fig, axes = figure(max(PAGE, 0.22 * len(names) + 2), 4.4)
    with styled():
        axes.set_ylabel(f"held-out {measured.measure}{' (%)' if measured.unit == '%' else ''}")
        if measured.curves:
            colours = colormaps["viridis"](np.linspace(0, 1, len(measured.curves)))
            for colour, (name, curve) in zip(colours, measured.curves.items(), strict=True):
                shares = [0.0, *(100 * row.channels / row.width for row in curve)]
                axes.plot(shares, [base, *(level(row.value) for row in curve)], color=colour, linewidth=1, label=name)
            axes.set_xlabel("channels removed from the unit (%)")
            axes.set_title("Sensitivity of each unit, first (dark) to last (light), no retraining")
            if len(measured.curves) <= 12:
                axes.legend(fontsize=7, loc="lower left")
        else:
            for is_chosen, colour, label in ((True, BLUE, "chosen"), (False, GREY, "not chosen")):
                places = [i for i, name in enumerate(names) if (name in chosen) == is_chosen]
                values = [level(measured.tried[names[i]].value) for i in places]
                axes.vlines(places, base, values, color=colour, linewidth=3)
                axes.scatter(places, values, color=colour, s=28, zorder=3, label=label)
            axes.axhline(base, color=ORANGE, linewidth=1.2, zorder=1, label="original network")
            labels = [f"{name} (-{measured.tried[name].channels})" for name in names]
            axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=7)
            axes.set_xlabel("unit (channels lost)")
            saved = {"macs": "MACs", "params": "weights"}.get(measured.cost, measured.cost)
            title = f"Every unit loses channels worth the same {saved} (alpha {measured.alpha:.2g}); no retraining"
            axes.set_title(title)
            axes.set_xlim(-0.8, len(names) - 0.2)
            legend(fig, axes, where="below", columns=3)
        fig.savefig(path, dpi=150)


def draw_curve(speeds: Sequence[Speedup], values: Sequence[float], base: float, quality: str, title: str) -> Figure:
    """Quality over measured speed-up, with the 95% interval of the speed-up, from the original network at 1.

    Args:
        speeds: Of the pruned networks.
        values: Their quality, as the axis shows it.
        base: That of the original network.
        quality: Title of the axis.
        title: Of the picture.
    """
    ratios = [each.ratio for each in speeds]
    spread = [[each.ratio - each.low for each in speeds], [each.high - each.ratio for each in speeds]]
    order = np.argsort([1.0, *ratios])
    fig, axes = figure(PAGE, 3.6)
    with styled():
        axes.plot(np.array([1.0, *ratios])[order], np.array([base, *values])[order], color=RULE, zorder=1)
        axes.errorbar(ratios, values, xerr=spread, label="pruned", capsize=2, elinewidth=1, **DOTS[0])
        axes.plot([1.0], [base], label="original network", **DOTS[1])
        for ratio, value in zip(ratios, values, strict=True):
            axes.annotate(f"{value:.4g}", (ratio, value), (4, 5), textcoords="offset points", fontsize=7.5)
        axes.set_xlabel("measured speed-up")
        axes.set_ylabel(quality)
        axes.set_title(title)
        axes.margins(0.08, 0.15)
        legend(fig, axes, where="below", columns=2)
    return fig
