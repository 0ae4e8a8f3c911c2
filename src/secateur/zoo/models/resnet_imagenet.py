"""ResNet-50 for ImageNet, with torchvision's parameter names; the stride of a stage is in its 3x3 convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from secateur.zoo.models.registry import IMAGENET, register

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width, blocks
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """[N, in, H, W] -> [N, 4 * width, H / stride, W / stride]."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x))


class ResNet50(nn.Module):
    """Stem, four stages of bottlenecks, global average, linear."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(64, *STAGES[0], stride=1)
        self.layer2 = _stage(STAGES[0][0] * EXPANSION, *STAGES[1], stride=2)
        self.layer3 = _stage(STAGES[1][0] * EXPANSION, *STAGES[2], stride=2)
        self.layer4 = _stage(STAGES[2][0] * EXPANSION, *STAGES[3], stride=2)
        self.fc = nn.Linear(STAGES[3][0] * EXPANSION, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = F.relu(self.bn1(self.conv1(x)))  # [N, 64, 112, 112]
        x = F.max_pool2d(x, 3, stride=2, padding=1)  # [N, 64, 56, 56]
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # [N, 2048, 7, 7]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.flatten(x, 1))  # type: ignore[no-any-return]


def _stage(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1)))


@register("resnet50", IMAGENET, "torchvision's names")
def resnet50(num_classes: int = 1000, in_channels: int = 3) -> nn.Module:
    """ResNet-50."""
    return ResNet50(num_classes, in_channels)
