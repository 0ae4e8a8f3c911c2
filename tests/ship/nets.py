"""A small residual network, pruned: a selection in front of a layer, fewer filters inside, norms with statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv1, self.norm1 = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.before, self.fc = nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return self.fc(F.relu(self.before(x)).mean((2, 3)))


def network() -> Residual:
    """The same weights and statistics each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Residual()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.running_var):
                    nn.init.uniform_(tensor, 0.5, 2.0)
                for tensor in (module.bias, module.running_mean):
                    nn.init.normal_(tensor)
        return model


def pruned() -> tuple[nn.Module, Plan]:
    graph = trace(network(), torch.zeros(1, 3, 8, 8))
    plan = Plan.of(graph, {"conv1:out": [0, 2, 3, 7], "conv1:in": [0, 1, 4, 5]})
    return prune(graph, plan), plan


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
