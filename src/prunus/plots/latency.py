"""The picture of a latency table: seconds of the layers that take longest, over their widths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prunus.plots.style import PAGE, figure, legend, line, styled
from prunus.timing.latency_table import LatencyTable, LayerTimes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS, COLUMNS = 6, 3


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
    for name, times in table.times.items():
        shapes.setdefault((table.layers[name], times.inputs[-1], times.outputs[-1]), []).append(name)
    total = {tuple(names): sum(table.times[n].seconds[-1][-1] for n in names) for names in shapes.values()}
    longest = sorted(total, key=lambda names: -total[names])[:count]
    return {names: table.times[names[0]] for names in longest}
