"""`prunus latency`: time the layers of a network at many widths."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prunus.cli.console import console, friendly
from prunus.cli.options import Classes, LayerTimeOptions, Model, Size, Streams, options_from_settings
from prunus.errors import RunError
from prunus.timing.engines import ENGINES
from prunus.util.files import refuse_overwriting
from prunus.util.options import check, option

if TYPE_CHECKING:
    from prunus.timing.latency_table import LatencyTable

SHOWN = 12  # layer shapes in the printed table
PARTS = {"3/4": 0.75, "1/2": 0.5, "1/4": 0.25}


@dataclass(frozen=True)
class LatencyOptions(LayerTimeOptions):
    """Where layers are timed."""

    engine: str = option("eager", f"Engine: {', '.join(ENGINES)}", valid=ENGINES.check)
    out: Path | None = option(None, "File for the table, as JSON; its picture is written beside it")


@friendly
@options_from_settings
def command(
    model: Model,
    how: LatencyOptions,
    streams: Streams = "select",
    size: Size = None,
    classes: Classes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")] = False,
) -> None:
    """Time the layers of a network at many widths, in the engine where it will run. With one thread, processor time is
    measured, which other programs change little. Times are kept in the user's cache folder.

    To prune for another machine, run this there with --out table.json, and here `prune --latency-table table.json`.

    Examples:

        prunus latency resnet56 --engine onnxruntime --threads 1

        prunus latency resnet56 --engine openvino --batch 1 --out table.json
    """
    check(how, RunError)
    ENGINES.find(how.engine).check_installed()
    if how.out is not None:
        refuse_overwriting(how.out)
    from prunus.cli.options import open_network
    from prunus.graph.channel_graph import trace
    from prunus.run.checkup import shapes_of
    from prunus.timing.layer_timing import latency_table
    from prunus.util.typed_json import to_data

    network = open_network(model, classes=classes)
    example = network.zeros(size)
    graph = trace(network.model.eval(), example, streams)  # type: ignore[arg-type]
    table = latency_table(graph, how.engine, how.batch, how.threads)
    if how.out is not None:
        _write(table, how.out, f"{network.name} on {shapes_of(example)}")
    if as_json:
        console.print_json(json.dumps(to_data(table)))
    else:
        _print(table)
        if how.out is not None:
            console.print(f"wrote {how.out}, {how.out.with_suffix('.png')} and .svg", soft_wrap=True)


def _write(table: LatencyTable, out: Path, title: str) -> None:
    from prunus.plots.charts import draw_latency
    from prunus.plots.style import save

    table.save(out)
    save(draw_latency(table, title), out.parent, out.stem)


def _print(table: LatencyTable) -> None:
    from prunus.cli.console import columns
    from prunus.plots.charts import longest_shapes

    rows = []
    for names, times in longest_shapes(table, SHOWN).items():
        whole = times.seconds[-1][-1]
        more = f" (+{len(names) - 1})" if len(names) > 1 else ""
        cut = [
            times.at(*(max(1, int(part * axis[-1])) for axis in (times.inputs, times.outputs)))
            for part in PARTS.values()
        ]
        shape = f"{times.inputs[-1]} to {times.outputs[-1]}"
        share = f"{100 * len(names) * whole / table.whole:.0f}%"
        rows.append([f"{names[0]}{more}", shape, f"{1e3 * whole:.3f}", share, *(f"{1e3 * s:.3f}" for s in cut)])
    rows.append(
        ["what is not a layer", "", f"{1e3 * table.remainder:.3f}", f"{100 * table.remainder / table.whole:.0f}%"]
    )
    rows.append(["whole network", "", f"{1e3 * table.whole:.3f}", "100%"])
    titles = ["layer (and more alike)", "channels", "ms", "share", *PARTS]
    full = [row + [""] * (len(titles) - len(row)) for row in rows]
    console.print(str(table.measured_with), soft_wrap=True)
    console.print(columns(titles, full, set(titles[2:]), width=80), soft_wrap=True)
    console.print("ms: one layer, one batch; share: all alike; 3/4, 1/2, 1/4: ms at these widths")
