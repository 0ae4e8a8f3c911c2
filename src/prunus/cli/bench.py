"""`prunus bench`: compare the speed of networks."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from prunus.cli.console import Answer, Early, complain, console, existing_file, friendly, say, table
from prunus.cli.network import Network, check_model_name, open_network, resolve
from prunus.cli.options import Classes
from prunus.errors import RunError
from prunus.timing.engines import ENGINES
from prunus.util.options import option
from prunus.util.text import bytes_text, count


def _check_batch(size: int) -> None:
    if size < 1:
        raise RunError(f"batch must be at least 1, got {size}")


def _check_argument(text: str) -> None:
    existing_file(Path(text)) if text.endswith(".onnx") else check_model_name(text)


@dataclass(frozen=True)
class BenchOptions:
    batch: tuple[int, ...] = option((1, 64), "Batch size; repeat for several; 1 and 64 by default", valid=_check_batch)
    engine: tuple[str, ...] = option(
        (), f"Engine: {', '.join(ENGINES)}; repeat for several; all that are installed by default", valid=ENGINES.check
    )
    rounds: int = option(20, "Number of times that each network is timed", least=1)
    threads: int | None = option(
        None, "Number of CPU threads; PyTorch's choice by default", least=1, most=os.cpu_count()
    )
    fold_bn: bool = option(False, "Fold batch norms into the layers before them, in all networks")
    cpu_time: bool = option(False, "Measure processor time, not wall-clock time; for busy machines, with one thread")


@friendly
def command(
    networks: Annotated[
        list[str],
        typer.Argument(help="Folders of pruned networks, names, NAME=WEIGHTS, or .onnx files"),
        Early(_check_argument),
    ],
    timing: BenchOptions,
    classes: Classes = None,
) -> Answer:
    """Compare the speed of networks, which take turns in one run.

    Speeds are relative to the first network. A single pruned network is compared with its original.

    Examples:

        prunus bench runs/prune-resnet56-cifar10

        prunus bench resnet56 runs/small --engine onnxruntime --batch 64

        prunus bench small.onnx small-int8.onnx --engine openvino
    """
    from prunus.ship.bench import bench
    from prunus.timing.onnx_export import OnnxFile

    opened: list[Network] = []
    for typed in networks:
        if typed.endswith(".onnx"):  # a file runs as it is, also one that `prune` could not read
            file = OnnxFile(typed)
            opened.append(Network(Path(typed).stem, file, file.shape))
        else:
            opened.append(open_network(resolve(typed), classes))
    if len({network.shape for network in opened}) > 1:
        raise RunError(f"networks for images of different sizes cannot be compared: {[n.shape for n in opened]}")
    models = {}
    if len(opened) == 1 and opened[0].original is not None:
        models["original"] = opened[0].original
    for network in opened:
        name, number = network.name, 2
        while name in models:
            name, number = f"{network.name} ({number})", number + 1
        models[name] = network.model
    how = dict(vars(timing))
    batches, engines = how.pop("batch"), how.pop("engine")
    result = bench(models, opened[0].example(), batches, engines or None, **how)
    lines = []
    for row in sorted(result.rows, key=lambda r: (r.timing.batch_size, r.engine)):
        time, speed = row.timing, "" if row.model == next(iter(models)) else row.speed_text()
        cells = [str(time.batch_size), row.engine, row.model, f"{1e3 * time.median:.2f}", f"{100 * time.spread:.0f}%"]
        lines.append([*cells, f"{time.images_per_second:,.0f}", speed])
    record = [
        {
            "network": row.model,
            "engine": row.engine,
            "batch": row.timing.batch_size,
            "seconds": row.timing.median,
            "quartiles": row.timing.quartiles,
            "images_per_second": row.timing.images_per_second,
            "speedup": row.speedup,
            "interval": None if math.isinf(row.interval[1]) else row.interval,
        }
        for row in result.rows
    ]
    titles = ["batch", "engine", "network", "ms", "spread", "images/s", "speed"]
    console.print(table(titles, lines, ["batch", *titles[3:]]))
    say()
    whole, lines = next(iter(result.profiles.values())).macs, []
    for name, profile in result.profiles.items():
        macs = "not known" if profile.macs is None else f"{profile.macs:,}"
        ratio = f"{whole / profile.macs:.2f}x fewer" if whole and profile.macs else ""
        memory = "not known" if profile.memory is None else bytes_text(profile.memory)
        lines.append([name, macs, ratio, memory, str(profile.selections)])
    titles = ["network", "MACs", "", "activations", "selections"]
    console.print(table(titles, lines, titles[1:]))
    say(f"{count(result.threads, 'thread')}; ms is the median, spread the distance between the quartiles;")
    say("activations: bytes for one image at their peak, without weights;")
    say("speed: relative to the first network, with the 95% interval of the ratio")
    for note in result.notes:
        complain("note", note)
    profiles = {
        name: {"macs": profile.macs, "memory": profile.memory, "selections": profile.selections}
        for name, profile in result.profiles.items()
    }
    return Answer({"threads": result.threads, "rows": record, "networks": profiles, "notes": result.notes})
