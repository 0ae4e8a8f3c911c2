"""Tiny networks that carry their own answers: units, MACs and parameters, worked out by hand.

Images are 8x8 with 3 channels unless said otherwise, so a 3x3 convolution of stride 1 has 64 positions:
MACs = out x in / groups x 9 x 64. `params` counts weights of conv and linear layers only, as the paper does.
The networks that freeze are in nets_frozen.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Answer:
    """One unit: width, granule, kind and the layers that read and write it, each in the network's own order."""

    width: int
    readers: tuple[str, ...]
    writers: tuple[str, ...]
    kind: str = "private"
    granule: int = 1


@dataclass(frozen=True)
class Tiny:
    """A network, an example for it, and what the graph must say of it."""

    build: Callable[[], nn.Module]
    macs: int
    params: int
    units: dict[str, Answer]  # streams="select"
    coupled: tuple[Answer, ...] | None = None  # streams="coupled"; None: the same units
    example: Callable[[], Any] = lambda: torch.zeros(1, 3, 8, 8)
    frozen: tuple[str, ...] = ()  # layers whose outputs stay, and that graph.frozen must name


def units(*lines: str) -> dict[str, Answer]:
    """`a:out 8: a b -> c in 2 blocks, a stream`: name, width, writers, readers, and what is not usual."""
    found = {}
    for line in lines:
        match = re.fullmatch(r"(\S+) (\d+): ([^>]+) -> (.+?)(?: in (\d+) blocks)?(, a stream)?", line)
        assert match, line
        name, width, writers, readers, granule, stream = match.groups()
        kind = "stream" if stream else "private"
        found[name] = Answer(int(width), tuple(readers.split()), tuple(writers.split()), kind, int(granule or 1))
    return found


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias)


def pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = conv(3, 4, bias=False), nn.BatchNorm2d(4), conv(4, 6)
        self.relu, self.fc = nn.ReLU(), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.a(x)))
        return self.fc(pooled(self.relu(self.b(x))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2, self.fc = conv(3, 4), conv(4, 6), conv(6, 4), nn.Linear(4, 5)
        self.bn1, self.bn2, self.relu = nn.BatchNorm2d(6), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(x + self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        return self.fc(pooled(x))


class PreActivation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2, self.fc = conv(3, 4), conv(4, 6), conv(6, 4), nn.Linear(4, 5)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm2d(4), nn.BatchNorm2d(6), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.conv1(F.relu(self.bn1(x)))
        x = x + self.conv2(F.relu(self.bn2(inner)))
        return self.fc(pooled(F.relu(self.bn3(x))))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.fc1, self.fc2 = conv(3, 8), conv(8, 2, 1), conv(2, 8, 1)
        self.conv2, self.fc = conv(8, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        gate = torch.sigmoid(self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))))
        return self.fc(pooled(self.conv2(x * gate)))


class GlobalResponseNorm(nn.Module):
    """ConvNeXt V2: each channel is scaled by its length, relative to the mean length of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        length = x.norm(p=2, dim=(2, 3), keepdim=True)
        share = length / (length.mean(dim=1, keepdim=True) + self.eps)
        return x + torch.addcmul(self.bias.view(1, -1, 1, 1), self.weight.view(1, -1, 1, 1), x * share)


class SpatialGate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.gate, self.fc = conv(3, 6), conv(6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        return self.fc(pooled(x * torch.sigmoid(self.gate(x))))


class Concat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3, 4), conv(3, 6), conv(10, 5, 1), nn.Linear(5, 5)
        self.bn = nn.BatchNorm2d(10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.c(self.bn(torch.cat([self.a(x), self.b(x)], dim=1)))))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv0, self.conv1, self.conv2, self.fc = conv(3, 4), conv(4, 3), conv(7, 3), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        maps = [self.conv0(x)]
        maps.append(self.conv1(maps[0]))
        maps.append(self.conv2(torch.cat(maps, 1)))
        return self.fc(pooled(torch.cat(maps, 1)))


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.g, self.b, self.fc = conv(3, 8, 1), conv(8, 12, groups=4), conv(12, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(F.relu(self.g(F.relu(self.a(x)))))))


class Depthwise(nn.Module):
    """Two depthwise filters on each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.dw, self.b, self.fc = conv(3, 4, 1), conv(4, 8, groups=4), conv(8, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(F.relu(self.dw(F.relu(self.a(x)))))))


class Flattened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = conv(3, 4, stride=2), nn.Linear(64, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        return self.fc2(F.relu(self.fc1(x.view(x.size(0), -1))))


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2, self.head = conv(3, 4), nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).permute(0, 2, 3, 1)
        x = self.fc2(F.gelu(self.fc1(x))).permute(0, 3, 1, 2)
        return self.head(pooled(x))


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.g, self.b, self.fc = conv(3, 8, 1), conv(8, 8, 1, groups=2), conv(8, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        n, c, h, w = x.size()
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return self.fc(pooled(self.b(self.g(x))))


class Glu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 8), conv(4, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.a(x).chunk(2, dim=1)
        return self.fc(pooled(self.b(value * torch.sigmoid(gate))))


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3, 8, 1), conv(4, 3, 1), conv(4, 5, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.a(x).chunk(2, dim=1)
        return self.fc(pooled(torch.cat((self.b(left), self.c(right)), 1)))


class PaddedShortcut(nn.Module):
    """The parameter-free shortcut of CIFAR ResNets: every second pixel, zero channels on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv1, self.conv2, self.fc = conv(3, 4), conv(4, 8, stride=2), conv(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        inner = self.conv2(F.relu(self.conv1(x)))
        x = F.relu(inner + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        return self.fc(pooled(x))


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.up = conv(3, 4, 1), nn.ConvTranspose2d(4, 6, 2, stride=2)
        self.b, self.fc = conv(6, 5, 1), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(self.b(F.relu(self.up(F.relu(self.a(x)))))))


class Sound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 6, 1), nn.Linear(6, 5)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(F.relu(self.bn(self.a(x)))).mean(-1))


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 3, 1), nn.Linear(3, 5)
        self.bn, self.pool = nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.b(F.relu(self.bn(self.a(x))))), 1))


class LayerScale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 4), conv(4, 6), nn.Linear(6, 5)
        self.gamma = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.25]).view(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(pooled(F.relu(self.b(self.a(x) * self.gamma))))


class TwoImages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 4), conv(2, 6), nn.Linear(10, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.fc(pooled(torch.cat([self.a(x), self.b(y)], 1)))


BLOCK = {  # stem 4x3x9x64, conv1 6x4x9x64, conv2 4x6x9x64, fc 20
    "macs": 6912 + 13824 + 13824 + 20,
    "params": 108 + 216 + 216 + 20,
    "units": units(
        "conv1:in 4: stem conv2 -> conv1, a stream",
        "conv1:out 6: conv1 -> conv2",
        "fc:in 4: stem conv2 -> fc, a stream",
    ),
    "coupled": tuple(units("0 4: stem conv2 -> conv1 fc, a stream", "1 6: conv1 -> conv2").values()),
}
PAIR = units("a:out 4: a -> fc", "b:out 6: b -> fc")


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.s, self.b, self.fc = conv(3, 4), conv(4, 4), conv(4, 6, 1), nn.Linear(6, 5)
        self.relu = nn.ReLU()  # called often too, and that is nobody's business

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.s(self.relu(self.s(self.relu(self.a(x))))))
        return self.fc(pooled(self.relu(self.b(x))))


# name -> network, multiply-adds, weights, units
NETS: dict[str, Tiny] = {
    "called_twice": Tiny(
        CalledTwice, 6912 + 2 * 9216 + 1536 + 30, 306, units("a:out 4: a s -> s b", "b:out 6: b -> fc")
    ),
    "chain": Tiny(Chain, 6912 + 13824 + 30, 108 + 216 + 30, units("a:out 4: a -> b", "b:out 6: b -> fc")),
    "residual": Tiny(Residual, **BLOCK),
    "pre_activation": Tiny(PreActivation, **BLOCK),
    "squeeze_excite": Tiny(
        SqueezeExcite,
        13824 + 16 + 16 + 2048 + 20,
        216 + 16 + 16 + 32 + 20,
        units("conv1:out 8: conv1 fc2 -> fc1 conv2", "fc1:out 2: fc1 -> fc2", "conv2:out 4: conv2 -> fc"),
    ),
    "spatial_gate": Tiny(SpatialGate, 10368 + 3456 + 30, 162 + 54 + 30, units("conv1:out 6: conv1 -> gate fc")),
    "concat": Tiny(
        Concat,
        6912 + 10368 + 3200 + 25,
        108 + 162 + 50 + 25,
        units("a:out 4: a -> c", "b:out 6: b -> c", "c:out 5: c -> fc"),
    ),
    "dense": Tiny(
        Dense,
        6912 + 6912 + 12096 + 50,
        108 + 108 + 189 + 50,
        units("conv0:out 4: conv0 -> conv1 conv2 fc", "conv1:out 3: conv1 -> conv2 fc", "conv2:out 3: conv2 -> fc"),
    ),
    "grouped": Tiny(
        Grouped,
        1536 + 13824 + 3840 + 25,
        24 + 216 + 60 + 25,
        units("a:out 8: a -> g in 4 blocks", "g:out 12: g -> b in 4 blocks", "b:out 5: b -> fc"),
    ),
    "depthwise": Tiny(
        Depthwise, 768 + 4608 + 2560 + 25, 12 + 72 + 40 + 25, units("a:out 4: a -> b", "b:out 5: b -> fc")
    ),
    "flattened": Tiny(
        Flattened, 1728 + 384 + 30, 108 + 384 + 30, units("conv:out 4: conv -> fc1", "fc1:out 6: fc1 -> fc2")
    ),
    "channels_last": Tiny(
        ChannelsLast,
        6912 + 2048 + 2048 + 20,
        108 + 32 + 32 + 20,
        units("conv:out 4: conv -> fc1", "fc1:out 8: fc1 -> fc2", "fc2:out 4: fc2 -> head"),
    ),
    "shuffle": Tiny(  # halves of `a` must stay equal for the shuffle, groups of `g` for the convolution: quarters
        Shuffle,
        1536 + 2048 + 2560 + 25,
        24 + 32 + 40 + 25,
        units("a:out 8: a -> g in 4 blocks", "g:out 8: g -> b in 2 blocks", "b:out 5: b -> fc"),
    ),
    "glu": Tiny(  # filters i and i + 4 of `a` make channel i
        Glu, 13824 + 1280 + 25, 216 + 20 + 25, units("a:out 4: a -> b", "b:out 5: b -> fc")
    ),
    "halves": Tiny(  # chunk(2) wants as many channels of the first half as of the second
        Halves,
        1536 + 768 + 1280 + 40,
        24 + 12 + 20 + 40,
        units("a:out 8: a -> b c in 2 blocks", "b:out 3: b -> fc", "c:out 5: c -> fc"),
    ),
    "padded_shortcut": Tiny(
        PaddedShortcut,
        6912 + 4608 + 9216 + 40,
        108 + 288 + 576 + 40,
        units(
            "conv1:in 4: stem conv2 -> conv1, a stream",
            "conv1:out 8: conv1 -> conv2",
            "fc:in 8: stem conv2 -> fc, a stream",
        ),
    ),
    "transposed": Tiny(  # a transposed convolution works at the positions of its input
        Transposed,
        768 + 6144 + 7680 + 25,
        12 + 96 + 30 + 25,
        units("a:out 4: a -> up", "up:out 6: up -> b", "b:out 5: b -> fc"),
    ),
    "sound": Tiny(
        Sound,
        576 + 384 + 30,
        36 + 24 + 30,
        units("a:out 4: a -> b", "b:out 6: b -> fc"),
        example=lambda: torch.zeros(1, 3, 16),
    ),
    "volume": Tiny(
        Volume,
        13824 + 768 + 15,
        216 + 12 + 15,
        units("a:out 4: a -> b", "b:out 3: b -> fc"),
        example=lambda: torch.zeros(1, 2, 4, 4, 4),
    ),
    "layer_scale": Tiny(LayerScale, 6912 + 13824 + 30, 108 + 216 + 30, units("a:out 4: a -> b", "b:out 6: b -> fc")),
    "tuple_input": Tiny(
        TwoImages,
        6912 + 6912 + 50,
        108 + 108 + 50,
        PAIR,
        example=lambda: (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8)),
    ),
    "dict_input": Tiny(
        TwoImages,
        6912 + 6912 + 50,
        108 + 108 + 50,
        PAIR,
        example=lambda: {"y": torch.zeros(1, 2, 8, 8), "x": torch.zeros(1, 3, 8, 8)},
    ),
}
