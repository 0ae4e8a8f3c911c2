"""What more crops of few images are worth for a repair, beside more images: a network on CIFAR-10.

    python benchmarks/repair_crops.py resnet20 --weights resnet20-cifar10.safetensors --data DIR --out ...

Half of the MACs are removed by the same plan each time. A crop is a training image that is padded by four pixels and
cut out at a random place, half of them mirrored. KL is the mean divergence from the unpruned network's answers on the
5,000 test images that are held out.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor
from torch.nn import functional as F

import secateur as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from benchmarks.repair_rows import outputs
from secateur.deciding.budget import Cutter
from secateur.deciding.candidates import candidates
from secateur.deciding.splits.least_error import least_error
from secateur.running.round_repair import UNIT_IMAGES

TARGET = 0.5
WAYS = ((250, 0), (250, 1), (250, 3), (500, 0), (500, 1), (1000, 0))  # images, crops of each besides itself
PADDING = 4


def crops(images: Tensor, draw: torch.Generator) -> Tensor:
    """A random crop of each image."""
    padded, side = F.pad(images, [PADDING] * 4), images.shape[2]
    found = []
    for image in padded:
        top, left = torch.randint(2 * PADDING + 1, (2,), generator=draw).tolist()
        part = image[:, top : top + side, left : left + side]
        found.append(part.flip(2) if float(torch.rand((), generator=draw)) < 0.5 else part)
    return torch.stack(found)


def main() -> None:
    """Fill the table."""
    parser = arguments(__doc__)
    parser.add_argument("network", choices=["resnet20", "resnet56"])
    args = parser.parse_args()
    model, data = opened(args.network, args)
    images = torch.cat([images for images, _ in data.loader("train", 250, limit=1000)])
    held = list(data.loader("holdout", 250))
    labels, before = torch.cat([labels for _, labels in held]), outputs(model, held)
    table = table_so_far(args.out, {})
    graph = sc.trace(model, images[:1])
    scores = sc.score(graph, sc.repair_each(graph, images[:UNIT_IMAGES]), "rebuilt")
    plan = least_error(Cutter(graph, scores), candidates(graph), (1 - TARGET) * graph.macs)
    for count, more in WAYS:
        draw = torch.Generator().manual_seed(0)
        few = images[:count]
        after = outputs(sc.repair(graph, plan, torch.cat([few, *(crops(few, draw) for _ in range(more))])), held)
        row = {
            "accuracy": round(100 * float((after.argmax(1) == labels).float().mean()), 2),
            "kl": round(float(F.kl_div(after, before, reduction="batchmean", log_target=True)), 4),
        }
        table[f"{args.network}, {count} images" + (f" and {more} crops of each" if more else "")] = row
        write(table, args.out)
        print(args.network, count, more, row, flush=True)


if __name__ == "__main__":
    main()
