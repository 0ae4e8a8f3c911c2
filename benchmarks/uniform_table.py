"""The same share of every block's inner channels removed, by metric, no retraining: accuracy of ResNet-56 on CIFAR-10.

    python benchmarks/uniform_table.py --weights resnet56-cifar10.safetensors --data DIR --out docs/results/FILE.json

Weights are those of the public akamaster/pytorch_resnet_cifar10 (see docs/metrics.md). Statistics come from random
training images and accuracy from random test images, both drawn by torch.randperm with seed 0. The output is written
row by row, and a second run goes on where the first stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import secateur as sc
from secateur.deciding.budget import uniform
from secateur.measuring import evaluate
from secateur.scoring import METRICS, Channels, Scores, collect, score
from secateur.zoo.data import ImageData, Part, load
from secateur.zoo.models import create, load_weights

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def variance_reader(channels: Channels) -> Tensor:
    """Variance of the activations x squared norm of the readers' weights."""
    count, _, m2 = channels.moments.total()
    return m2 / count * channels.reader_norms


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    metric: str | Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    maps: bool = False  # on fewer images

    @property
    def moments(self) -> bool:
        """Whether class moments are all it needs."""
        return callable(self.metric) or METRICS[self.metric].needs == "moments"


ROWS = (
    Row("gsd, ridge 0.05", "gsd"),
    Row("gsd, ridge 0.5", "gsd", {"ridge": 0.5}),
    Row("gsd, ridge 1e-3", "gsd", {"ridge": 1e-3}),
    Row("gsd, ridge 1e-12", "gsd", {"ridge": 1e-12}),
    Row("gsd, before ReLU, ridge 0.05", "gsd", {"tap": "before_activation"}),
    Row("reader_energy", "reader_energy"),
    Row("gsd_reader", "gsd_reader"),
    Row("variance x squared reader norm", variance_reader),
    Row("act_variance", "act_variance"),
    Row("di (1,000 images)", "di", maps=True),
    Row("mmd, sigma 1 (1,000 images)", "mmd", maps=True),
    Row("l1", "l1"),
    Row("l2", "l2"),
    Row("fpgm", "fpgm"),
    Row("bn_scale", "bn_scale"),
    Row("fisher", "fisher"),
    Row("taylor", "taylor"),
    Row("fdr, ridge 1e-4", "fdr"),
    Row("abs_snr, ridge 1e-4", "abs_snr"),
    Row("ttest, ridge 1e-4", "ttest"),
    Row("random", "random"),
)


def drawn(data: ImageData, part: Part, images: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of so many images of a part, drawn with seed 0."""
    places = torch.randperm(data.count(part), generator=torch.Generator().manual_seed(0))[:images]
    return list(replace(data, parts={part: data.parts[part].take(places.numpy())}).loader(part, 125))


def accuracies(graph: sc.ChannelGraph, scores: Scores, ratios: list[float], test: Any) -> dict[str, float]:
    """Per cent right after each share of the inner channels has gone."""
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    found = {}
    for ratio in ratios:
        plan = uniform(graph, scores, ratio, units=inner)
        with sc.zeroed(graph, plan):
            found[f"{ratio:g}"] = round(100 * evaluate(graph.model, test).top1, 2)
    return found


def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CIFAR-10")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these words")
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4, 0.5])
    parser.add_argument("--images", type=int, default=5000, help="training images for statistics")
    parser.add_argument("--map-images", type=int, default=1000, help="training images for di and mmd")
    parser.add_argument("--test", type=int, default=2000, help="test images")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = create("resnet56", num_classes=10).eval()
    load_weights(model, args.weights)
    data = load("cifar10", args.data, mean=MEAN, std=STD, holdout="none")
    graph = sc.trace(model, torch.zeros(1, 3, 32, 32))
    train, few = drawn(data, "train", args.images), drawn(data, "train", args.map_images)
    test = drawn(data, "test", args.test)
    table = json.loads(args.out.read_text()) if args.out.exists() else {}
    if "base" not in table:
        table = {
            "network": "resnet56 on cifar10",
            "images": args.images,
            "test": args.test,
            "base": round(100 * evaluate(model, test).top1, 2),
            "rows": {},
        }
    statistics = None  # one pass serves all moment metrics
    for row in ROWS:
        if row.name in table["rows"] or (args.only and not any(word in row.name for word in args.only)):
            continue
        start = time.perf_counter()
        options = dict(row.options) | ({"sample": None} if row.maps else {})
        if row.moments and "tap" not in options and statistics is None:
            statistics = collect(graph, train)
        source = few if row.maps else statistics if row.moments and "tap" not in options else train
        scores = score(graph, source, row.metric, **options)
        seconds = time.perf_counter() - start
        table["rows"][row.name] = {**accuracies(graph, scores, args.ratios, test), "scoring_seconds": round(seconds, 1)}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        part = args.out.with_suffix(".part")
        part.write_text(json.dumps(table, indent=2) + "\n")
        part.replace(args.out)
        print(row.name, table["rows"][row.name], flush=True)


if __name__ == "__main__":
    main()
