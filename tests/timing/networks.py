"""Networks with one input, with two inputs, and with layers that select channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.graph.selection import select


class Scaled(nn.Module):
    """factor * x + 1."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x + 1


class Difference(nn.Module):
    """left - 2 * right."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left - 2 * right


class Selecting(nn.Module):
    """A stem, a convolution that selects channels of it in another order, a shortcut with steps, a linear layer that
    selects features."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.stem, self.reader, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(5, 4)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)
        select(self.reader, torch.tensor([6, 0, 3]), 1)
        select(self.head, torch.tensor([7, 1, 2, 3, 5]), 1)

    def forward(self, x: Tensor) -> Tensor:
        stem = F.relu(self.stem(x))
        read = self.reader(stem) + stem[:, :, ::2, ::2]
        return self.head(read.mean((2, 3)))


def by_hand(net: Selecting, x: Tensor) -> Tensor:
    """The same without hooks: weights of zeros for what is not selected."""
    stem = F.relu(F.conv2d(x, net.stem.weight, net.stem.bias, padding=1))
    read = torch.zeros(8, 8, 3, 3).index_copy(1, torch.tensor([6, 0, 3]), net.reader.weight)
    head = torch.zeros(4, 8).index_copy(1, torch.tensor([7, 1, 2, 3, 5]), net.head.weight)
    features = F.conv2d(stem, read, net.reader.bias, 2, 1) + stem[:, :, ::2, ::2]
    return F.linear(features.mean((2, 3)), head, net.head.bias)
