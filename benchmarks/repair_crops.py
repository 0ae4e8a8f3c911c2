"""What more crops of the same photographs are worth: EfficientNet-Lite0, repaired on one and on two crops of each.

    python benchmarks/repair_crops.py --data PHOTOGRAPHS --out docs/results/repair-crops.json

Network, photographs and split are those of `benchmarks/training_free.py`: 400 for the repair, 600 others are reported.
20% of the MACs are removed by the same plan each time. Random crops cover half to all of a photograph's shorter side,
at a random place, half of them mirrored. KL is the mean divergence from the unpruned network's answers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import secateur as sc
from benchmarks.on_cifar10 import table_so_far, write
from benchmarks.training_free import SIDES, opened_lite
from secateur.deciding.budget import Cutter
from secateur.deciding.candidates import candidates
from secateur.deciding.splits.least_error import least_error
from secateur.running.round_repair import UNIT_IMAGES

TARGET = 0.2


def random_crops(folder: Path, side: int) -> Tensor:
    """A random crop of each photograph for the repair, in the order of `opened_lite`."""
    draw = np.random.default_rng(0)
    found = []
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(1))
    for number in order[:400].tolist():
        image = Image.open(next(iter(sorted(classes[number].iterdir())))).convert("RGB")
        size = round(min(image.size) * draw.uniform(0.5, 1.0))
        left, top = (int(draw.integers(whole - size + 1)) for whole in image.size)
        image = image.crop((left, top, left + size, top + size)).resize((side, side), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).movedim(2, 0)
        found.append(pixels.flip(2) if draw.random() < 0.5 else pixels)
    return (torch.stack(found).float() - 127) / 128


@torch.no_grad()
def main() -> None:
    """Fill the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model, train, test = opened_lite("lite0", args.data)
    images, crops = torch.cat([few for few, _ in train]), random_crops(args.data, SIDES["lite0"])
    labels = torch.cat([few for _, few in test])
    before = torch.cat([F.log_softmax(model(few), 1) for few, _ in test])
    graph = sc.trace(model, images[:1])
    scores = sc.score(graph, sc.repair_each(graph, images[:UNIT_IMAGES]), "rebuilt")
    plan = least_error(Cutter(graph, scores), candidates(graph), (1 - TARGET) * graph.macs)
    table = table_so_far(args.out, {"network": "lite0", "macs_removed": TARGET, "rows": {}})
    ways = {"centre crops": images, "centre and random crops": torch.cat([images, crops])}
    for way in [name for name in ways if name not in table["rows"]]:
        small = sc.repair(graph, plan, ways[way])
        after = torch.cat([F.log_softmax(small(few), 1) for few, _ in test])
        table["rows"][way] = {
            "images": len(ways[way]),
            "accuracy": round(100 * float((after.argmax(1) == labels).float().mean()), 2),
            "agree": round(100 * float((after.argmax(1) == before.argmax(1)).float().mean()), 2),
            "kl": round(float(F.kl_div(after, before, reduction="batchmean", log_target=True)), 4),
        }
        write(table, args.out)
        print(way, table["rows"][way], flush=True)


if __name__ == "__main__":
    main()
