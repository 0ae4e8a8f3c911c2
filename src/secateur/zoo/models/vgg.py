"""VGG (Simonyan and Zisserman 2015): the CIFAR versions with batch norm, and VGG-16 for ImageNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.zoo.models.registry import CIFAR, IMAGENET, register

# Convolutions of each block; all blocks but a CIFAR network's last end with 2x2 max pooling.
BLOCKS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS = (64, 128, 256, 512, 512)


def convolutions(depth: int, in_channels: int, *, batch_norm: bool, bias: bool, last_pool: bool) -> nn.Sequential:
    """The 3x3 convolutions of a VGG, each with ReLU, in one flat Sequential (torchvision's numbering)."""
    layers: list[nn.Module] = []
    before = in_channels
    for block, (repeats, width) in enumerate(zip(BLOCKS[depth], WIDTHS, strict=True)):
        for _ in range(repeats):
            layers.append(nn.Conv2d(before, width, 3, padding=1, bias=bias))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            before = width
        if last_pool or block + 1 < len(WIDTHS):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """Convolutions, pooling to a fixed grid, and a classifier; attributes named as in torchvision."""

    def __init__(self, features: nn.Sequential, grid: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(grid)
        self.classifier = classifier
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = self.avgpool(self.features(x))  # [N, 512, grid, grid]
        return self.classifier(torch.flatten(x, 1))  # type: ignore[no-any-return]


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0, 0.01)
    if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@register("vgg16", CIFAR, "batch norm, linear 512-512-classes", depth=16, hidden=512)
@register("vgg19", CIFAR, "batch norm, one linear layer", depth=19, hidden=None)
def cifar_vgg(num_classes: int = 10, depth: int = 16, hidden: int | None = 512, in_channels: int = 3) -> nn.Module:
    """A VGG for 32x32 images."""
    features = convolutions(depth, in_channels, batch_norm=True, bias=False, last_pool=False)
    layers: list[nn.Module] = []
    if hidden is not None:
        layers = [nn.Linear(WIDTHS[-1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers.append(nn.Linear(hidden or WIDTHS[-1], num_classes))
    return VGG(features, 1, nn.Sequential(*layers))


@register("vgg16_imagenet", IMAGENET, "torchvision's names")
def vgg16_imagenet(
    num_classes: int = 1000, batch_norm: bool = False, dropout: float = 0.5, in_channels: int = 3
) -> nn.Module:
    """VGG-16 for 224x224 images; `batch_norm=True` is torchvision's vgg16_bn."""
    # torchvision's network with batch norm has biases in its convolutions too, and so do its weight files.
    features = convolutions(16, in_channels, batch_norm=batch_norm, bias=True, last_pool=True)
    classifier = nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(4096, num_classes),
    )
    return VGG(features, 7, classifier)
