"""CIFAR ResNets of He et al. 2016: 6n + 2 layers, stages of 16, 32 and 64 channels, shortcuts without parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.errors import ModelError
from secateur.zoo.models.registry import CIFAR, register

WIDTHS = (16, 32, 64)


class ZeroPaddedShortcut(nn.Module):
    """Takes every `stride`-th pixel and adds channels of zeros, half of them before and half after."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        missing = out_channels - in_channels
        self.stride = stride
        self.before = missing // 2
        self.after = missing - missing // 2

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, out, H / stride, W / stride]."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


def shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The identity if the shape does not change, otherwise a ZeroPaddedShortcut. Neither has parameters."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return ZeroPaddedShortcut(in_channels, out_channels, stride)


class BasicBlock(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, width, H / stride, W / stride]."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class CifarResNet(nn.Module):
    """Stem, three stages of n basic blocks, global average, linear."""

    def __init__(self, blocks: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], blocks, stride=1)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], blocks, stride=2)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], blocks, stride=2)
        self.linear = nn.Linear(WIDTHS[2], num_classes)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = F.relu(self.bn1(self.conv1(x)))  # [N, 16, 32, 32]
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64, 8, 8]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


def _stage(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, width, stride)
    return nn.Sequential(first, *(BasicBlock(width, width, 1) for _ in range(blocks - 1)))


def initialise(module: nn.Module) -> None:
    """Initialise convolutions and linear layers as in He et al. 2015 (normal, fan in)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight)


def blocks_per_stage(depth: int, layers_per_block: int) -> int:
    """The n of a network with depth 3 * layers_per_block * n + 2."""
    blocks, rest = divmod(depth - 2, 3 * layers_per_block)
    if rest or blocks < 1:
        raise ModelError(f"depth must be {3 * layers_per_block}n + 2 with an integer n >= 1, got {depth}")
    return blocks


@register("resnet8", CIFAR, "zero-padded shortcuts", depth=8)
@register("resnet14", CIFAR, "zero-padded shortcuts", depth=14)
@register("resnet20", CIFAR, "zero-padded shortcuts", depth=20)
@register("resnet32", CIFAR, "zero-padded shortcuts", depth=32)
@register("resnet38", CIFAR, "zero-padded shortcuts", depth=38)
@register("resnet44", CIFAR, "zero-padded shortcuts", depth=44)
@register("resnet56", CIFAR, "zero-padded shortcuts", depth=56)
@register("resnet110", CIFAR, "zero-padded shortcuts", depth=110)
def cifar_resnet(num_classes: int = 10, depth: int = 20, in_channels: int = 3) -> nn.Module:
    """A CIFAR ResNet of any depth 6n + 2."""
    return CifarResNet(blocks_per_stage(depth, 2), num_classes, in_channels)
