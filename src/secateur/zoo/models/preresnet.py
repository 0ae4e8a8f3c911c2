"""Pre-activation CIFAR ResNets (He et al. 2016, "Identity mappings"): norm and ReLU before each convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.zoo.models.registry import CIFAR, register
from secateur.zoo.models.resnet_cifar import WIDTHS, blocks_per_stage, initialise, shortcut


class PreBasicBlock(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))), shortcuts without parameters."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = shortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, width, H / stride, W / stride]."""
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return out + self.shortcut(x)  # type: ignore[no-any-return]


class PreBottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide; a 1x1 projection if the shape changes."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, 4 * width, H / stride, W / stride]."""
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        out = self.conv3(F.relu(self.bn3(out)))
        return out + self.shortcut(x)  # type: ignore[no-any-return]


Block = type[PreBasicBlock] | type[PreBottleneck]


class PreResNet(nn.Module):
    """Stem, three stages of n blocks, norm and ReLU, global average, linear."""

    def __init__(self, block: Block, blocks: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        first, second, third = (width * block.expansion for width in WIDTHS)
        self.conv1 = nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1, bias=False)
        self.layer1 = _stage(block, WIDTHS[0], WIDTHS[0], blocks, stride=1)
        self.layer2 = _stage(block, first, WIDTHS[1], blocks, stride=2)
        self.layer3 = _stage(block, second, WIDTHS[2], blocks, stride=2)
        self.bn = nn.BatchNorm2d(third)
        self.linear = nn.Linear(third, num_classes)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = self.conv1(x)  # [N, 16, 32, 32]
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64 or 256, 8, 8]
        x = F.adaptive_avg_pool2d(F.relu(self.bn(x)), 1)
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


def _stage(block: Block, in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (block(width * block.expansion, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(in_channels, width, stride), *rest)


@register("preresnet20", CIFAR, "pre-activation", depth=20)
@register("preresnet32", CIFAR, "pre-activation", depth=32)
@register("preresnet38", CIFAR, "pre-activation", depth=38)
@register("preresnet44", CIFAR, "pre-activation", depth=44)
@register("preresnet56", CIFAR, "pre-activation", depth=56)
@register("preresnet110", CIFAR, "pre-activation", depth=110)
def preresnet(num_classes: int = 10, depth: int = 20, in_channels: int = 3) -> nn.Module:
    """A pre-activation ResNet of basic blocks, of any depth 6n + 2."""
    return PreResNet(PreBasicBlock, blocks_per_stage(depth, 2), num_classes, in_channels)


@register("preresnet164", CIFAR, "pre-activation bottlenecks", depth=164)
def preresnet_bottleneck(num_classes: int = 10, depth: int = 164, in_channels: int = 3) -> nn.Module:
    """A pre-activation ResNet of bottlenecks, of any depth 9n + 2."""
    return PreResNet(PreBottleneck, blocks_per_stage(depth, 3), num_classes, in_channels)
