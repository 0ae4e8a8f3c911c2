"""Half of ResNet-56's MACs removed on CIFAR-10 with no training at all: which channels and which units to take?

    python benchmarks/repair_settings.py --weights resnet56-cifar10.safetensors --data DIR \
        --out docs/results/repair-settings.json

Every variant is cut at once, repaired by `sc.repair` on training images without labels, and judged on 2,000 test images
of the held-out half (1,000 of them rank the units for Algorithm 1). The other half of the test images is not read here.
The output is written row by row, and a second run goes on where the first stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, table_so_far, write
from prunus.decide.candidates import candidates
from prunus.decide.splits import least_error
from prunus.decide.widths import Cutter
from prunus.zoo.data import ImageData

ALPHA, TARGET = 4.0, 0.5


class Variants:
    """The plans that were tried, each made when it is asked for."""

    def __init__(self, graph: sc.ChannelGraph, data: ImageData) -> None:
        self.graph, self.data = graph, data
        self.inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
        self.units = cache(lambda: sc.repair_each(graph, data.loader("train", 125, limit=250)))
        self.rebuilt = cache(lambda: sc.score(graph, self.units(), "rebuilt"))
        self.energy = cache(lambda: sc.score(graph, data.loader("train", 250, limit=5000), "reader_energy"))
        self.ranked = cache(self._ranked)

    def _ranked(self) -> sc.Sensitivity:
        """Algorithm 1's trials, each unit judged by its loss after a repair of that unit."""
        few = self.data.loader("holdout", 250, limit=1000, seed=1)
        options: dict[str, Any] = {"alpha": ALPHA, "measure": "loss", "exact": True, "repair": self.units()}
        return sc.sensitivity(self.graph, self.rebuilt(), few, **options)

    def _inner_only(self) -> sc.Sensitivity:
        found = self.ranked()
        return replace(found, tried={name: row for name, row in found.tried.items() if name in self.inner})

    def all(self) -> dict[str, tuple[Callable[[], sc.Plan], int]]:
        """Name -> the plan, and the images to repair it with."""
        graph = self.graph
        found: dict[str, tuple[Callable[[], sc.Plan], int]] = {
            "inner units alike, reader_energy": (lambda: sc.uniform(graph, self.energy(), 0.5, units=self.inner), 500),
            "inner units alike, rebuilt": (lambda: sc.uniform(graph, self.rebuilt(), 0.5, units=self.inner), 500),
            "inner units alike, rebuilt, 2000 images": (
                lambda: sc.uniform(graph, self.rebuilt(), 0.5, units=self.inner),
                2000,
            ),
            "Algorithm 1, inner units, k 23": (
                lambda: sc.decide(graph, self.rebuilt(), self._inner_only(), 23, TARGET),
                500,
            ),
        }
        half = (1 - TARGET) * graph.macs
        found["least error, inner units"] = (
            lambda: least_error(Cutter(graph, self.rebuilt()), self.inner, half),
            500,
        )
        found["least error, inner units, 2000 images"] = (
            lambda: least_error(Cutter(graph, self.rebuilt()), self.inner, half),
            2000,
        )
        found["least error, all units"] = (
            lambda: least_error(Cutter(graph, self.rebuilt()), candidates(graph), half),
            500,
        )
        for k in (36, 52, 54):
            found[f"Algorithm 1, all units, k {k}"] = (
                lambda k=k: sc.decide(graph, self.rebuilt(), self.ranked(), k, TARGET),  # type: ignore[misc]
                500,
            )
        return found


def main() -> None:
    """Fill the table."""
    args = arguments(__doc__).parse_args()
    model, data = opened("resnet56", args)
    graph = sc.trace(model, torch.zeros(1, *data.shape))
    judges = data.loader("holdout", 250, limit=2000, seed=1)
    table = table_so_far(args.out, {"network": "resnet56 on cifar10", "rows": {}})
    for name, (plan_of, images) in Variants(graph, data).all().items():
        if name not in table["rows"]:
            plan = plan_of()
            found = sc.evaluate(sc.repair(graph, plan, data.loader("train", 125, limit=images)), judges)
            removed = 1 - graph.cost(plan).macs / graph.macs
            row = {"accuracy": 100 * found.quality, "loss": found.loss, "macs_removed": removed}
            table["rows"][name] = {key: round(value, 4) for key, value in row.items()}
            write(table, args.out)
            print(name, table["rows"][name], flush=True)


if __name__ == "__main__":
    main()
