"""Retraining from a repaired network beside retraining from the same network as it was cut: accuracy epoch by epoch.

    python benchmarks/repair_retraining.py --weights resnet20-cifar10.safetensors --data DIR \
        --out docs/results/repair-retraining.json

ResNet-20 on CIFAR-10, half of every block's inner channels removed by reader_energy, the same images in the same order
for both. A short epoch is a third of the training images, another third each time. The curve is that of one half of the
test images, the last figure ("test") that of the other half. Written run by run; a second call goes on where the first
stopped, and draws the picture beside the JSON at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.zoo.data import ImageData

RATES = (0.02, 0.002)
STARTS = {"as cut": "tab:gray", "repaired": "tab:green"}  # and the colour in the picture


@dataclass
class Third:
    """The first third of a shuffled loader's batches: another third each epoch, since each has an order of its own."""

    whole: Any

    def __len__(self) -> int:
        return len(self.whole) // 3

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.whole), len(self))

    def set_epoch(self, epoch: int) -> None:
        """As the loader's."""
        self.whole.set_epoch(epoch)


def starts(model: nn.Module, data: ImageData) -> tuple[dict[str, nn.Module], float]:
    """The cut network, as it is and repaired on 500 images without labels; the share of MACs removed."""
    graph = sc.trace(model, torch.zeros(1, *data.shape))
    scores = sc.score(graph, data.loader("train", 250, limit=5000), "reader_energy")
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    plan = sc.uniform(graph, scores, 0.5, units=inner)
    repaired = sc.repair(graph, plan, data.loader("train", 125, limit=500))
    return {"as cut": sc.prune(graph, plan), "repaired": repaired}, 1 - graph.cost(plan).macs / graph.macs


def curve(start: nn.Module, data: ImageData, lr: float, epochs: int) -> dict[str, Any]:
    """Per cent right before and after each short epoch, and on the other test images at the end."""
    watched, other = data.loader("holdout", 250), data.loader("test", 250)
    fitted = sc.fit(
        start,
        Third(data.loader("train", 128, augment=True, shuffle=True)),
        watched,
        preset=sc.Preset("short", epochs=epochs, lr=lr, batch_size=128, schedule="cosine"),
    )
    tops = [sc.evaluate(start, watched).quality, *(epoch.holdout.quality for epoch in fitted.history if epoch.holdout)]
    return {
        "curve": [round(100 * top, 2) for top in tops],
        "test": round(100 * sc.evaluate(fitted.model, other).quality, 2),
    }


def draw(table: dict[str, Any], path: Path) -> None:
    """Both starts at each rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, row in table["runs"].items():
        start, _, rate = name.partition(", lr ")
        gentle = float(rate) < max(RATES)
        style = {"color": STARTS[start], "linestyle": "--" if gentle else "-", "marker": "o" if gentle else "s"}
        axes.plot(range(len(row["curve"])), row["curve"], label=f"{start}, rate {rate}", **style)
    axes.axhline(table["base"], color="black", linewidth=0.8, linestyle=":", label="unpruned")
    axes.set(xlabel="short epochs (a third of the training images each)", ylabel="accuracy, per cent")
    axes.set_xticks(range(table["epochs"] + 1))
    axes.set_ylim(bottom=70)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run what is missing, then draw."""
    parser = arguments(__doc__)
    parser.add_argument("--epochs", type=int, default=4, help="short epochs")
    args = parser.parse_args()
    model, data = opened("resnet20", args)
    cut, removed = starts(model, data)
    base = round(100 * sc.evaluate(model, data.loader("holdout", 250)).quality, 2)
    head = {"network": "resnet20 on cifar10", "macs_removed": round(removed, 3), "base": base, "epochs": args.epochs}
    table = table_so_far(args.out, {**head, "runs": {}})
    for rate in RATES:
        for name in STARTS:
            key = f"{name}, lr {rate:g}"
            if key not in table["runs"]:
                table["runs"][key] = curve(cut[name], data, rate, args.epochs)
                write(table, args.out)
                print(key, table["runs"][key], flush=True)
    draw(table, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
