"""Half of the MACs removed: how much faster is that, in which engine, and do widths matter?

    python benchmarks/shipping.py [--all] [--network NAME] [--weights RESNET56] [--data-root DATA] [--write FILE]

ResNet-56 and CIFAR VGG-16 lose half of their MACs in one round of Algorithm 1 and are timed beside the originals at
batch 64, in turns, one thread, in processor seconds. Speed does not depend on weights; which units are chosen does, so
ResNet-56 takes trained ones if they are given, and CIFAR-10 to decide on. Without, networks are fresh and decide on
noise of no meaning.

Without --all only the way that docs/shipping.md recommends is timed, in PyTorch and onnxruntime.
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

import secateur as sc
from benchmarks.ratios import Row, row, say
from secateur.base.atomic_files import write_atomically
from secateur.errors import DecideError
from secateur.scoring.scores import Scores
from secateur.zoo.data import load
from secateur.zoo.models import create

IMAGES, BATCH, TARGET = 128, 64, 0.5
BOUNDS = {"resnet56": 1.5, "vgg16": 1.7}  # times as fast in the fastest engine
WAYS: dict[str, dict[str, Any]] = {
    "every unit by one ratio": {"uniform": True},
    "Algorithm 1": {},
    "round_to=8": {"round_to": 8},
    "round_to=16": {"round_to": 16},
    'cost="latency"': {"cost": "latency"},
    'cost="latency", round_to=8': {"cost": "latency", "round_to": 8},
    'cost="latency", spare': {"cost": "latency"},
    'streams="coupled"': {"streams": "coupled"},
    'streams="coupled", round_to=8': {"streams": "coupled", "round_to": 8},
}
# Kernels write 16 channels at a time: where a layer has just 16, fewer filters save MACs and hardly any time.
SPARED = {"resnet56": ("layer1.*.conv1:out",), "vgg16": ()}
RECOMMENDED = {"resnet56": 'cost="latency", spare', "vgg16": "round_to=16"}
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


def pruned(
    model: nn.Module, images: list[Any], spared: tuple[str, ...] = (), uniform: bool = False, **way: Any
) -> nn.Module:
    """Half of the MACs gone."""
    graph = sc.trace(model, images[0][0][:1], way.get("streams", "select"))
    scores = sc.score(graph, images, metric="reader_energy")
    if uniform:
        return sc.prune(graph, _by_ratio(graph, scores))
    options = {"round_to": way.get("round_to", 1)}
    asked: dict[str, Any] = {"measure": "loss", "exact": True, "exclude": spared, **options}
    found = sc.sensitivity(graph, scores, images, cost=way.get("cost", "macs"), **asked)
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
            models[way] = pruned(model, images, SPARED[name] if way.endswith("spare") else (), **WAYS[way])
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


def best(line: dict[str, Any]) -> tuple[str, float]:
    """The engine that runs the pruned network fastest, and how much faster than the original."""
    engine = min(line["milliseconds"], key=line["milliseconds"].__getitem__)
    return engine, line["speedup"][engine]


def main(words: list[str] | None = None) -> list[Row]:
    """Time, print, write; the rows for `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all ways, and torch.compile too")
    parser.add_argument("--weights", type=Path, help="trained weights of ResNet-56")
    parser.add_argument("--data-root", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--network", choices=list(BOUNDS), help="only this one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path, help="JSON file for the results")
    args = parser.parse_args(words or [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for name, bound in BOUNDS.items():
            if args.network not in (None, name):
                continue
            way = RECOMMENDED[name]
            engines = ["eager", "onnxruntime", "compile"] if args.all else ["eager", "onnxruntime"]
            ways = [w for w in WAYS if SPARED[name] or not w.endswith("spare")] if args.all else [way]
            table = measure(name, ways, engines, args)
            show(name, table)
            if args.write:
                before = json.loads(args.write.read_text()) if args.write.exists() else {}
                write_atomically(args.write, json.dumps(before | {name: table}, indent=1).encode())
            engine, ratio = best(table[way])
            about = f"speed of {name} without half of its MACs, {way}, {engine}"
            rows.append(row(about, ratio, bound, "higher"))
    finally:
        torch.set_num_threads(threads)
    return rows


if __name__ == "__main__":
    say(main(sys.argv[1:]))
