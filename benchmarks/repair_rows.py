"""How many rows a layer needs: accuracy after a repair with more and fewer of them, on the half that is held out.

    python benchmarks/repair_rows.py resnet20 --weights resnet20-cifar10.safetensors --data DIR --out ...

2,000 training images are for the repair. A layer is fitted on as many of them as give it the number of rows for each
weight of a filter, but at least 500. KL is the mean divergence from the unpruned network's answers on the 5,000 test
images that are held out. Seconds are those of the processor.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.decide.candidates import candidates
from prunus.decide.splits import least_error
from prunus.decide.widths import Cutter
from prunus.repair import solve as layer_solve
from prunus.run.round import UNIT_IMAGES

ROWS = (64, 128, 256, 10**9)
TARGETS = (0.5, 0.7)


@torch.no_grad()
def outputs(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The network's log-probabilities."""
    return torch.cat([F.log_softmax(model(images), 1) for images, _ in batches])


class Beside:
    """The answers of the unpruned network for labelled batches, to set another network's beside them."""

    def __init__(self, model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
        self._batches = batches
        self._labels, self._before = torch.cat([labels for _, labels in batches]), outputs(model, batches)

    def row(self, small: nn.Module) -> dict[str, float]:
        """Accuracy in per cent, and the mean divergence from the unpruned network."""
        after = outputs(small, self._batches)
        return {
            "accuracy": round(100 * float((after.argmax(1) == self._labels).float().mean()), 2),
            "kl": round(float(F.kl_div(after, self._before, reduction="batchmean", log_target=True)), 4),
        }


def main() -> None:
    """Fill the table."""
    parser = arguments(__doc__)
    parser.add_argument("network", choices=["resnet20", "resnet56"])
    args = parser.parse_args()
    model, data = opened(args.network, args)
    images = torch.cat([images for images, _ in data.loader("train", 250, limit=2000)])
    held = Beside(model, list(data.loader("holdout", 250)))
    table = table_so_far(args.out, {})
    graph = sc.trace(model, images[:1])
    scores = sc.score(graph, sc.repair_each(graph, images[:UNIT_IMAGES]), "rebuilt")
    for target in TARGETS:
        plan = least_error(Cutter(graph, scores), candidates(graph), (1 - target) * graph.macs)
        for layer_solve.ENOUGH in ROWS:
            spent = time.process_time()
            small = sc.repair(graph, plan, images)
            spent = time.process_time() - spent
            row = {**held.row(small), "core_seconds": round(spent, 1)}
            rows = "all" if layer_solve.ENOUGH >= 10**9 else f"{layer_solve.ENOUGH} rows for each weight"
            table[f"{args.network}, {target:.0%} of MACs removed, {rows}"] = row
            write(table, args.out)
            print(args.network, target, rows, row, flush=True)


if __name__ == "__main__":
    main()
