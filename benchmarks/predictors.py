"""What predicts the accuracy after retraining? Some twenty plans at equal MACs, and rank correlations over them.

    python benchmarks/predictors.py --weights resnet20-cifar10.safetensors --data DIR --out predictors.json \
        --network resnet20 --epochs 3 --num-images 10000 --seed 0 [--plans 20]

Half of the plans split the cut for the least error, with the errors of each unit multiplied by a random factor (the
first by 1): random splits of channels that are well chosen. The others take one share of every unit by ten metrics.
Each plan is evaluated as cut, after the repairs bn and solve, and after a short retraining from the latter with the
unpruned network as teacher. All figures are of the half of CIFAR-10's test images that is held out; the other half is
not read. `error` is the sum of the errors that the metric rebuilt gives to so many channels of each unit.
--epochs 0 leaves the retraining out. Written plan by plan; a second call goes on with what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from scipy.stats import spearmanr

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from benchmarks.schedule import BATCH
from prunus.decide.candidates import candidates
from prunus.decide.splits import least_error, uniform_within
from prunus.decide.widths import Cutter
from prunus.train.rate_test import FirstBatches
from prunus.zoo.data import ImageData

METRICS = ("rebuilt", "reader_energy", "gsd_reader", "gsd", "fdr", "act_variance", "l1", "l2", "fpgm", "random")
SPREAD = 1.0  # standard deviation of the factors' logarithms
IMAGES = 2000  # training images that score and repair
LATE = "retrained"
SPLIT = "least error, split"
ASKED = ("network", "target", "plans", "epochs", "num_images", "lr", "precision", "seed")


def plans(graph: sc.ChannelGraph, errors: sc.Scores, data: ImageData, args: Any) -> Iterator[tuple[str, sc.Plan]]:
    """Name and plan, all with the target removed."""
    left, names = (1 - args.target) * graph.macs, candidates(graph)
    draw, count = np.random.default_rng(args.seed), args.plans // 2
    for number in range(count):
        factors = {name: np.exp(SPREAD * draw.normal() * (number > 0)) for name in errors.values}
        weighed = sc.Scores("rebuilt", {name: factors[name] * values for name, values in errors.values.items()})
        yield f"{SPLIT} {number}", least_error(Cutter(graph, weighed), names, left)
    for metric in METRICS[: args.plans - count]:
        scores = errors if metric == "rebuilt" else sc.score(graph, data.loader("train", 250, limit=IMAGES), metric)
        yield f"one share, {metric}", uniform_within(Cutter(graph, scores), names, left)


def summed_error(plan: sc.Plan, errors: sc.Scores) -> float:
    """The sum over units of the error after losing as many channels, in the order of least error."""
    lost = {name: count for name, count in plan.removed().items() if count}
    return float(sum(np.sort(errors.values[name])[count - 1] for name, count in lost.items()))


def measured(graph: sc.ChannelGraph, plan: sc.Plan, data: ImageData, args: Any) -> dict[str, float]:
    """Held-out per cent of the plan's networks."""
    held, images = data.loader("holdout", 250), data.loader("train", 250, limit=IMAGES)
    networks = {how: sc.repair(graph, plan, images, how=how) for how in ("none", "bn", "solve")}
    if args.epochs:
        train = data.loader("train", BATCH, augment=True, shuffle=True, seed=args.seed)
        networks[LATE] = sc.fit(
            networks["solve"],
            FirstBatches(train, args.num_images // BATCH),
            teacher=graph.model,
            epochs=args.epochs,
            lr=args.lr,
            mixed_precision=args.precision,
            seed=args.seed,
        ).model
    return {name: round(100 * sc.evaluate(model, held).quality, 2) for name, model in networks.items()}


def correlations(rows: dict[str, Any], late: str) -> dict[str, float]:
    """Spearman's rank correlation of each figure with the last one; errors count as their negatives."""
    found = {}
    for name in ("none", "bn", "solve", "error"):
        sign = -1 if name == "error" else 1
        pairs = [(sign * row[name], row[late]) for row in rows.values() if late in row]
        if name != late and len(pairs) > 2:
            found[name] = round(float(spearmanr(*zip(*pairs, strict=True)).statistic), 3)
    return found


def all_correlations(rows: dict[str, Any], late: str) -> dict[str, dict[str, float]]:
    """Over all plans, and over the splits alone, which differ in what each unit loses."""
    splits = {name: row for name, row in rows.items() if name.startswith(SPLIT)}
    return {"correlations": correlations(rows, late), "correlations of splits": correlations(splits, late)}


def main() -> None:
    """Measure the plans that are missing, then correlate."""
    parser = arguments(__doc__)
    parser.add_argument("--network", default="resnet20")
    parser.add_argument("--target", type=float, default=0.5)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--num-images", type=int, default=10_000, help="images in an epoch")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--precision", default="no", help="of the training: bf16 is faster on some processors")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=100, help="plans to measure in this call")
    args = parser.parse_args()
    model, data = opened(args.network, args)
    graph = sc.trace(model, torch.zeros(1, *data.shape))
    asked = {key: getattr(args, key) for key in ASKED}
    table = table_so_far(args.out, {"asked": asked, "rows": {}})
    if table["asked"] != asked:
        sys.exit(f"{args.out} is of another run: {table['asked']}, and this one is {asked}; give another --out")
    images = data.loader("train", 250, limit=IMAGES)
    errors = sc.score(graph, sc.repair_each(graph, images), "rebuilt")
    todo = args.at_once
    for name, plan in plans(graph, errors, data, args):
        if name in table["rows"] or not todo:
            continue
        removed = round(1 - graph.cost(plan).macs / graph.macs, 4)
        row = {"removed": removed, "error": summed_error(plan, errors), **measured(graph, plan, data, args)}
        table["rows"][name], todo = row, todo - 1
        write(table, args.out)
        print(name, row, flush=True)
    table |= all_correlations(table["rows"], LATE if args.epochs else "solve")
    write(table, args.out)
    print("rank correlation with the last figure:", {key: table[key] for key in table if "correlations" in key})


if __name__ == "__main__":
    main()
