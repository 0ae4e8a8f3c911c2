"""Networks by name: those of the paper, of torchvision and timm, and the user's own.

    model = create("resnet56", num_classes=10)
    load_weights(model, "resnet56.safetensors")
    config("resnet56").shape            # (3, 32, 32)

Names: the built-in ones (`names()`), `torchvision:NAME`, `timm:NAME`, `package.module:factory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from prunus.errors import ModelError
from prunus.zoo.external import external_config
from prunus.zoo.model_registry import CIFAR, GREY32, IMAGENET, ModelConfig, register, registered
from prunus.zoo.names import check_model

# LeNet-5 (LeCun et al. 1998) for 32x32 grey images, with ReLU and max pooling.


class LeNet5(nn.Module):
    """Three 5x5 convolutions (6, 16, 120 filters) and two linear layers. The last convolution has a 1x1 output."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [N, 6, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [N, 16, 5, 5]
        x = F.relu(self.conv3(x))  # [N, 120, 1, 1]
        x = F.relu(self.fc1(torch.flatten(x, 1)))  # [N, 84]
        return self.fc2(x)  # type: ignore[no-any-return]


@register("lenet5", GREY32, "grey images")
def lenet5(num_classes: int = 10, in_channels: int = 1) -> nn.Module:
    """LeNet-5."""
    return LeNet5(num_classes, in_channels)


# CIFAR ResNets of He et al. 2016: 6n + 2 layers, stages of 16, 32 and 64 channels, shortcuts without parameters.

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
        self.layer1 = _stage_resnet_cifar(WIDTHS[0], WIDTHS[0], blocks, stride=1)
        self.layer2 = _stage_resnet_cifar(WIDTHS[0], WIDTHS[1], blocks, stride=2)
        self.layer3 = _stage_resnet_cifar(WIDTHS[1], WIDTHS[2], blocks, stride=2)
        self.linear = nn.Linear(WIDTHS[2], num_classes)
        self.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        x = F.relu(self.bn1(self.conv1(x)))  # [N, 16, 32, 32]
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64, 8, 8]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


def _stage_resnet_cifar(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
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


# Pre-activation CIFAR ResNets (He et al. 2016, "Identity mappings"): norm and ReLU before each convolution.


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


# ResNet-50 for ImageNet, with torchvision's parameter names; the stride of a stage is in its 3x3 convolution.

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
        self.layer1 = _stage_resnet_imagenet(64, *STAGES[0], stride=1)
        self.layer2 = _stage_resnet_imagenet(STAGES[0][0] * EXPANSION, *STAGES[1], stride=2)
        self.layer3 = _stage_resnet_imagenet(STAGES[1][0] * EXPANSION, *STAGES[2], stride=2)
        self.layer4 = _stage_resnet_imagenet(STAGES[2][0] * EXPANSION, *STAGES[3], stride=2)
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


def _stage_resnet_imagenet(in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(in_channels, width, stride)
    return nn.Sequential(first, *(Bottleneck(width * EXPANSION, width, 1) for _ in range(blocks - 1)))


@register("resnet50", IMAGENET, "torchvision's names")
def resnet50(num_classes: int = 1000, in_channels: int = 3) -> nn.Module:
    """ResNet-50."""
    return ResNet50(num_classes, in_channels)


# VGG (Simonyan and Zisserman 2015): the CIFAR versions with batch norm, and VGG-16 for ImageNet.

# Convolutions of each block; all blocks but a CIFAR network's last end with 2x2 max pooling.
BLOCKS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
WIDTHS_VGG = (64, 128, 256, 512, 512)


def convolutions(depth: int, in_channels: int, *, batch_norm: bool, bias: bool, last_pool: bool) -> nn.Sequential:
    """The 3x3 convolutions of a VGG, each with ReLU, in one flat Sequential (torchvision's numbering)."""
    layers: list[nn.Module] = []
    before = in_channels
    for block, (repeats, width) in enumerate(zip(BLOCKS[depth], WIDTHS_VGG, strict=True)):
        for _ in range(repeats):
            layers.append(nn.Conv2d(before, width, 3, padding=1, bias=bias))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            before = width
        if last_pool or block + 1 < len(WIDTHS_VGG):
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
        layers = [nn.Linear(WIDTHS_VGG[-1], hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    layers.append(nn.Linear(hidden or WIDTHS_VGG[-1], num_classes))
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


def names() -> tuple[str, ...]:
    """The built-in names, sorted so that resnet20 comes before resnet110."""
    return tuple(sorted(registered(), key=lambda name: (name.rstrip("0123456789"), len(name), name)))


def config(name: str) -> ModelConfig:
    """What is known about a name without building the network: input shape, classes, mean and standard deviation."""
    if ":" in name:
        return external_config(name)
    check_model(name, names())
    return registered()[name]


def create(name: str, num_classes: int | None = None, **arguments: Any) -> nn.Module:
    """A newly initialised network. `num_classes` is by default that of its config; `arguments` go to its factory."""
    found = config(name)
    classes = found.num_classes if num_classes is None else num_classes
    if classes < 1:
        raise ModelError(f"{name}: num_classes must be at least 1, got {classes}")
    try:
        return found.factory(num_classes=classes, **{**found.arguments, **arguments})
    except TypeError as error:
        raise ModelError(f"{name}: cannot be built with {arguments or 'no other arguments'}: {error}") from error


def example(name: str, batch: int = 1) -> Tensor:
    """Zeros of the shape of the network's input [batch, C, H, W]."""
    return torch.zeros(batch, *config(name).shape)


# What a network costs, as the paper counts it: multiply-adds and weights of convolutions and linear layers.

# The operations that convolutions and linear layers call. Attention has others, which are not counted.
COUNTED = (torch.ops.aten.convolution, torch.ops.aten.addmm, torch.ops.aten.mm)


@dataclass(frozen=True)
class Totals:
    """One MAC is one multiply-add. `weights` leaves out biases and batch norm; `parameters` counts everything."""

    macs: int
    weights: int
    parameters: int


def totals(name: str, num_classes: int | None = None) -> Totals:
    """Totals of a named network for one image of its default size.

    The network runs on the meta device, so nothing is computed and no memory is used.
    """
    with torch.device("meta"):
        model = create(name, num_classes).eval()
        example = torch.zeros(1, *config(name).shape)
    counter = FlopCounterMode(display=False)
    try:
        with counter, torch.no_grad():
            model(example)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{name}: cannot be run on an image of shape {tuple(example.shape[1:])}: {error}") from error
    flops = counter.get_flop_counts()["Global"]
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    return Totals(
        macs=sum(flops.get(operation, 0) for operation in COUNTED) // 2,
        weights=sum(layer.weight.numel() for layer in layers),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
