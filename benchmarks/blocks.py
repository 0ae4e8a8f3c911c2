"""Whole blocks, on and off: the same scores, the same table of times, the same images, one plan with and one without.

    python benchmarks/blocks.py --network resnet56 --weights FILE --data DIR --engine onnxruntime --batch 64 \
        --speedup 2 --num-images 1000 --work FOLDER --out FILE.json

A row has the branches that the plan removes, the sum of its errors, the predicted speed-up, and accuracy on
--num-held-out held-out images before and after the repair on --num-images training images, no labels; scores are of
--num-scored images. Nothing is searched: `cifar.py` measures what `prunus prune` gives. Scores are kept in --work, rows
are written one by one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import Tensor, nn

import prunus
from benchmarks import Results
from benchmarks.cifar import MEAN, STD
from prunus.deciding.costs import table_cost
from prunus.deciding.goal import Budget
from prunus.deciding.settings import SplitSettings
from prunus.deciding.splits import SplitTask, least_error
from prunus.run.speed_check import plan_error
from prunus.scoring.scores import Scores
from prunus.timing.layer_timing import latency_table
from prunus.zoo.data import load
from prunus.zoo.models import create
from prunus.zoo.weights import load_weights


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Per cent right."""
    right = sum(int((model.eval()(x).argmax(1) == y).sum()) for x, y in batches)
    return round(100 * right / sum(len(y) for _, y in batches), 2)


def main() -> None:
    """Measure what is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--engine", default="onnxruntime")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--speedup", type=float, default=2.0)
    parser.add_argument("--num-scored", type=int, default=1000)
    parser.add_argument("--num-images", type=int, default=1000)
    parser.add_argument("--num-held-out", type=int, default=2500)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = load("cifar10", Path(args.data), mean=MEAN, std=STD, holdout="test:0.5")
    model = create(args.network, num_classes=10).eval()
    load_weights(model, args.weights)
    graph = prunus.trace(model, torch.zeros(1, *data.shape))
    images = torch.cat([batch[0] for batch in data.loader("train", 250, limit=args.num_images)])
    held_out = [(batch[0], batch[1]) for batch in data.loader("holdout", 250, limit=args.num_held_out)]
    known = args.work / f"scores-{args.network}.npz"
    if known.exists():
        scores = Scores("rebuilt", dict(np.load(known)))
    else:
        scores = prunus.score(graph, data.loader("train", 250, limit=args.num_scored), metric="rebuilt")
        args.work.mkdir(parents=True, exist_ok=True)
        np.savez(known, **scores.values)
    table = latency_table(graph, engine=args.engine, batch=args.batch, threads=1)
    cost = table_cost(graph, table)
    command = "python benchmarks/blocks.py " + " ".join(sys.argv[1:])
    results = Results(args.out, "whole blocks on and off, without training: held-out accuracy in per cent", command)
    for blocks in (True, False):
        key = {
            name: getattr(args, name) for name in ("network", "engine", "batch", "speedup", "num_scored", "num_images")
        }
        key |= {"num_held_out": args.num_held_out, "blocks": blocks}
        if results.find(key) is not None:
            continue
        settings = SplitSettings(split="least_error", blocks=blocks)
        task = SplitTask(graph, scores, Budget(cost, cost({}) / args.speedup, cost({})), settings)
        plan = least_error(task)
        row = {
            **key,
            "removed": [name for name, kept in plan.keep.items() if not kept],
            "error": round(plan_error(task, plan), 5),
            "predicted": round(cost({}) / cost(plan.keep), 4),
            "macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 4),
            "unpruned": accuracy(model, held_out),
            "cut": accuracy(prunus.prune(graph, plan), held_out),
            "repaired": accuracy(prunus.repair(graph, plan, images), held_out),
        }
        results.add(row)
        print(row, flush=True)


if __name__ == "__main__":
    main()
