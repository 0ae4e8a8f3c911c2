"""`prunus inspect`: layers and units of a network, the effect of a plan, and what cannot be pruned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from prunus.cli import console as early_checks
from prunus.cli.console import Early, console, friendly
from prunus.cli.options import Classes, Model, Size, Streams
from prunus.util.text import big_number

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.cost import Cost

EXAMPLES = """
Examples:

    prunus inspect resnet56

    prunus inspect resnet56 --plan small/plan.json

    prunus inspect my_package.nets:build --size 64 --json

    prunus inspect runs/prune-resnet56-cifar10
"""


@friendly
def command(
    model: Model,
    plan: Annotated[
        Path | None, typer.Option(help="A plan.json: show what it removes from each layer"), Early(early_checks.file)
    ] = None,
    streams: Streams = "select",
    size: Size = None,
    classes: Classes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Show a network's layers, its prunable units, and which channels are frozen and why."""
    from prunus.cli.options import open_network
    from prunus.graph.channel_graph import trace
    from prunus.graph.plan import Plan
    from prunus.run.checkup import shapes_of

    if plan is not None:
        chosen = Plan.load(plan)
        streams = chosen.streams
    network = open_network(model, classes=classes)
    example = network.zeros(size)
    graph = trace(network.model, example, streams)  # type: ignore[arg-type]
    cost = graph.cost(chosen) if plan is not None else None
    if as_json:
        console.print_json(json.dumps(_facts(model, graph, cost)))
        return
    _print_head(model, graph, cost, shapes_of(example))
    console.print(_layer_table(graph, cost))
    console.print(_unit_table(graph, None if plan is None else chosen.removed()))
    _print_frozen(graph)


command.__doc__ = f"{command.__doc__}\n{EXAMPLES}"


def _print_head(name: str, graph: ChannelGraph, cost: Cost | None, image: str) -> None:
    console.print(
        f"{name} on {image}: {big_number(graph.macs)} MACs, {big_number(graph.params)} weights, "
        f"{len(graph.units)} units",
        soft_wrap=True,
        style="bold",
    )
    if cost is not None:
        console.print(
            f"with the plan: {big_number(cost.macs)} MACs ({_share(graph.macs, cost.macs)} removed), "
            f"{big_number(cost.params)} weights ({_share(graph.params, cost.params)} removed)",
            soft_wrap=True,
        )


def _layer_table(graph: ChannelGraph, cost: Cost | None) -> Table:
    whole = sum(not layer.depthwise for layer in graph.layers.values())
    title = f"Layers ({len(graph.prunable)} of {whole} can be pruned)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for title in ("channels", "weights", "MACs", *(("pruned weights", "pruned MACs", "removed") if cost else ())):
        table.add_column(title, justify="right")
    for name, layer in graph.layers.items():
        row = [name, f"{layer.inputs} → {layer.outputs}", big_number(layer.params), big_number(layer.macs)]
        if cost is not None:
            now = cost.layers[name]
            if (now.inputs, now.outputs) != (layer.inputs, layer.outputs):
                row[1] += f"  ⇒  {now.inputs} → {now.outputs}"
            row += [big_number(now.params), big_number(now.macs), _share(layer.macs, now.macs)]
        table.add_row(*row)
    total = ["total", "", big_number(graph.params), big_number(graph.macs)]
    if cost is not None:
        total += [big_number(cost.params), big_number(cost.macs), _share(graph.macs, cost.macs)]
    table.add_row(*total, style="bold")
    return table


def _unit_table(graph: ChannelGraph, removed: dict[str, int] | None) -> Table:
    table = Table(
        title="\nUnits (channels that are scored and pruned together)", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("unit", overflow="fold")
    table.add_column("kind")
    table.add_column("width", justify="right")
    table.add_column("in steps of", justify="right")
    table.add_column("read by", overflow="ellipsis", no_wrap=True)
    if removed is not None:
        table.add_column("removed", justify="right")
    for unit in graph.units.values():
        readers = list(dict.fromkeys(r.module for r in unit.readers))
        read_by = readers[0] + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")
        row = [unit.name, unit.kind, str(unit.width), str(unit.granule), read_by]
        table.add_row(*row, *([str(removed[unit.name])] if removed is not None else []))
    return table


def _print_frozen(graph: ChannelGraph) -> None:
    reasons: dict[str, list[str]] = {}
    for name, reason in graph.frozen.items():
        reasons.setdefault(reason, []).append(name)
    console.print(f"\nFrozen ({len(graph.frozen)}): these channels cannot be removed")
    for reason, names in reasons.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        console.print(f"  {', '.join(names[:3])}{more}: {reason}")


def _facts(name: str, graph: ChannelGraph, cost: Cost | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "model": name,
        "example": graph.example_shapes,
        "streams": graph.streams,
        "fingerprint": graph.fingerprint,
        "macs": graph.macs,
        "params": graph.params,
        "layers": {n: {**_layer_facts(x), "depthwise": x.depthwise} for n, x in graph.layers.items()},
        "units": {
            u.name: {
                "kind": u.kind,
                "width": u.width,
                "granule": u.granule,
                "readers": [r.module for r in u.readers],
                "writers": [w.module for w in u.writers],
            }
            for u in graph.units.values()
        },
        "prunable": graph.prunable,
        "frozen": graph.frozen,
    }
    if cost is not None:
        facts["pruned"] = {
            "macs": cost.macs,
            "params": cost.params,
            "layers": {n: _layer_facts(x) for n, x in cost.layers.items()},
        }
    return facts


def _layer_facts(layer: Any) -> dict[str, int]:
    return {name: getattr(layer, name) for name in ("inputs", "outputs", "macs", "params")}


def _share(before: int, after: int) -> str:
    return f"{100 * (1 - after / before):.1f}%" if before else "-"
