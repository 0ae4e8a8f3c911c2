"""`secateur bench`: how fast networks are, side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.cli.common import complaints, console, friendly, progress
from secateur.cli.options import Classes
from secateur.measuring.engines import ENGINES

if TYPE_CHECKING:
    from torch import nn

    from secateur.cli.networks import Network
    from secateur.shipping.bench import Benched


@friendly
def command(
    networks: Annotated[list[str], typer.Argument(help="Folders of pruned networks, names, or NAME=WEIGHTS.")],
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Batch size; several times for several. 1 and 64.")
    ] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help=f"Engine, repeatable: {', '.join(ENGINES)}. All by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Timed turns of each network.")] = 20,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of every engine.")] = None,
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Make batch norms part of the layers before them, in all networks.")
    ] = False,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Processor seconds, not the clock's: for a busy machine, one thread.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="The original network, if a folder does not say.")] = None,
    classes: Classes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Time networks in turns, in one run. The first is what the others are compared with; a pruned network that comes
    alone is compared with its original.

    Examples:

        secateur bench runs/prune-resnet56-cifar10

        secateur bench resnet56 runs/small --engine onnxruntime --batch 64
    """
    from secateur.cli.networks import open_network
    from secateur.errors import RunError
    from secateur.shipping.bench import bench

    opened = [open_network(typed, model=model, classes=classes) for typed in networks]
    if len({network.shape for network in opened}) > 1:
        raise RunError(f"networks that take images of different sizes cannot be compared: {[n.shape for n in opened]}")
    with progress() as bar:
        task = bar.add_task("timing", total=None, note="")
        found = bench(
            _named(opened),
            opened[0].example(),
            batch or (1, 64),
            engine,
            rounds=rounds,
            threads=threads,
            fold_bn=fold_bn,
            cpu_time=cpu_time,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        console.print_json(json.dumps(_as_dict(found)))
    else:
        _say(found)
    for note in found.notes:
        complaints.print(f"[yellow]note:[/] {note}", soft_wrap=True)


def _named(opened: list[Network]) -> dict[str, nn.Module]:
    models: dict[str, nn.Module] = {}
    if len(opened) == 1 and opened[0].original is not None:
        models["original"] = opened[0].original
    for network in opened:
        name, number = network.name, 2
        while name in models:
            name, number = f"{network.name} ({number})", number + 1
        models[name] = network.model
    return models


def _as_dict(found: Benched) -> dict[str, Any]:
    rows = [
        {
            "network": row.model,
            "engine": row.engine,
            "batch": row.timing.batch_size,
            "seconds": row.timing.median,
            "quartiles": row.timing.quartiles,
            "images_per_second": row.timing.images_per_second,
            "speedup": row.speedup,
        }
        for row in found.rows
    ]
    sizes = {
        name: {"macs": size.macs, "selections": size.selections, "shares": dict(size.shares)}
        for name, size in found.profiles.items()
    }
    return {"threads": found.threads, "rows": rows, "networks": sizes, "notes": found.notes}


def _say(found: Benched) -> None:
    from secateur.cli.columns import columns

    rows = [
        [
            str(row.timing.batch_size),
            row.engine,
            row.model,
            f"{1e3 * row.timing.median:.2f}",
            f"{100 * row.timing.spread:.0f}%",
            f"{row.timing.images_per_second:,.0f}",
            f"{row.speedup:.2f}x",
        ]
        for row in sorted(found.rows, key=lambda r: (r.timing.batch_size, r.engine))
    ]
    titles = ["batch", "engine", "network", "ms", "spread", "images/s", "speed"]
    console.print(columns(titles, rows, {"batch", "ms", "spread", "images/s", "speed"}), soft_wrap=True)
    console.print()
    first = next(iter(found.profiles.values())).macs
    rows = []
    for name, size in found.profiles.items():
        macs = "not known" if size.macs is None else f"{size.macs:,}"
        ratio = f"{first / size.macs:.2f}x fewer" if first and size.macs else ""
        where = ", ".join(
            f"{kind} {100 * share:.0f}%" for kind, share in list(size.shares.items())[:6] if share >= 0.005
        )
        rows.append([name, macs, ratio, str(size.selections), where])
    titles = ["network", "MACs", "", "selections", "where the time goes (eager, largest batch)"]
    console.print(columns(titles, rows, {"MACs", "selections"}), soft_wrap=True)
    console.print(f"{found.threads} threads; the median of the turns, and the quartiles' distance as spread")
