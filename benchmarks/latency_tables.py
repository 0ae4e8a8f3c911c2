"""Do latency tables predict the time of pruned networks? Predicted and measured seconds, in every engine.

    python benchmarks/latency_tables.py prepare [--network NAME] [--folder FOLDER]
    python benchmarks/latency_tables.py time [--network NAME] [--engine ENGINE] [--batch N] [--write FILE]

`prepare` builds four plans for each network and writes the pruned networks as ONNX files. `time` measures the latency
table (or reads it from the user's cache folder), times the networks in turns, on one thread in processor seconds, and
writes both to the file. The speed of a machine changes within minutes, so times are compared relative to the unpruned
network in the same run: `ratio` is predicted / measured after both are divided by the unpruned network's. Both steps
skip what is there already.

Networks are fresh: time does not depend on weights. Plans, by numbers of channels: three eighths of every unit inside a
block; three quarters of every unit, with selections from streams; widths that were timed, drawn at random; odd widths;
and for the small networks the plan that the split of least error makes for twice the speed by the table, with errors
that grow as the square of the share removed. (A table is calibrated on a network with half of every unit inside a
block, which is none of these.) `seconds` is what it took to measure the table, with an empty cache folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from prunus.timing.turns import take_turns
from torch import nn

import prunus as sc
from prunus.decide.candidates import candidates
from prunus.decide.costs import table_cost
from prunus.decide.splits import least_error
from prunus.decide.widths import Cutter, WidthLimits
from prunus.graph.channel_graph import ChannelGraph
from prunus.score.scores import Scores
from prunus.ship.export import export
from prunus.timing.latency import prepare as prepare_model
from prunus.timing.latency import ready_to_time, repeated, speedup
from prunus.timing.latency_table import LatencyTable, widths_to_time
from prunus.timing.layer_timing import latency_table
from prunus.timing.onnx_export import OnnxFile
from prunus.util.files import write_atomically
from prunus.zoo.models import create
from tests.networks import from_torchvision

NETWORKS = {  # image size, batch sizes
    "resnet56": (32, (64, 1)),
    "vgg16": (32, (64, 1)),
    "mobilenet_v2": (224, (8, 1)),
    "resnet50": (224, (8, 1)),
}
ENGINES = ("eager", "onnxruntime", "openvino")
PLANS = ("unpruned", "three eighths of inner units", "three quarters of all units", "timed widths", "odd widths")
TWICE = "twice as fast by the table"
SMALL = ("resnet56", "vgg16")  # networks that are exported quickly
ROUNDS = 9


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name != "mobilenet_v2":
        return create(name).eval()
    made: nn.Module = from_torchvision.library().mobilenet_v2(weights=None)
    return made.eval()


def kept(graph: ChannelGraph, plan: str) -> dict[str, tuple[int, ...]]:
    draw = np.random.default_rng(0)
    keep: dict[str, range] = {}
    for name, unit in graph.units.items():
        steps = unit.width // unit.granule
        inner = unit.kind == "private"
        if plan == "three eighths of inner units" and inner:
            count = 3 * steps // 8
        elif plan == "three quarters of all units":
            count = 3 * steps // 4
        elif plan == "timed widths" and inner:
            count = int(draw.choice([n for n in widths_to_time(steps) if n >= steps / 4]))
        elif plan == "odd widths" and inner:
            count = max(1, 5 * steps // 8 - 1)
        else:
            continue
        keep[name] = range(max(1, count) * unit.granule)
    return graph.balance(keep)


def traced(name: str) -> ChannelGraph:
    size = NETWORKS[name][0]
    return sc.trace(network(name), torch.zeros(1, 3, size, size), check=False)


def prepare(name: str, folder: Path) -> None:
    missing = [plan for plan in PLANS if not path_of(folder, name, plan).exists()]
    graph = traced(name) if missing else None
    for plan in missing:
        assert graph is not None
        small = sc.prune(graph, sc.Plan.of(graph, kept(graph, plan)), check=False)
        export(small, graph.example, path_of(folder, name, plan))
        print(f"{name}: {plan}", flush=True)


def path_of(folder: Path, name: str, plan: str) -> Path:
    return folder / f"{name}-{plan.replace(' ', '-')}.onnx"


def compare(graph: ChannelGraph, name: str, engine: str, batch: int, folder: Path) -> dict[str, Any]:
    """Predicted and measured seconds of each plan."""
    started = time.perf_counter()
    table = latency_table(graph, engine, batch, 1)
    seconds_spent = time.perf_counter() - started
    keeps = {plan: kept(graph, plan) for plan in PLANS}
    if name in SMALL:
        keeps[TWICE] = twice_as_fast(graph, table)
    models: dict[str, nn.Module] = {}
    for plan, keep in keeps.items():
        if engine == "eager" or plan == TWICE:
            models[plan] = sc.prune(graph, sc.Plan.of(graph, keep), check=False)
        else:
            models[plan] = OnnxFile(path_of(folder, name, plan))
    seconds = measured_seconds(models, graph.example, engine, batch)
    before = seconds["unpruned"]
    rows = {}
    for plan, keep in keeps.items():
        predicted = table.predict(graph, keep)
        rows[plan] = {
            "macs": graph.cost(keep).macs,
            "predicted": predicted,
            "measured": statistics.median(seconds[plan]),
            "predicted_speedup": table.whole / predicted,
            "measured_speedup": (gain := speedup(before, seconds[plan])).ratio,
            "interval": (gain.low, gain.high),
            "ratio": gain.ratio * predicted / table.whole,
        }
        say(name, engine, batch, plan, rows[plan])
    about = {"measured_with": str(table.measured_with), "seconds": round(seconds_spent, 1)}
    return {**about, "remainder": table.remainder / table.whole, "plans": rows}


def twice_as_fast(graph: ChannelGraph, table: LatencyTable) -> dict[str, tuple[int, ...]]:
    """Kept channels of the split of least error for half of the predicted time."""
    cost = table_cost(graph, table)
    errors = {name: np.arange(1, unit.width + 1) ** 2 / unit.width**2 for name, unit in graph.units.items()}
    cutter = Cutter(graph, Scores("square", errors, 0), WidthLimits(known=table.widths(graph)))
    return dict(least_error(cutter, candidates(graph), table.whole / 2, cost).keep)


def measured_seconds(models: dict[str, nn.Module], example: Any, engine: str, batch: int) -> dict[str, list[float]]:
    """Seconds of each network in each round: in turns, each call right after another one of the same network."""
    with ready_to_time([], 1):
        prepared = [prepare_model(model, engine, example, [batch]) for model in models.values()]
        images = repeated(example, batch)
        runs = [partial(model.run, images) for model in prepared]
        cpu = [torch.device("cpu")] * len(runs)
        took = take_turns(runs, cpu, warmup=1, rounds=ROUNDS, repeats=1, cpu_time=True)
    return dict(zip(models, took, strict=True))


def say(name: str, engine: str, batch: int, plan: str, row: dict[str, float]) -> None:
    print(
        f"{name:12} {engine:11} {batch:3} {plan:27} predicted {1e3 * row['predicted']:8.2f} ms, "
        f"measured {1e3 * row['measured']:8.2f} ms, ratio {row['ratio']:.2f}; "
        f"speed-up {row['predicted_speedup']:.2f}x predicted, {row['measured_speedup']:.2f}x measured",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("prepare", "time"))
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--folder", type=Path, default=Path("runs/latency"))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--again", action="store_true", help="time again what is in the file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(asked.write.read_text()) if asked.write and asked.write.exists() else {}
    for name in asked.network or NETWORKS:
        prepare(name, asked.folder)
        if asked.step == "prepare":
            continue
        graph = traced(name)
        for batch in asked.batch or NETWORKS[name][1]:
            for engine in asked.engine or ENGINES:
                key = f"{name}, {engine}, batch {batch}"
                if key in results and not asked.again:
                    continue
                results[key] = compare(graph, name, engine, batch, asked.folder)
                if asked.write:
                    write_atomically(asked.write, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
