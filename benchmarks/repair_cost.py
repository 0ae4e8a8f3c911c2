"""Time and memory of a repair, beside a forward pass of the same images: random weights, random images, one thread.

    python benchmarks/repair_cost.py resnet50 --num-images 5000 --memory 4G --out docs/results/repair-cost.json
    python benchmarks/repair_cost.py resnet50 --num-images 250 --rebuilt --out docs/results/repair-cost.json

--rebuilt: the scores `rebuilt` of all units instead, and the pass over the images that they need.

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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import prunus as sc
from benchmarks.on_cifar10 import table_so_far, write
from prunus.score.reader_inputs import weights_per_filter
from prunus.zoo.models import create
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


def repaired(graph: sc.ChannelGraph, plan: sc.Plan, images: Iterator[Tensor], memory: str | None) -> dict[str, float]:
    """Seconds of the repair, of the processor and of the clock."""
    begun, spent = time.perf_counter(), time.process_time()
    sc.repair(graph, plan, images, memory=memory)
    spent, clock = time.process_time() - spent, time.perf_counter() - begun
    return {"repair_core_seconds": round(spent, 1), "repair_clock_seconds": round(clock, 1)}


def scored(graph: sc.ChannelGraph, images: Iterator[Tensor]) -> dict[str, Any]:
    """Seconds of the processor for the scores of all units, and the most inputs of a layer that reads one."""
    begun = time.process_time()
    units = sc.repair_each(graph, images)
    seen = time.process_time()
    sc.score(graph, units, metric="rebuilt")
    done = time.process_time()
    return {
        "most_inputs": max(weights_per_filter(inputs.layer) for inputs in units.seen.layers.values()),
        "pass_core_seconds": round(seen - begun, 1),
        "rebuilt_core_seconds": round(done - begun, 1),
    }


def main() -> None:
    """Measure one network with one number of images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", help="resnet56, lite0 (needs timm), or a classifier of torchvision")
    parser.add_argument("--num-images", type=int, default=500)
    parser.add_argument("--memory", default=None, help="bound, such as 4G; half of the machine's by default")
    parser.add_argument("--share", type=float, default=0.5, help="of the channels of every private unit")
    parser.add_argument("--rebuilt", action="store_true", help="time the scores instead of the repair")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, shape = network(args.network)
    graph = sc.trace(model, torch.zeros(1, *shape))
    inner = {name: unit for name, unit in graph.units.items() if unit.kind == "private"}
    keep = {n: range(int(u.width * (1 - args.share)) // u.granule * u.granule) for n, u in inner.items()}
    plan = sc.Plan.of(graph, keep)
    forward = forward_seconds(model, args.num_images, shape)
    row: dict[str, Any] = {"network": args.network, "image": shape, "num_images": args.num_images}
    if args.rebuilt:
        row |= scored(graph, batches(args.num_images, shape))
    else:
        row |= {"memory": args.memory, "share": args.share}
        row |= {"macs_removed": round(1 - graph.cost(plan).macs / graph.macs, 3)}
        row |= repaired(graph, plan, batches(args.num_images, shape), args.memory)
    spent = row["rebuilt_core_seconds" if args.rebuilt else "repair_core_seconds"]
    row |= {"forward_core_seconds": round(forward, 1), "forward_passes": round(spent / forward, 1)}
    row["peak_gib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    print(row, flush=True)
    table = table_so_far(args.out, {})
    what = "scores" if args.rebuilt else f"memory {args.memory}"
    table[f"{args.network}, {args.num_images} images, {what}"] = row
    write(table, args.out)


if __name__ == "__main__":
    main()
