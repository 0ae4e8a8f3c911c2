"""How much faster is a network without half of its MACs, in which engine, and do widths matter? And a goal in time?

    python benchmarks/shipping.py [--all] [--network NAME] [--weights RESNET56] [--data-root DATA] [--write FILE]

ResNet-56 and CIFAR VGG-16 lose half of their MACs in one round of Algorithm 1 and are timed beside the originals at
batch 64, in turns, one thread, in processor seconds. Speed does not depend on weights; which units are chosen does, so
ResNet-56 takes trained ones if they are given, and CIFAR-10 to decide on. Without, networks are fresh and decide on
noise of no meaning.

Without --all only the goal in measured time that docs/shipping.md recommends is timed: ResNet-56 1.5 times as fast and
VGG-16 twice as fast in onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from safetensors.torch import load_model
from torch import nn

import prunus as sc
from benchmarks.ratios import Row, row, say
from prunus.errors import DecideError
from prunus.score.scores import Scores
from prunus.util.files import write_atomically
from prunus.zoo.data import load
from prunus.zoo.models import create

IMAGES, BATCH, TARGET, ENGINE = 128, 64, 0.5, "onnxruntime"
GOALS = {"resnet56": 1.5, "vgg16": 2.0}  # times as fast in onnxruntime
CLOSE = 0.95  # a second measurement may come out this much lower
BY_TIME = "a goal in time"
WAYS: dict[str, dict[str, Any]] = {
    "every unit by one ratio": {"uniform": True},
    "Algorithm 1": {},
    "round_to=8": {"round_to": 8},
    "round_to=16": {"round_to": 16},
    'streams="coupled"': {"streams": "coupled"},
    'streams="coupled", round_to=8': {"streams": "coupled", "round_to": 8},
}
NORMAL = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def network(name: str, weights: Path | None) -> nn.Module:
    torch.manual_seed(0)
    model = create(name).eval()
    if weights is not None:
        load_model(model, weights)
    return model


def batches(data_root: Path | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images to decide on, and their classes: CIFAR-10's test images, or noise and any classes."""
    if data_root is not None:
        return list(load("cifar10", data_root, **NORMAL).loader("test", BATCH, limit=IMAGES))  # type: ignore[arg-type]
    noise = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return [(images, torch.arange(len(images)) % 10) for images in torch.split(noise, BATCH)]


def by_time(model: nn.Module, images: list[Any], goal: float) -> nn.Module:
    """As fast as asked for, without training."""
    found = sc.compress(
        model, images, images, example=images[0][0][:1], epochs=0, speedup=goal, engine=ENGINE, batch=BATCH, threads=1
    )
    return found.model


def pruned(model: nn.Module, images: list[Any], uniform: bool = False, **way: Any) -> nn.Module:
    """Half of the MACs gone."""
    graph = sc.trace(model, images[0][0][:1], way.get("streams", "select"))
    scores = sc.score(graph, images, metric="reader_energy")
    if uniform:
        return sc.prune(graph, _by_ratio(graph, scores))
    options = {"round_to": way.get("round_to", 1)}
    found = sc.sensitivity(graph, scores, images, measure="loss", exact=True, **options)
    return sc.prune(graph, sc.decide(graph, scores, found, target=TARGET, **options))


def _by_ratio(graph: sc.ChannelGraph, scores: Scores) -> sc.Plan:
    """The smallest ratio that is enough."""
    plans = (sc.uniform(graph, scores, percent / 100) for percent in range(1, 100))
    return next(plan for plan in plans if graph.cost(plan).macs <= (1 - TARGET) * graph.macs)


def measure(name: str, ways: list[str], engines: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """A way -> its speed in each engine, its MACs and selections."""
    model = network(name, args.weights if name == "resnet56" else None)
    images = batches(args.data_root)
    models, table = {"original": model}, dict[str, Any]()
    for way in ways:
        try:
            models[way] = by_time(model, images, GOALS[name]) if way == BY_TIME else pruned(model, images, **WAYS[way])
        except DecideError as error:
            table[way] = {"out of reach": str(error)}
    options: dict[str, Any] = {"rounds": args.rounds, "cpu_time": True}
    plain = sc.bench(models, images[0][0][:1], (BATCH,), engines, **options)
    folded = sc.bench(models, images[0][0][:1], (BATCH,), ("eager",), fold_bn=True, **options)
    for way in models:
        size = plain.profiles[way]
        found = {str(r.engine): r for r in plain.rows if r.model == way}
        found["eager, folded"] = next(r for r in folded.rows if r.model == way)
        table[way] = {
            "macs": size.macs,
            "selections": size.selections,
            "selecting": size.shares.get("channel selection", 0.0),
            "milliseconds": {engine: round(1e3 * r.timing.median, 2) for engine, r in found.items()},
            "speedup": {engine: round(r.speedup, 3) for engine, r in found.items()},
            "spread": {engine: round(r.timing.spread, 3) for engine, r in found.items()},
        }
    about = {"batch": BATCH, "threads": 1, "load of the machine": round(os.getloadavg()[0], 1), "notes": plain.notes}
    return {"about": about, **table}


def show(name: str, table: dict[str, Any]) -> None:
    print(f"\n{name}: {table['about']}")
    whole = table["original"]["macs"]
    for way, line in list(table.items())[1:]:
        if "milliseconds" not in line:
            print(f"{way:32} {line}", flush=True)
            continue
        speeds = "  ".join(f"{e} {ms:.0f} ms {line['speedup'][e]:.2f}x" for e, ms in line["milliseconds"].items())
        left = f"{whole / line['macs']:.2f}x fewer MACs, {line['selections']:2} selections"
        print(f"{way:32} {left}  {speeds}", flush=True)


def main(words: list[str] | None = None) -> list[Row]:
    """Time, print, write; the rows for `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all ways, in PyTorch and torch.compile too")
    parser.add_argument("--weights", type=Path, help="trained weights of ResNet-56")
    parser.add_argument("--data-root", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--network", choices=list(GOALS), help="only this one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path, help="JSON file for the results")
    args = parser.parse_args(words or [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for name, goal in GOALS.items():
            if args.network not in (None, name):
                continue
            engines = ["eager", ENGINE, "compile"] if args.all else [ENGINE]
            table = measure(name, [BY_TIME, *WAYS] if args.all else [BY_TIME], engines, args)
            show(name, table)
            if args.write:
                before = json.loads(args.write.read_text()) if args.write.exists() else {}
                write_atomically(args.write, json.dumps(before | {name: table}, indent=1).encode())
            ratio = table[BY_TIME]["speedup"][ENGINE]
            rows.append(
                row(f"{name}: measured speed-up of {goal:g}x asked, {ENGINE}", ratio, round(CLOSE * goal, 3), "higher")
            )
    finally:
        torch.set_num_threads(threads)
    return rows


if __name__ == "__main__":
    say(main(sys.argv[1:]))
