"""A tiny network and learnable data for the tests of training."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 4


def network(dropout: float = 0.0) -> nn.Module:
    """Convolution, batch norm, dropout and a linear layer for 6x6 images; the same weights each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(96, CLASSES)
        )


def batches(count: int, size: int = 8, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Images whose class is that of their strongest of four fixed directions."""
    draw = torch.Generator().manual_seed(seed)
    directions = torch.randn(3 * 36, CLASSES, generator=torch.Generator().manual_seed(99))
    pairs = []
    for _ in range(count):
        images = torch.randn(size, 3, 6, 6, generator=draw)
        pairs.append((images, (images.flatten(1) @ directions).argmax(1)))
    return pairs


def shuffled() -> DataLoader[tuple[Tensor, ...]]:
    """Five batches of 8 in another order in each epoch."""
    images, labels = (torch.cat(parts) for parts in zip(*batches(5), strict=True))
    return DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers."""
    return copy.deepcopy(model.state_dict())


def same_tensors(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """Equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
