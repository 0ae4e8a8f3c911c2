"""The time to trace a network, compared with torch-pruning: all units of a network, one thread, in the same run.

    python benchmarks/graph.py

Ours: `sc.trace` (forward pass, labels, units, trial plans), without and with the proof by running. Theirs: building the
dependency graph and listing all groups. Both take turns, and the shortest CPU time of several rounds counts, so that
other work on the machine matters little.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import prunus as sc
from benchmarks.ratios import Row, row, say
from prunus.zoo import models
from tests import proof, zoo_nets

ROUNDS = 7
SECOND_OR_SO = 1.5
GRAPH = 1.0
PROOF = 4.0  # torch-pruning proves nothing: ours runs the pruned and the zeroed network as well


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    image = torch.zeros(1, 3, 224, 224)
    names = ("resnet50", "densenet121", "efficientnet_b0")
    found = {name: (zoo_nets.create(f"torchvision:{name}").eval(), image) for name in names}
    return found | {"resnet110 (CIFAR)": (models.create("resnet110").eval(), torch.zeros(1, 3, 32, 32))}


def theirs(model: nn.Module, image: Tensor) -> int:
    import torch_pruning

    graph = torch_pruning.DependencyGraph().build_dependency(model, example_inputs=image)
    return len(list(graph.get_all_groups(root_module_types=[nn.Conv2d, nn.Linear])))


def ours(model: nn.Module, image: Tensor, check: bool = True) -> sc.ChannelGraph:
    return sc.trace(model, image, check=check)


def seconds(act: Callable[[], Any]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def main() -> list[Row]:
    """The rows: each a name, a measured ratio or time, the bound it must keep, and whether it does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch-pruning's, about parameters it does not know
            return [each for name, (model, image) in networks().items() for each in rows(name, model, image)]
    finally:
        torch.set_num_threads(threads)


def rows(name: str, model: nn.Module, image: Tensor) -> list[Row]:
    mine, proven, peer = [], [], []
    for _ in range(ROUNDS):
        mine.append(seconds(lambda: ours(model, image, check=False)))
        proven.append(seconds(lambda: ours(model, image)))
        peer.append(seconds(lambda: theirs(model, image)))
    graph = ours(model, image)
    plan = sc.Plan.of(graph, proof.random_keep(graph, seed=0))
    cut = min(seconds(lambda: sc.prune(graph, plan)) for _ in range(ROUNDS))
    graphs = f"graph of {name}: ours {min(mine):.2f} s, torch-pruning {min(peer):.2f} s"
    proof_too = f"graph and proof by running of {name}: ours {min(proven):.2f} s"
    both = f"seconds to trace and prune {name}, both proven (prune alone {cut:.2f})"
    return [
        row(graphs, min(mine) / min(peer), GRAPH, "lower"),
        row(proof_too, min(proven) / min(peer), PROOF, "lower"),
        row(both, min(proven) + cut, SECOND_OR_SO, "lower"),
    ]


if __name__ == "__main__":
    say(main())
