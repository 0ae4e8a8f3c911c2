"""Accuracy of ResNet-56 on CIFAR-10 with 30, 50 and 70% of every block's inner channels removed, and no training.

    python benchmarks/repair.py --weights resnet56-cifar10.safetensors --data DIR --out docs/results/repair.json

As cut, and repaired on 500 training images without their labels in each of three ways. Channels go by reader_energy
(statistics of 5,000 training images), in a last row by what a repair cannot rebuild (statistics of 250 of the 500);
accuracy is that of 2,000 test images. All are drawn by torch.randperm with seed 0. The output is written row by row,
and a second run goes on where the first stopped.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.decide.splits import uniform
from prunus.score.score import score
from prunus.score.scores import Scores
from prunus.tasks.evaluate import evaluate
from prunus.zoo.data import ImageData, Part

WAYS: dict[str, dict[str, Any]] = {
    "as cut": {},
    "bn": {"how": "bn"},
    "solve, layers that lost inputs": {"how": "solve", "layers": "cut"},
    "solve, every layer behind a cut": {"how": "solve"},
    "solve, every layer, channels by rebuilt": {"how": "solve"},
}
REBUILT = "solve, every layer, channels by rebuilt"


def drawn(data: ImageData, part: Part, images: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of so many images of a part, drawn with seed 0."""
    places = torch.randperm(data.count(part), generator=torch.Generator().manual_seed(0))[:images]
    return list(replace(data, parts={part: data.parts[part].take(places.numpy())}).loader(part, 125))


def measured(graph: sc.ChannelGraph, scores: Scores, ratio: float, way: str, images: Any, test: Any) -> dict[str, Any]:
    """Accuracy in per cent, seconds of the repair (by the clock, and of all cores), share of MACs removed."""
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    plan = uniform(graph, scores, ratio, units=inner)
    start, spent = time.perf_counter(), time.process_time()
    model = sc.repair(graph, plan, images, **WAYS[way]) if WAYS[way] else sc.prune(graph, plan)
    seconds, spent = time.perf_counter() - start, time.process_time() - spent
    accuracy = 100 * evaluate(model, test).quality
    removed = 1 - graph.cost(plan).macs / graph.macs
    return {
        "accuracy": round(accuracy, 2),
        "seconds": round(seconds, 1),
        "core_seconds": round(spent, 1),
        "macs_removed": round(removed, 3),
    }


def main() -> None:
    """Fill the table."""
    parser = arguments(__doc__)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.3, 0.5, 0.7])
    parser.add_argument("--images", type=int, default=500, help="training images for the repair")
    parser.add_argument("--test", type=int, default=2000, help="test images")
    args = parser.parse_args()
    model, data = opened("resnet56", args, holdout="none")
    graph = sc.trace(model, torch.zeros(1, 3, 32, 32))
    test = drawn(data, "test", args.test)
    table = table_so_far(args.out, {})
    if "base" not in table:
        base = round(100 * evaluate(model, test).quality, 2)
        table = {"network": "resnet56 on cifar10", "images": args.images, "test": args.test, "base": base, "rows": {}}
    scores = score(graph, drawn(data, "train", 5000), "reader_energy")
    images = drawn(data, "train", args.images)
    other = sc.score(graph, sc.repair_each(graph, images[:2]), "rebuilt")
    for ratio in args.ratios:
        for way in WAYS:
            key = f"{ratio:g}"
            if way in table["rows"].get(key, {}):
                continue
            row = measured(graph, other if way == REBUILT else scores, ratio, way, images, test)
            table["rows"].setdefault(key, {})[way] = row | {"threads": torch.get_num_threads()}
            write(table, args.out)
            print(key, way, row, flush=True)


if __name__ == "__main__":
    main()
