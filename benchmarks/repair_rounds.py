"""What should a repair aim at when cuts come in rounds: the network of the round before, or the original one?

    python benchmarks/repair_rounds.py --weights resnet20-cifar10.safetensors --data DIR \
        --out docs/results/repair-rounds.json

ResNet-20 on CIFAR-10, inner channels by reader_energy, repaired on 500 training images, judged on half of the test set.
Without retraining: four rounds to half of the inner channels. With it: 30% cut, repaired, retrained on 12,800 images
(rate 0.01, cosine to 0), and 30% of what is left cut again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import prunus as sc
from benchmarks.on_cifar10 import arguments, opened, write
from prunus.repair.lockstep import Lockstep
from prunus.repair.solve import SolveSettings, solve_layers
from prunus.zoo.data import ImageData

EXAMPLE = torch.zeros(1, 3, 32, 32)
SHARES = (0.125, 0.143, 0.167, 0.2)  # 16 -> 14 -> 12 -> 10 -> 8 channels, and so on


def step(network: nn.Module, share: float, data: ImageData) -> tuple[sc.ChannelGraph, sc.Plan]:
    """The network's graph, and a plan that takes this share of every inner unit."""
    graph = sc.trace(network, EXAMPLE)
    scores = sc.score(graph, data.loader("train", 250, limit=2000), "reader_energy")
    inner = [name for name, unit in graph.units.items() if unit.kind == "private"]
    return graph, sc.uniform(graph, scores, share, units=inner)


@torch.no_grad()
def towards(target: sc.ChannelGraph, whole: sc.Plan, start: nn.Module, images: Any) -> nn.Module:
    """`start`, which has the shape that `whole` leaves of the target's network, solved for that network's outputs."""
    networks = Lockstep(target, start, images, target.liveness(target.keep_of(whole)))
    solve_layers(networks, SolveSettings())
    return start


def main() -> None:
    """Both experiments."""
    args = arguments(__doc__).parse_args()
    model, data = opened("resnet20", args)
    original, images = sc.trace(model, EXAMPLE), list(data.loader("train", 125, limit=500))
    table: dict[str, float] = {}

    def keep(name: str, network: nn.Module) -> None:
        table[name] = round(100 * sc.evaluate(network, data.loader("holdout", 250)).quality, 2)
        write(table, args.out)
        print(name, table[name], flush=True)

    whole, network = sc.Plan.of(original, {}), model
    for share in SHARES:
        graph, plan = step(network, share, data)
        whole, network = whole.then(plan), sc.repair(graph, plan, images)
    keep("four rounds, each repaired towards the one before", network)
    keep("the same cut, repaired towards the original", sc.repair(original, whole, images))

    graph, first = step(model, 0.3, data)
    train = data.loader("train", 128, augment=True, shuffle=True, limit=12_800)
    preset = sc.Preset("short", epochs=1, lr=0.01, batch_size=128, schedule="cosine")
    retrained = sc.fit(sc.repair(graph, first, images), train, preset=preset).model.eval()
    keep("30% cut, repaired and retrained", retrained)
    graph, plan = step(retrained, 0.3, data)
    whole = first.then(plan)
    keep("30% more, as cut", sc.prune(graph, plan))
    keep("30% more, repaired towards the retrained network", sc.repair(graph, plan, images))
    keep("30% more, repaired from the original network", sc.repair(original, whole, images))
    mixed = towards(original, whole, sc.prune(graph, plan).eval(), images)
    keep("30% more, retrained weights repaired towards the original's outputs", mixed)


if __name__ == "__main__":
    main()
