"""Weights and MACs of a network before and after pruning, by layer or block (the supplement's tables)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from prunus.errors import PlanError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.cost import Cost
from prunus.graph.plan import Plan
from prunus.plots.style import COLOURS, PAGE, axis_scale, figure, save, styled
from prunus.studies.folder import StudyFolder, StudyRow
from prunus.util.registry import unknown

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


def structure(graph: ChannelGraph, plan: Plan, by: By = "layer") -> list[StudyRow]:
    """One row per conv and linear layer or per block, and one for the total, with the keys of COLUMNS.

    A block is the outermost module below the network that is not a container (Sequential, ModuleList, ModuleDict), such
    as a ResNet's blocks with their shortcuts. A layer outside of blocks has a row of its own.
    """
    if by not in get_args(By):
        raise PlanError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    cost = graph.cost(plan)
    parts: dict[str, list[str]] = {}
    for name in graph.layers:
        parts.setdefault(name if by == "layer" else block_of(graph.model, name), []).append(name)
    return [_row(graph, cost, part, names) for part, names in [*parts.items(), (TOTAL, list(graph.layers))]]


def _row(graph: ChannelGraph, cost: Cost, part: str, names: Sequence[str]) -> StudyRow:
    row: StudyRow = {"part": part, "layers": len(names)}
    for key in ("params", "macs"):
        was = sum(getattr(graph.layers[name], key) for name in names)
        now = sum(getattr(cost.layers[name], key) for name in names)
        row |= {key: was, f"{key}_pruned": now, f"{key}_removed": round(100 * (1 - now / was), 1) if was else 0.0}
    return {key: row[key] for key in COLUMNS}


def block_of(model: nn.Module, layer: str) -> str:
    """The outermost module around a layer that is not the network and not a container, or the layer itself."""
    parts = layer.split(".")
    for depth in range(1, len(parts)):
        name = ".".join(parts[:depth])
        if not isinstance(model.get_submodule(name), CONTAINERS):
            return name
    return layer


def plan_of_widths(graph: ChannelGraph, widths: Sequence[int] | Mapping[str, int]) -> Plan:
    """A plan that keeps the first channels of each unit, to count what widths cost. It is not meant for pruning.

    widths: unit -> number of channels to keep, or a list in the order of the units. Other units keep all channels.
    """
    if not isinstance(widths, Mapping):
        if len(widths) > len(graph.units):
            raise PlanError(
                f"{len(widths)} widths for {len(graph.units)} units; the units are {', '.join(graph.units)}"
            )
        widths = dict(zip(graph.units, widths, strict=False))
    for name, width in widths.items():
        if name not in graph.units:
            raise PlanError(unknown("unit", name, list(graph.units)))
        if not 1 <= width <= graph.units[name].width:
            raise PlanError(f"unit {name!r} has {graph.units[name].width} channels and cannot keep {width}")
    return Plan.of(graph, graph.balance({name: range(width) for name, width in widths.items()}))


def write_structure(rows: Sequence[StudyRow], title: str, folder: StudyFolder) -> Path:
    """Write study.json, table.csv and a picture of the MACs and weights of each part."""
    folder.start()
    pictures = [draw_structure([row for row in rows if row["part"] != TOTAL], title, folder.path)]
    return folder.finish(title, rows, pictures, columns=COLUMNS)


def draw_structure(rows: Sequence[StudyRow], title: str, folder: Path) -> dict[str, str]:
    """Bars for every part: pruned in front of original."""
    fig, (left, right) = figure(PAGE, max(2.6, 0.16 * len(rows) + 1.0), columns=2, sharey=True)
    places = range(len(rows))
    with styled():
        for axes, key, name in ((left, "macs", "MACs"), (right, "params", "weights")):
            scale, unit = axis_scale(max(row[key] for row in rows))
            whole, pruned = ([row[column] / scale for row in rows] for column in (key, f"{key}_pruned"))
            axes.barh(places, whole, color="#cfd8dc", height=0.8, label="original")
            axes.barh(places, pruned, color=COLOURS[0], height=0.5, label="pruned")
            axes.set(xlabel=f"{name} ({unit})" if unit else name)
            axes.grid(visible=False, axis="y")
        left.set_yticks(places, [row["part"] for row in rows])
        left.invert_yaxis()
        handles, labels = left.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=2)
        fig.suptitle(title, fontsize=9)
    alt = f"{title}: MACs and weights of {len(rows)} parts, original and pruned"
    return {"file": save(fig, folder, "structure"), "alt": alt, "caption": "Grey: original. Blue: pruned."}
