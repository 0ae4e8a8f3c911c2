"""What more crops of few images are worth for a repair, beside more images.

    python benchmarks/repair_crops.py resnet20 --weights resnet20-cifar10.safetensors --data DIR --out ...
    python benchmarks/repair_crops.py lite0 --data PHOTOGRAPHS --out ...

resnet20, resnet56: on CIFAR-10, half of the MACs are removed. lite0: EfficientNet-Lite0 as in training_free.py, a fifth
of the MACs. The plan is the same each time. A crop is an image that is padded by an eighth of its side (with zeros,
photographs with their mirror image) and cut out at a random place, half of them mirrored. KL is the mean divergence
from the unpruned network's answers, on the 5,000 test images that are held out or on 600 other photographs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from benchmarks.on_cifar10 import opened, table_so_far, write
from benchmarks.repair_rows import Beside
from benchmarks.training_free import opened_lite
from prunus.decide.candidates import candidates
from prunus.decide.splits import least_error
from prunus.decide.widths import Cutter
from prunus.run.round import UNIT_IMAGES

# Images, and crops of each besides itself
SMALL = ((250, 0), (250, 1), (250, 3), (500, 0), (500, 1), (1000, 0))
LARGE = ((200, 0), (200, 1), (200, 3), (400, 0), (400, 1))


def crops(images: Tensor, draw: torch.Generator) -> Tensor:
    """A random crop of each image."""
    side = images.shape[2]
    padding = side // 8
    padded = F.pad(images, [padding] * 4, mode="reflect" if side > 64 else "constant")
    found = []
    for image in padded:
        top, left = torch.randint(2 * padding + 1, (2,), generator=draw).tolist()
        part = image[:, top : top + side, left : left + side]
        found.append(part.flip(2) if float(torch.rand((), generator=draw)) < 0.5 else part)
    return torch.stack(found)


def network(args: Any) -> tuple[nn.Module, Tensor, Beside, float]:
    """The network, images for its repair, the images to compare on, and the share of MACs to remove."""
    if args.network == "lite0":
        model, repair, report = opened_lite("lite0", args.data)
        return model, torch.cat([images for images, _ in repair]), Beside(model, report), 0.2
    model, data = opened(args.network, args)
    images = torch.cat([images for images, _ in data.loader("train", 250, limit=1000)])
    return model, images, Beside(model, list(data.loader("holdout", 250))), 0.5


def main() -> None:
    """Fill the table; rows that it has are not measured again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["resnet20", "resnet56", "lite0"])
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model, images, held, target = network(args)
    table = table_so_far(args.out, {})
    graph = sc.trace(model, images[:1])
    scores = sc.score(graph, sc.repair_each(graph, images[:UNIT_IMAGES]), "rebuilt")
    plan = least_error(Cutter(graph, scores), candidates(graph), (1 - target) * graph.macs)
    for count, more in LARGE if args.network == "lite0" else SMALL:
        name = f"{args.network}, {count} images" + (f" and {more} crops of each" if more else "")
        if name not in table:
            draw, few = torch.Generator().manual_seed(0), images[:count]
            table[name] = held.row(sc.repair(graph, plan, torch.cat([few, *(crops(few, draw) for _ in range(more))])))
            write(table, args.out)
            print(name, table[name], flush=True)


if __name__ == "__main__":
    main()
