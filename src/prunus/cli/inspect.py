"""`prunus inspect`: layers and units of a network and what cannot be pruned; its scores, sensitivity or latency."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prunus.cli.console import Early, console, existing_file, friendly, say, table
from prunus.cli.images import DataOptions
from prunus.cli.inspect_modes import (
    InspectOptions,
    LatencyOptions,
    RankOptions,
    ScoreOptions,
    check_metrics,
    print_latency,
    print_scores,
    print_sensitivity,
)
from prunus.cli.network import MODEL_HELP, NamedModel, check_network, open_network, resolve
from prunus.cli.options import (
    Classes,
    DeviceOptions,
    Json,
    OnlyWith,
    Streams,
    Without,
    options_from_settings,
    refuse_other_modes,
)
from prunus.deciding.settings import RankSettings
from prunus.errors import ModelError
from prunus.scoring.settings import ScoreSettings
from prunus.util.text import big_number, percent
from prunus.zoo.names import known_models

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.cost import Cost

NAMED = 3  # frozen names that are listed for a reason


@friendly
@options_from_settings
def command(
    model: Annotated[
        str | None,
        typer.Argument(help=f"{MODEL_HELP}; without it, the built-in networks are listed"),
        Early(check_network),
    ] = None,
    *,
    context: typer.Context,
    scores: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Score every channel by a metric, several separated by commas, or all"),
        Early(check_metrics),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Rank the units as Algorithm 1 does, on held-out images"),
    ] = False,
    latency: Annotated[bool, typer.Option("--latency", help="Time the layers at many widths in an engine")] = False,
    options: Annotated[InspectOptions, OnlyWith("scores", "sensitivity")],
    data: Annotated[DataOptions, OnlyWith("scores", "sensitivity"), Without("size")],
    device: Annotated[DeviceOptions, OnlyWith("scores", "sensitivity")],
    scoring: Annotated[ScoreSettings, OnlyWith("scores")],
    score_options: Annotated[ScoreOptions, OnlyWith("scores")],
    ranking: Annotated[RankSettings, OnlyWith("sensitivity")],
    rank_options: Annotated[RankOptions, OnlyWith("sensitivity")],
    timing: Annotated[LatencyOptions, OnlyWith("latency")],
    plan: Annotated[
        Path | None, typer.Option(help="A plan.json: show what it removes from each layer"), Early(existing_file)
    ] = None,
    streams: Streams = "select",
    size: Annotated[int | None, typer.Option(help="Height and width of the images in pixels", min=1)] = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Show a network's layers, its prunable units, and which channels are frozen and why.

    --scores: every channel is scored; pruning removes those with the lowest.
    Several processes: torchrun --nproc-per-node N -m prunus inspect ...

    --sensitivity: each unit loses channels in turn, and held-out images say
    what that costs.

    --latency: layers are timed in the engine where the network will run, and
    times are kept. With one thread, processor time is measured, which other
    programs change little. To prune for another machine, run this there with
    --out table.json, and here `prune --latency-table table.json`.

    Examples:

        prunus inspect

        prunus inspect resnet56

        prunus inspect resnet56 --plan small/plan.json

        prunus inspect my_package.nets:build --size 64 --json

        prunus inspect resnet56 --scores gsd,l1 --data cifar10 --weights w.pt

        prunus inspect runs/prune-resnet56-cifar10 --scores gsd:ridge=1

        prunus inspect resnet56 --sensitivity --data cifar10 --weights w.pt

        prunus inspect resnet56 --latency --engine openvino --out table.json
    """
    modes = [name for name, on in {"scores": scores, "sensitivity": sensitivity, "latency": latency}.items() if on]
    if len(modes) > 1:
        raise ModelError(f"give only one of --{modes[0]} and --{modes[1]}")
    mode = modes[0] if modes else None
    refuse_other_modes(context, mode)
    if model is None:
        if mode is not None:
            raise ModelError(f"--{mode} needs a network: prunus inspect MODEL --{mode} ...")
        _list_models()
        return
    if mode is not None and plan is not None:
        raise ModelError(f"--plan shows what a plan removes from each layer: leave it out, or leave out --{mode}")
    if mode in ("scores", "sensitivity") and classes is not None:
        raise ModelError(f"--classes is for a network without a data set: leave it out, or leave out --{mode}")
    named, data = resolve(model, options.weights), replace(data, size=size)
    if mode == "scores":
        print_scores(named, scores or [], data, device, scoring, score_options, streams, options.out, as_json=as_json)
    elif mode == "sensitivity":
        print_sensitivity(named, data, device, ranking, rank_options, streams, options.out, as_json=as_json)
    elif mode == "latency":
        print_latency(named, timing, streams, size, classes, as_json=as_json)
    else:
        _show(named, plan, streams, size, classes, as_json=as_json)


def _list_models() -> None:
    numbers = ("classes", "MACs", "weights", "params")
    known = known_models()
    rows = []
    for name, each in known.items():
        counts = [big_number(number) for number in (each.macs, each.weights, each.parameters)]
        rows.append([name, "x".join(map(str, each.shape)), str(each.classes), *counts])
    console.print(table(("name", "input", *numbers), rows, numbers))
    for about in dict.fromkeys(each.about for each in known.values() if each.about):
        names = ", ".join(name for name, each in known.items() if each.about == about)
        say(textwrap.fill(f"{about}: {names}", 80, subsequent_indent="  "))
    say("MACs, weights: of convolutions and linear layers. params: all parameters.")
    say("Other models: torchvision:NAME, timm:NAME, package.module:factory.")


def frozen_lines(frozen: Mapping[str, Sequence[str]]) -> list[str]:
    """reason -> names, as lines: the first names and the reason."""
    lines = []
    for reason, names in frozen.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        lines.append(f"{', '.join(names[:NAMED])}{more}: {reason}")
    return lines


def _show(
    named: NamedModel, plan_file: Path | None, streams: str, size: int | None, classes: int | None, *, as_json: bool
) -> None:
    from prunus.graph.channel_graph import trace
    from prunus.graph.plan import Plan
    from prunus.run.checkup import shapes_of

    plan = None if plan_file is None else Plan.load(plan_file)
    network = open_network(named, classes)
    example = network.zeros(size)
    graph = trace(network.model, example, streams if plan is None else plan.streams)  # type: ignore[arg-type]
    cost = None if plan is None else graph.cost(plan)
    if as_json:
        console.print_json(json.dumps(_record(named.typed, graph, cost)))
        return
    counts = f"{big_number(graph.macs)} MACs, {big_number(graph.params)} weights, {len(graph.units)} units"
    console.print(f"{named.typed} on {shapes_of(example)}: {counts}", soft_wrap=True, style="bold")
    if cost is not None:
        say(
            f"with the plan: {big_number(cost.macs)} MACs ({_removed(graph.macs, cost.macs)} removed), "
            f"{big_number(cost.params)} weights ({_removed(graph.params, cost.params)} removed)"
        )
    _print_layers(graph, cost)
    say()
    titles = ["unit", "kind", "width", "in steps of", "read by"]
    rows = []
    for unit in graph.units.values():
        readers = list(dict.fromkeys(r.module for r in unit.readers))
        read_by = readers[0] + (f" and {len(readers) - 1} more" if len(readers) > 1 else "")
        rows.append([unit.name, unit.kind, str(unit.width), str(unit.granule), read_by])
        if plan is not None:
            rows[-1].append(str(plan.removed()[unit.name]))
    titles += [] if plan is None else ["removed"]
    say("Units (channels that are scored and pruned together)")
    console.print(table(titles, rows, ("width", "in steps of", "removed")))
    say(f"\nFrozen ({len(graph.frozen)}): these channels cannot be removed")
    reasons: dict[str, list[str]] = {}
    for name, reason in graph.frozen.items():
        reasons.setdefault(reason, []).append(name)
    for line in frozen_lines(reasons):
        console.print(f"  {line}")


def _print_layers(graph: ChannelGraph, cost: Cost | None) -> None:
    titles = ["layer", "channels", "weights", "MACs"]
    titles += [] if cost is None else ["pruned weights", "pruned MACs", "removed"]
    rows = []
    for name, layer in graph.layers.items():
        row = [name, f"{layer.inputs} → {layer.outputs}", big_number(layer.params), big_number(layer.macs)]
        if cost is not None:
            now = cost.layers[name]
            if (now.inputs, now.outputs) != (layer.inputs, layer.outputs):
                row[1] += f"  ⇒  {now.inputs} → {now.outputs}"
            row += [big_number(now.params), big_number(now.macs), _removed(layer.macs, now.macs)]
        rows.append(row)
    whole = sum(not layer.depthwise for layer in graph.layers.values())
    say(f"Layers ({len(graph.prunable)} of {whole} can be pruned)")
    drawn = table(titles, rows, titles[1:])
    total = ["total", "", big_number(graph.params), big_number(graph.macs)]
    if cost is not None:
        total += [big_number(cost.params), big_number(cost.macs), _removed(graph.macs, cost.macs)]
    drawn.add_row(*total, style="bold")
    console.print(drawn)


def _removed(before: int, after: int) -> str:
    return percent(1 - after / before) if before else "-"


def _record(name: str, graph: ChannelGraph, cost: Cost | None) -> dict[str, Any]:
    def of_layer(layer: Any) -> dict[str, int]:
        return {name: getattr(layer, name) for name in ("inputs", "outputs", "macs", "params")}

    record: dict[str, Any] = {
        "model": name,
        "example": graph.example_shapes,
        "streams": graph.streams,
        "fingerprint": graph.fingerprint,
        "macs": graph.macs,
        "params": graph.params,
        "layers": {n: {**of_layer(layer), "depthwise": layer.depthwise} for n, layer in graph.layers.items()},
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
        layers = {n: of_layer(layer) for n, layer in cost.layers.items()}
        record["pruned"] = {"macs": cost.macs, "params": cost.params, "layers": layers}
    return record
