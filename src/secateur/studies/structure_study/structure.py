"""Weights and MACs of a pruned network beside the original's, by layer or by block (the supplement's tables)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.errors import PlanError

if TYPE_CHECKING:
    from secateur.studies.folder import StudyFolder

Row = dict[str, Any]
By = Literal["layer", "block"]
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
TOTAL = "total"

COLUMNS: Mapping[str, str] = {
    "part": "part",
    "layers": "layers",
    "params": "weights",
    "macs": "MACs",
    "params_pruned": "weights, pruned",
    "params_removed": "weights removed (%)",
    "macs_pruned": "MACs, pruned",
    "macs_removed": "MACs removed (%)",
}


def structure(graph: ChannelGraph, plan: Plan, by: By = "layer") -> list[Row]:
    """A row for each conv and linear layer or each block, and one for the total; keys as in COLUMNS.

    A block is the outermost module below the network itself that is no mere container (Sequential, ModuleList,
    ModuleDict): the blocks of a ResNet, shortcuts included. A layer outside of blocks stands alone.
    """
    if by not in get_args(By):
        raise PlanError(f"by should be one of {', '.join(get_args(By))}, not {by!r}")
    cost = graph.cost(plan)
    parts: dict[str, list[str]] = {}
    for name in graph.layers:
        parts.setdefault(name if by == "layer" else block_of(graph.model, name), []).append(name)
    rows = []
    for part, names in [*parts.items(), (TOTAL, list(graph.layers))]:
        before = [graph.layers[name] for name in names]
        after = [cost.layers[name] for name in names]
        row: Row = {"part": part, "layers": len(names)}
        for key in ("params", "macs"):
            was, now = sum(getattr(x, key) for x in before), sum(getattr(x, key) for x in after)
            row |= {key: was, f"{key}_pruned": now, f"{key}_removed": round(100 * (1 - now / was), 1) if was else 0.0}
        rows.append({key: row[key] for key in COLUMNS})
    return rows


def block_of(model: nn.Module, layer: str) -> str:
    """The outermost module around a layer that is neither the network nor a container; else the layer itself."""
    parts = layer.split(".")
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if not isinstance(model.get_submodule(name), CONTAINERS):
            return name
    return layer


def plan_of_widths(graph: ChannelGraph, widths: Sequence[int] | Mapping[str, int]) -> Plan:
    """A plan that leaves so many channels of each unit, the first ones: for counting, not for pruning.

    widths: unit -> channels, or a list in the order of the units; units that are not named stay whole.
    """
    if not isinstance(widths, Mapping):
        if len(widths) > len(graph.units):
            raise PlanError(
                f"{len(widths)} widths for {len(graph.units)} units; the units are {', '.join(graph.units)}"
            )
        widths = dict(zip(graph.units, widths, strict=False))
    for name, width in widths.items():
        if name not in graph.units:
            raise PlanError(f"no unit is called {name!r}; the units are {', '.join(graph.units)}")
        if not 1 <= width <= graph.units[name].width:
            raise PlanError(f"unit {name!r} has {graph.units[name].width} channels; {width} of them cannot be left")
    return Plan.of(graph, graph.balance({name: range(width) for name, width in widths.items()}))


def write_structure(rows: Sequence[Row], title: str, folder: StudyFolder, notes: Sequence[str] = ()) -> Path:
    """study.json, table.csv and a picture: MACs and weights of each part, original and pruned."""
    folder.start()
    pictures = [draw_structure([row for row in rows if row["part"] != TOTAL], title, folder.path)]
    return folder.finish(title, rows, pictures, notes, columns=COLUMNS)


def draw_structure(rows: Sequence[Row], title: str, folder: Path) -> dict[str, str]:
    """Bars for every part, what is left in front of what there was."""
    from secateur.pictures.drawing import COLOURS, PAGE, figure, save, styled

    fig, (left, right) = figure(PAGE, max(2.6, 0.16 * len(rows) + 1.0), columns=2, sharey=True)
    with styled():
        for axes, key, name in ((left, "macs", "MACs"), (right, "params", "weights")):
            most = max(row[key] for row in rows)
            scale, unit = next(((s, u) for s, u in ((1e9, "G"), (1e6, "M"), (1e3, "K")) if most >= s), (1.0, ""))
            places = range(len(rows))
            axes.barh(places, [row[key] / scale for row in rows], color="#cfd8dc", height=0.8, label="original")
            left_over = [row[f"{key}_pruned"] / scale for row in rows]
            axes.barh(places, left_over, color=COLOURS[0], height=0.5, label="pruned")
            axes.set(xlabel=f"{name} ({unit})" if unit else name)
            axes.grid(visible=False, axis="y")
        left.set_yticks(range(len(rows)), [row["part"] for row in rows])
        left.invert_yaxis()
        handles, labels = left.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=2)
        fig.suptitle(title, fontsize=9)
    alt = f"{title}: MACs and weights of {len(rows)} parts, original and pruned"
    return {"file": save(fig, folder, "structure"), "alt": alt, "caption": "Grey: original. Blue: pruned."}
