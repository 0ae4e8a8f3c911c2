"""Each discriminant with the ridge that suits it best: chosen on one half of the test images, reported on the other.

    python benchmarks/ridges.py resnet20 --weights FILE --data DIR --out docs/results/ridges-resnet20.json

Each metric removes the same share of every inner unit, without repair or retraining; statistics from 5,000 training
images. For each metric the ridge is taken that keeps the most held-out images (`--holdout test:0.5`) right when 30% are
removed. The other half of the test images is read for the chosen ridge, for the ridge of the package and for no
ridge, beside activation variance, L1 and random numbers (mean of five seeds).

The output is written row by row, and a second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.graph.channel_graph import ChannelGraph
from prunus.score.score import score
from prunus.score.scores import Scores, rank_correlation
from prunus.studies.effectiveness import units_to_prune
from prunus.studies.folder import BATCH, accuracy_of, in_memory
from prunus.util.batches import Batches

IMAGES = 5000
CHOSEN_AT = 0.3
METRICS = {"gsd": 0.05, "fdr": 1e-4, "abs_snr": 1e-4, "ttest": 1e-4}  # with the package's own ridge
RIDGES = (0, 1e-4, 1e-3, 1e-2, 0.05, 0.2, 1, 10, 100)
SEEDS = 5

Row = dict[str, Any]
Measure = Callable[[str, float], float]


def named(metric: str, ridge: float) -> str:
    """gsd and 0.5 as gsd:ridge=0.5."""
    return f"{metric}:ridge={ridge:g}"


def all_scores(graph: ChannelGraph, train: Batches) -> dict[str, Scores]:
    """Scores of the inner units by every metric, with every ridge, and by every seed."""
    names = [named(metric, ridge) for metric in METRICS for ridge in RIDGES]
    found = score(graph, train, [*names, "act_variance", "l1"], IMAGES, seed=0)
    for seed in range(SEEDS):
        found[f"random:{seed}"] = sc.score(graph, metric="random", seed=seed)
    inner = units_to_prune(graph, "inner")
    return {name: one.of_units(inner) for name, one in found.items()}


def measured(
    graph: ChannelGraph, scores: dict[str, Scores], images: Batches, known: Row, keep: Callable[[], None]
) -> Measure:
    """A function of a metric and a ratio: per cent of the images right as cut. Each result is written at once."""

    def measure(name: str, ratio: float) -> float:
        key = f"{name} {ratio:g}"
        if key not in known:
            plan = sc.uniform(graph, scores[name], ratio, units=units_to_prune(graph, "inner"))
            known[key] = round(100 * accuracy_of(sc.prune(graph, plan), graph, images).quality, 2)
            print(key, known[key], flush=True)
            keep()
        return float(known[key])

    return measure


def reported(scores: dict[str, Scores], chosen: dict[str, str], measure: Measure, ratios: list[float]) -> list[Row]:
    """The rows of the table: name, rank correlation with activation variance, accuracy at each ratio."""
    names = [*chosen.values(), *(named(metric, ridge) for metric, own in METRICS.items() for ridge in (own, 0))]
    rows = []
    for name in dict.fromkeys([*names, "act_variance", "l1"]):
        like = round(rank_correlation(scores[name], scores["act_variance"]), 4)
        cells: Row = {f"{ratio:g}": measure(name, ratio) for ratio in ratios}
        rows.append({"metric": name, "correlation_with_act_variance": like, "accuracy": cells})
    each = {ratio: [measure(f"random:{seed}", ratio) for seed in range(SEEDS)] for ratio in ratios}
    cells = {f"{ratio:g}": round(mean(values), 2) for ratio, values in each.items()}
    spread = {f"{ratio:g}": round(stdev(values), 2) for ratio, values in each.items()}
    return [*rows, {"metric": "random", "accuracy": cells, "standard_deviation": spread}]


def main() -> None:
    """Choose and report."""
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("network", choices=("resnet20", "resnet56"))
    parser.add_argument("--ratios", default="0.1,0.2,0.3,0.4,0.5", help="shares removed that are reported")
    args = parser.parse_args()
    ratios = [float(text) for text in args.ratios.split(",")]
    model, data = opened(args.network, args)
    graph = sc.trace(model, torch.zeros(1, 3, 32, 32))
    scores = all_scores(graph, data.loader("train", 128))
    start: Row = {"network": args.network, "images": IMAGES, "chosen_at": CHOSEN_AT, "holdout": {}, "test": {}}
    table = table_so_far(args.out, start)

    def on(part: str) -> Measure:
        images = in_memory(data.loader(part, BATCH))  # type: ignore[arg-type]
        return measured(graph, scores, images, table[part], lambda: write(table, args.out))

    judge = on("holdout")
    table["chosen"] = {
        metric: max((named(metric, ridge) for ridge in RIDGES), key=lambda name: judge(name, CHOSEN_AT))
        for metric in METRICS
    }
    table["rows"] = reported(scores, table["chosen"], on("test"), ratios)
    write(table, args.out)
    for row in sorted(table["rows"], key=lambda row: -float(row["accuracy"][f"{CHOSEN_AT:g}"])):
        print(row)


if __name__ == "__main__":
    main()
