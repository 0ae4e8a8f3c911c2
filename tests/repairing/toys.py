"""Small networks in float64, of which some lose channels that say nothing new; and ridge least squares by numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.graph.channel_graph import ChannelGraph, trace
from prunus.graph.plan import Plan
from prunus.graph.units import Unit
from tests.scoring.toys import pictures as noise

KEEP = [0, 2, 5]  # of 6


def naive(x: np.ndarray, y: np.ndarray, start: np.ndarray, ridge: float, constant: bool) -> np.ndarray:
    """Weights [o, n] (and last the constants) by one dense lstsq: the ridge is more rows, the constant a column."""
    middle = x - x.mean(0) if constant else x
    weight = np.sqrt(ridge * (middle**2).sum(0).mean()) * np.eye(x.shape[1])
    left, below = np.concatenate([x, weight]), weight @ start.T
    if constant:
        left = np.concatenate([left, np.r_[np.ones(len(x)), np.zeros(x.shape[1])][:, None]], axis=1)
    return np.linalg.lstsq(left, np.concatenate([y, below]), rcond=None)[0].T


def refitted(x: Tensor, target: Tensor, weight: Tensor, ridge: float, padding: int = 0) -> np.ndarray:
    """Weights [o, n] of a convolution from x to target (and last the constants), fitted to all positions."""
    columns = F.unfold(x, weight.shape[2], padding=padding).transpose(1, 2).flatten(0, 1)
    rows = target.movedim(1, -1).flatten(0, 2)
    return naive(columns.numpy(), rows.numpy(), weight.flatten(1).numpy(), ridge, True)


def pictures(count: int = 40, side: int = 8, seed: int = 0) -> Tensor:
    return noise(count, side, seed)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return build().double().eval()


def traced(model: nn.Module) -> ChannelGraph:
    return trace(model, pictures(1))


def half_of(graph: ChannelGraph, name: str) -> Plan:
    return Plan.of(graph, {name: range(graph.units[name].width // 2)})


def part_of_each_block(unit: Unit, part: slice) -> list[int]:
    """The same part of every block of the unit's channels."""
    blocks = [np.flatnonzero(unit.blocks == block) for block in range(unit.granule)]
    return sorted(int(i) for block in blocks for i in block[part])


def conv(inputs: int, outputs: int, **options: object) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, **options)  # type: ignore[arg-type]


def twins(layer: nn.Conv2d) -> nn.Conv2d:
    """The second half of the filters is 0.5 times the first half: after a ReLU it says nothing new."""
    half = layer.out_channels // 2
    with torch.no_grad():
        layer.weight[half:] = 0.5 * layer.weight[:half]
        if layer.bias is not None:
            layer.bias[half:] = 0.5 * layer.bias[:half]
    return layer


class Residual(nn.Module):
    """Two blocks; the shortcut is called after the branch, as many networks do."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.stem, self.shortcut, self.inplace = nn.Conv2d(3, 4, 1), nn.Identity(), inplace
        self.a1, self.a2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.b1, self.b2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.na(self.a2(F.relu(self.a1(x)))) + self.shortcut(x), inplace=self.inplace)
        y = self.nb(self.b2(F.relu(self.b1(x), inplace=self.inplace)))
        if self.inplace:
            y += x
            return y
        return y + self.shortcut(x)


class Changer(nn.Module):
    """Its forward looks at the number of images, which a trace then holds as a plain number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = twins(conv(3, 8)), conv(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x))).view(int(x.shape[0]), -1)


def _read_by(*readers: nn.Module, **options: object) -> nn.Module:
    return nn.Sequential(twins(conv(3, 8, **options)), nn.ReLU(), *readers)


READERS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: _read_by(conv(8, 5)),
    "strided, padded, dilated": lambda: _read_by(conv(8, 5, stride=2, padding=2, dilation=2)),
    "reflected": lambda: _read_by(conv(8, 5, padding=1, padding_mode="reflect", bias=False)),
    "same": lambda: _read_by(conv(8, 5, padding="same")),
    "oblong": lambda: _read_by(nn.Conv2d(8, 5, (1, 3), padding=(0, 1))),
    "linear": lambda: _read_by(nn.Flatten(), nn.Linear(32, 5), stride=3),
    "two readers in a row": lambda: nn.Sequential(
        twins(conv(3, 8)),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        conv(8, 6, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        conv(6, 4),
    ),
    "depthwise": lambda: _read_by(nn.Conv2d(8, 8, 1, groups=8, bias=False), conv(8, 4)),
    "sizes looked at": Changer,
}
