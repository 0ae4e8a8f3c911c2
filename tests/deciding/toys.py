"""Tiny networks with data on which they are right, and Algorithm 1 as the paper writes it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import prunus as pr
from prunus.scoring.scores import Scores
from tests.nets import conv, pooled
from tests.proof import Bounds, accuracy_bounds, call, counted_macs

Batch = tuple[Any, Tensor]


class Mixed(nn.Module):
    """Wide and narrow, large and small maps, a grouped convolution and a skip: FLOSS from 100 to 20,000."""

    example = torch.zeros(1, 3, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2 = conv(3, 16), conv(16, 24), conv(24, 16)
        self.down, self.group, self.point = conv(16, 24, stride=2), conv(24, 48, groups=4), conv(48, 20, 1)
        self.bn, self.fc1, self.fc2 = nn.BatchNorm2d(24), nn.Linear(20, 30), nn.Linear(30, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.conv2(torch.relu(self.bn(self.conv1(x)))))
        x = torch.relu(self.point(torch.relu(self.group(torch.relu(self.down(x))))))
        return self.fc2(torch.relu(self.fc1(pooled(x))))


def mixed(images: int = 60, *sizes: int, seed: int = 0) -> tuple[Any, pr.ChannelGraph, Scores, list[Batch]]:
    """A `Mixed`, its graph, scores, and so many images in batches of these sizes."""
    model = seeded(Mixed, seed)
    inputs = drawn(Mixed.example, images, seed)
    graph = pr.trace(model, Mixed.example)
    return model, graph, random_scores(graph, seed), batches(inputs, answered(model, inputs), *(sizes or (25,)))


def seeded(build: Any, seed: int = 0) -> nn.Module:
    """A network in eval mode with random weights, its batch norms with statistics of their own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: nn.Module = build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(0, 0.3)
                module.running_var.uniform_(0.5, 2.0)
                module.weight.data.uniform_(0.5, 1.5)
                module.bias.data.normal_(0, 0.3)
    return model.eval()


def drawn(example: Any, images: int, seed: int = 0) -> Any:
    """So many random images of the example's shape, one tensor for each of the network's inputs."""
    draw = torch.Generator().manual_seed(seed)

    def normal(x: Tensor) -> Tensor:
        return torch.randn(images, *x.shape[1:], generator=draw, dtype=torch.float64).to(x.dtype)

    return tree_map(normal, example)


@torch.no_grad()
def answered(model: nn.Module, images: Any, wrong: float = 0.1, seed: int = 0) -> Tensor:
    """The network's own answers as labels, a share of them replaced by others: it is right on the rest."""
    logits = call(model, images)
    draw = torch.Generator().manual_seed(seed)
    other = torch.randint(1, logits.shape[1], (len(logits),), generator=draw)
    return torch.where(
        torch.rand(len(logits), generator=draw) < wrong, (logits.argmax(1) + other) % logits.shape[1], logits.argmax(1)
    )


def batches(images: Any, labels: Tensor, *sizes: int) -> list[Batch]:
    """Batches of these sizes, over and over, until the images are used up."""
    pairs: list[Batch] = []
    start = 0
    while start < len(labels):
        size = sizes[len(pairs) % len(sizes)]
        part = slice(start, start + size)
        pairs.append((tree_map(lambda x: x[part], images), labels[part]))  # noqa: B023
        start += size
    return pairs


def random_scores(graph: pr.ChannelGraph, seed: int = 0) -> Scores:
    """Some scores, no two alike."""
    draw = np.random.default_rng(seed)
    return Scores("drawn", {name: draw.permutation(unit.width) + 0.5 for name, unit in graph.units.items()})


@torch.no_grad()
def measured(model: nn.Module, pairs: list[Batch]) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a model, the plain way."""
    right, loss, images = 0, 0.0, 0
    for inputs, labels in pairs:
        logits = call(model, copy.deepcopy(inputs))
        right += int((logits.argmax(1) == labels).sum())
        loss += float(F.cross_entropy(logits.double(), labels, reduction="sum"))
        images += len(labels)
    return right / images, loss / images


def without_weakest(unit: pr.Unit, values: Any, removed: int) -> list[int]:
    """The channels left when each of the unit's blocks has lost its share of the weakest ones."""
    gone: set[int] = set()
    for block in set(unit.blocks.tolist()):
        inside = [i for i in range(unit.width) if unit.blocks[i] == block]
        gone |= set(sorted(inside, key=lambda i: values[i])[: removed // unit.granule])
    return [i for i in range(unit.width) if i not in gone]


@dataclass(frozen=True)
class Literal:
    """What Algorithm 1 finds, line by line, before it chooses units."""

    floss: dict[str, float]
    removed: dict[str, int]
    stopped: dict[str, bool]
    accuracy: dict[str, Bounds]  # with room for rounding
    loss: dict[str, float]


def algorithm_1(
    model: nn.Module,
    graph: pr.ChannelGraph,
    scores: Scores,
    names: list[str],
    pairs: list[Batch],
    example: Any,
    *,
    alpha: float,
) -> Literal:
    """Every M_l^-1 and M_l^-n is built, counted by PyTorch's own counter, and evaluated."""

    def smaller(name: str, removed: int) -> nn.Module:
        keep = without_weakest(graph.units[name], scores.values[name], removed)
        return pr.prune(graph, pr.Plan.of(graph, {name: keep}))

    whole = counted_macs(model, example)
    granule = {name: graph.units[name].granule for name in names}
    floss = {n: (whole - counted_macs(smaller(n, granule[n]), example)) / granule[n] for n in names}
    removed, stopped, accuracy, loss = {}, {}, {}, {}
    for name in names:
        unit, g = graph.units[name], granule[name]
        exact = alpha * max(floss.values()) / floss[name]
        most = unit.width - g * math.ceil(max(2, math.ceil(unit.width / 10)) / g)
        removed[name] = max(0, min(g * round(exact / g), most))
        stopped[name] = g * round(exact / g) > most
        if removed[name] and pairs:
            accuracy[name] = accuracy_bounds(smaller(name, removed[name]), pairs)
            loss[name] = measured(smaller(name, removed[name]), pairs)[1]
    return Literal(floss, removed, stopped, accuracy, loss)
