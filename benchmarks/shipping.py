"""Half of the MACs removed: how much faster is that, and do widths matter? `python benchmarks/shipping.py [--rounds N]`

ResNet-56 and CIFAR VGG-16 with random weights (speed does not depend on them), pruned to given widths, timed beside
the originals at batch 64 in turns. "multiples" have every width a multiple of 8 or 16, as round_to would leave them.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import nn

import secateur as sc
from secateur.zoo.models import create

Widths = dict[tuple[str, int], int]  # (kind, width) -> channels kept

RESNET: dict[str, Widths] = {
    "inner channels only": {("private", 16): 8, ("private", 32): 16, ("private", 64): 32},
    "with selection": {(kind, w): round(0.615 * w) for kind in ("private", "stream") for w in (16, 32, 64)},
    "with selection, multiples of 8": {
        ("private", 16): 8,
        ("private", 32): 24,
        ("private", 64): 40,
        ("stream", 32): 16,
        ("stream", 64): 40,
    },
}
VGG: dict[str, Widths] = {
    "70% of each width": {("private", w): round(0.7 * w) for w in (64, 128, 256, 512)},
    "multiples of 16": {("private", 64): 48, ("private", 128): 80, ("private", 256): 176, ("private", 512): 352},
}


def pruned(graph: sc.ChannelGraph, widths: Widths) -> nn.Module:
    """So many channels of each unit kept, drawn at random; the classifier reads all of the stream."""
    keep = {}
    for name, unit in graph.units.items():
        count = widths.get((unit.kind, unit.width))
        if count is not None and unit.readers[0].module != "linear":
            keep[name] = sorted(np.random.default_rng(0).permutation(unit.width)[:count].tolist())
    return sc.prune(graph, sc.Plan.of(graph, graph.balance(keep)))


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--engines", nargs="+", default=["eager", "onnx"], help="eager, compile, onnx")
    args = parser.parse_args()
    for name, variants in (("resnet56", RESNET), ("vgg16", VGG)):
        original = create(name).eval()
        graph = sc.trace(original, torch.zeros(1, 3, 32, 32))
        models = {name: original} | {about: pruned(graph, widths) for about, widths in variants.items()}
        found = sc.bench(models, torch.randn(1, 3, 32, 32), (args.batch,), args.engines, rounds=args.rounds)
        for row in found.rows:
            size = found.sizes[row.model]
            fewer = graph.macs / size.macs if size.macs else float("nan")
            print(
                f"{name:9} {row.model:32} {row.engine:8} {1e3 * row.timing.median:8.1f} ms  spread "
                f"{100 * row.timing.spread:3.0f}%  {row.speedup:.2f}x faster  {fewer:.2f}x fewer MACs  selection "
                f"{100 * size.shares.get('channel selection', 0.0):.1f}% of the time"
            )


if __name__ == "__main__":
    main()
