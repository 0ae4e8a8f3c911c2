"""Time and memory of a repair, beside a forward pass of the same images: random weights, random images, one thread.

    python benchmarks/repair_cost.py resnet50 --num-images 5000 --memory 4G --out docs/results/repair-cost.json

The given share of every private unit is removed. Images are made batch by batch as the repair asks for them. Seconds
are those of the processor. A forward pass of the unpruned network, in small batches, is timed on at most 128 of the
images. The peak is that of the whole process (ru_maxrss). A row that the file holds already is measured again.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import secateur as sc
from benchmarks.on_cifar10 import table_so_far, write
from secateur.zoo.models import create
from tests.networks.from_torchvision import library

BATCH = 50


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A network with random weights, and the shape of its images."""
    torch.manual_seed(0)
    if name == "resnet56":
        return create(name, num_classes=10).eval(), (3, 32, 32)
    if name == "lite0":
        library()  # timm needs torchvision
        import timm

        return timm.create_model("tf_efficientnet_lite0").eval(), (3, 224, 224)
    return library().get_model(name, weights=None).eval(), (3, 224, 224)


def batches(count: int, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Random images, the same each time."""
    for start in range(0, count, BATCH):
        draw = torch.Generator().manual_seed(start)
        yield torch.randn(min(BATCH, count - start), *shape, generator=draw)


@torch.no_grad()
def forward_seconds(model: nn.Module, count: int, shape: tuple[int, ...]) -> float:
    """Processor seconds for all images, from at most 128 of them."""
    at_once, done, spent = 64 if shape[1] < 64 else 8, 0, 0.0
    model(next(batches(at_once, shape)))
    for batch in batches(min(count, 128), shape):
        for few in batch.split(at_once):
            start = time.process_time()
            model(few)
            spent += time.process_time() - start
            done += len(few)
    return spent * count / done


def main() -> None:
    """Measure one network with one number of images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="resnet56, lite0 (needs timm), or a classifier of torchvision")
    parser.add_argument("--num-images", type=int, default=500)
    parser.add_argument("--memory", default=None, help="bound, such as 4G; half of the machine's by default")
    parser.add_argument("--share", type=float, default=0.5, help="of the channels of every private unit")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, shape = network(args.network)
    graph = sc.trace(model, torch.zeros(1, *shape))
    inner = {name: unit for name, unit in graph.units.items() if unit.kind == "private"}
    keep = {n: range(int(u.width * (1 - args.share)) // u.granule * u.granule) for n, u in inner.items()}
    plan = sc.Plan.of(graph, keep)
    forward = forward_seconds(model, args.num_images, shape)
    begun, spent = time.perf_counter(), time.process_time()
    sc.repair(graph, plan, batches(args.num_images, shape), memory=args.memory)
    spent, clock = time.process_time() - spent, time.perf_counter() - begun
    row = {
        "network": args.network,
        "image": shape,
        "num_images": args.num_images,
        "memory": args.memory,
        "share": args.share,
        "macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 3),
        "forward_core_seconds": round(forward, 1),
        "repair_core_seconds": round(spent, 1),
        "repair_clock_seconds": round(clock, 1),
        "forward_passes": round(spent / forward, 1),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    }
    print(row, flush=True)
    table = table_so_far(args.out, {})
    table[f"{args.network}, {args.num_images} images, memory {args.memory}"] = row
    write(table, args.out)


if __name__ == "__main__":
    main()
