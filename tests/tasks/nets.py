"""Tiny networks and data for tasks other than classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Any, Any]


class Answers(nn.Module):
    """Returns its input: the outputs are what the test chooses."""

    def __init__(self, wrap: Any = lambda x: x) -> None:
        super().__init__()
        self.wrap = wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(x)


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """A U-Net of one level: the decoder reads the encoder's map again."""

    def __init__(self, classes: int = 3, aux: bool = False) -> None:
        super().__init__()
        self.down, self.middle = block(1, 8), block(8, 12)
        self.up, self.head = block(8 + 12, 8), nn.Conv2d(8, classes, 1)
        self.aux = nn.Conv2d(12, classes, 1) if aux else None

    def forward(self, x: Tensor) -> Any:
        a = self.down(x)
        b = self.middle(nn.functional.max_pool2d(a, 2))
        out = self.head(self.up(torch.cat([a, nn.functional.interpolate(b, scale_factor=2.0)], 1)))
        return out if self.aux is None else {"out": out, "aux": self.aux(b)}


def squares(images: int = 48, size: int = 12, seed: int = 0, labels: bool = True) -> list[Any]:
    """Bright and dark squares on noise: classes 1 and 2 of each pixel. Batches of 16."""
    draw = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(images, 1, size, size, generator=draw)
    y = torch.zeros(images, size, size, dtype=torch.long)
    for image in range(images):
        for label, bright in ((1, 1.0), (2, -1.0)):
            i, j = torch.randint(0, size - 4, (2,), generator=draw).tolist()
            x[image, 0, i : i + 4, j : j + 4] += bright
            y[image, i : i + 4, j : j + 4] = label
    return list(zip(x.split(16), y.split(16), strict=True)) if labels else list(x.split(16))


class Tagger(nn.Module):
    """Several labels per image."""

    def __init__(self, labels: int = 3, inputs: int = 1) -> None:
        super().__init__()
        self.first, self.second = block(inputs, 8), block(8, 12)
        self.head = nn.Linear(12, labels)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)).amax((2, 3)))


def tags(images: int = 64, seed: int = 0) -> list[Batch]:
    """Images with or without a bright pixel, a dark pixel and a bright bar."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (images, 3), generator=draw)
    x = 0.2 * torch.randn(images, 1, 8, 8, generator=draw)
    x[:, 0, 1, 1] += 3 * y[:, 0]
    x[:, 0, 6, 6] -= 3 * y[:, 1]
    x[:, 0, 4, 2:6] += 2 * y[:, 2, None]
    return list(zip(x.split(16), y.split(16), strict=True))


@dataclass
class Answer:
    features: Tensor
    logits: Tensor


class Wrapped(nn.Module):
    """Convolutions of 1, 2 or 3 dimensions, two inputs, and an output in a dataclass."""

    def __init__(self, dimensions: int = 2, outputs: int = 1) -> None:
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
        self.one, self.two = conv(1, 8, 3, padding=1), conv(1, 8, 3, padding=1)
        self.both, self.head = conv(16, 8, 3, padding=1), nn.Linear(8, outputs)

    def forward(self, left: Tensor, right: Tensor) -> Answer:
        joined = torch.cat([self.one(left).relu(), self.two(right).relu()], 1)
        features = self.both(joined).relu().flatten(2).mean(2)
        return Answer(features, self.head(features))


def sums(dimensions: int = 2, images: int = 48, seed: int = 0) -> list[Batch]:
    """Two inputs; the label is the mean of the first minus half the mean of the second."""
    draw = torch.Generator().manual_seed(seed)
    shape = (images, 1, *([6] * dimensions))
    left = torch.randn(shape, generator=draw) + torch.randn((images, *[1] * (dimensions + 1)), generator=draw)
    right = torch.randn(shape, generator=draw)
    label = left.flatten(1).mean(1) - 0.5 * right.flatten(1).mean(1)
    return [((a, b), c) for a, b, c in zip(left.split(16), right.split(16), label.split(16), strict=True)]
