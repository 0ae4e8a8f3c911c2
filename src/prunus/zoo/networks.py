"""The built-in networks: LeNet-5, ResNets and VGGs of the paper, each registered by name next to its code.

Parameters have the names of public weight files: torchvision's for ImageNet, those of the usual CIFAR ResNets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.errors import ModelError
from prunus.zoo.names import DATA_SETS

Factory = Callable[..., nn.Module]
AnyFactory = TypeVar("AnyFactory", bound=Factory)


@dataclass(frozen=True)
class Input:
    """Default input and number of classes of a family of networks.

    Attributes:
        shape: Channels, height and width of one image.
        mean, std: What training usually subtracts and divides by, for each channel, of pixels in [0, 1].
    """

    shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def _input_of(data_set: str, num_classes: int, **other: Any) -> Input:
    known = DATA_SETS[data_set]
    return Input(**{"shape": known.shape, "num_classes": num_classes, "mean": known.mean, "std": known.std, **other})


GREY32 = _input_of("mnist", 10, shape=(1, 32, 32))
CIFAR = _input_of("cifar10", 10)
IMAGENET = _input_of("imagenet", 1000)


@dataclass(frozen=True)
class ModelConfig(Input):
    """What is known about a network without building it: its input, name and factory.

    Attributes:
        arguments: Given to the factory besides `num_classes`.
        declared: Parts of the input that a user-provided factory names itself: shape, mean, std.
    """

    name: str
    factory: Factory
    about: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    declared: tuple[str, ...] = ()


REGISTERED: dict[str, ModelConfig] = {}  # filled while this module is imported, and by users


def register(name: str, takes: Input, about: str, **arguments: Any) -> Callable[[AnyFactory], AnyFactory]:
    """Decorator that registers `factory(num_classes=..., **arguments)` as `name`; several times for a family."""

    def add(factory: AnyFactory) -> AnyFactory:
        if name in REGISTERED:
            raise ModelError(f"the model name {name!r} is registered twice; choose another name for the second")
        REGISTERED[name] = ModelConfig(**vars(takes), name=name, factory=factory, about=about, arguments=arguments)
        return factory

    return add


@register("lenet5", GREY32, "grey images")
class LeNet5(nn.Module):
    """LeNet-5 (LeCun et al. 1998) for 32x32 grey images, with ReLU and max pooling.

    Three 5x5 convolutions (6, 16, 120 filters) and two linear layers. The last convolution has a 1x1 output.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # [N, 6, 14, 14]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # [N, 16, 5, 5]
        x = F.relu(self.conv3(x))  # [N, 120, 1, 1]
        x = F.relu(self.fc1(torch.flatten(x, 1)))  # [N, 84]
        return self.fc2(x)  # type: ignore[no-any-return]


# ResNets for CIFAR (He et al. 2016): three stages of 16, 32 and 64 channels with n blocks each.


class ZeroPaddedShortcut(nn.Module):
    """Takes every `stride`-th pixel and adds channels of zeros, half of them before and half after."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        missing, self.stride = out_channels - in_channels, stride
        self.before, self.after = missing // 2, missing - missing // 2

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.after))


class AveragedShortcut(ZeroPaddedShortcut):
    """Takes the mean of each `stride` x `stride` pixels instead of one of them."""

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(F.avg_pool2d(x, self.stride), (0, 0, 0, 0, self.before, self.after))


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without biases that keeps the size of its input but for the stride."""
    return nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x)))))), with a shortcut without parameters."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        same = stride == 1 and in_channels == width
        self.shortcut = nn.Identity() if same else ZeroPaddedShortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


def _stage(block: Any, in_channels: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    """A block that may change the shape, and others that keep it."""
    rest = (block(width * block.expansion, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(block(in_channels, width, stride), *rest)


def _initialise(module: nn.Module) -> None:
    """As in He et al. 2015: normal, fan in."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight)


def _blocks(depth: int, layers_per_block: int) -> int:
    """The n of a network with depth 3 * layers_per_block * n + 2."""
    blocks, rest = divmod(depth - 2, 3 * layers_per_block)
    if rest or blocks < 1:
        raise ModelError(f"depth must be {3 * layers_per_block}n + 2 with an integer n >= 1, got {depth}")
    return blocks


class CifarResNet(nn.Module):
    """Stem, three stages of basic blocks, global average, linear. Depth 6n + 2."""

    def __init__(self, num_classes: int = 10, depth: int = 20, in_channels: int = 3) -> None:
        super().__init__()
        blocks = _blocks(depth, 2)
        self.conv1 = _conv(in_channels, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(BasicBlock, 16, 16, blocks, stride=1)
        self.layer2 = _stage(BasicBlock, 16, 32, blocks, stride=2)
        self.layer3 = _stage(BasicBlock, 32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, num_classes)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))  # [N, 16, 32, 32]
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64, 8, 8]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


class PreBasicBlock(nn.Module):
    """x + conv(relu(bn(conv(relu(bn(x)))))), shortcuts without parameters."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        same = stride == 1 and in_channels == width
        self.shortcut = nn.Identity() if same else ZeroPaddedShortcut(in_channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
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
        self.conv1 = _conv(in_channels, width, 1)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, out_channels, 1)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = _conv(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        out = self.conv3(F.relu(self.bn3(out)))
        return out + self.shortcut(x)  # type: ignore[no-any-return]


class PreResNet(nn.Module):
    """A pre-activation ResNet ("Identity mappings", He et al. 2016): norm and ReLU come before each convolution.

    Stem, three stages, norm and ReLU, global average, linear. Depth 6n + 2 of basic blocks, 9n + 2 of bottlenecks.
    """

    def __init__(
        self, num_classes: int = 10, depth: int = 20, in_channels: int = 3, *, bottleneck: bool = False
    ) -> None:
        super().__init__()
        block: type[PreBasicBlock | PreBottleneck] = PreBottleneck if bottleneck else PreBasicBlock
        blocks = _blocks(depth, 3 if bottleneck else 2)
        first, second, third = (width * block.expansion for width in (16, 32, 64))
        self.conv1 = _conv(in_channels, 16, 3)
        self.layer1 = _stage(block, 16, 16, blocks, stride=1)
        self.layer2 = _stage(block, first, 32, blocks, stride=2)
        self.layer3 = _stage(block, second, 64, blocks, stride=2)
        self.bn = nn.BatchNorm2d(third)
        self.linear = nn.Linear(third, num_classes)
        self.apply(_initialise)

    def forward(self, x: Tensor) -> Tensor:
        return self._behind_stem(self.conv1(x))

    def _behind_stem(self, x: Tensor) -> Tensor:
        """[N, 16, 32, 32] -> [N, classes]."""
        x = self.layer3(self.layer2(self.layer1(x)))  # [N, 64 or 256, 8, 8]
        x = F.adaptive_avg_pool2d(F.relu(self.bn(x)), 1)
        return self.linear(torch.flatten(x, 1))  # type: ignore[no-any-return]


class AveragedPreResNet(PreResNet):
    """A PreResNet of basic blocks with norm and ReLU behind the stem, and shortcuts that average 2x2 pixels.

    The public code of the paper's first author has ResNets of this kind (docs/claims.md).
    """

    def __init__(self, num_classes: int = 10, depth: int = 20, in_channels: int = 3) -> None:
        super().__init__(num_classes, depth, in_channels)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1[0].bn1 = nn.Identity()  # it reads the stem as it is: a second ReLU changes nothing
        self.layer2[0].shortcut = AveragedShortcut(16, 32, 2)
        self.layer3[0].shortcut = AveragedShortcut(32, 64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self._behind_stem(F.relu(self.bn1(self.conv1(x))))


for _depth in (8, 14, 20, 32, 38, 44, 56, 110):
    register(f"resnet{_depth}", CIFAR, "zero-padded shortcuts", depth=_depth)(CifarResNet)
for _depth in (20, 32, 38, 44, 56, 110):
    register(f"preresnet{_depth}", CIFAR, "pre-activation", depth=_depth)(PreResNet)
for _depth in (20, 56, 110):
    register(f"preresnet{_depth}_averaged", CIFAR, "pre-activation, averaged shortcuts", depth=_depth)(
        AveragedPreResNet
    )
register("preresnet164", CIFAR, "pre-activation bottlenecks", depth=164, bottleneck=True)(PreResNet)


# ResNet-50 for ImageNet, with torchvision's parameter names; the stride of a stage is in its 3x3 convolution.


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = _conv(in_channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, out_channels, 1)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + self.downsample(x))


@register("resnet50", IMAGENET, "torchvision's names")
class ResNet50(nn.Module):
    """Stem, four stages of bottlenecks, global average, linear."""

    def __init__(self, num_classes: int = 1000, in_channels: int = 3) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, 64, 7, stride=2)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(Bottleneck, 64, 64, 3, stride=1)
        self.layer2 = _stage(Bottleneck, 256, 128, 4, stride=2)
        self.layer3 = _stage(Bottleneck, 512, 256, 6, stride=2)
        self.layer4 = _stage(Bottleneck, 1024, 512, 3, stride=2)
        self.fc = nn.Linear(2048, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))  # [N, 64, 112, 112]
        x = F.max_pool2d(x, 3, stride=2, padding=1)  # [N, 64, 56, 56]
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # [N, 2048, 7, 7]
        x = F.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.flatten(x, 1))  # type: ignore[no-any-return]


# VGG (Simonyan and Zisserman 2015): the CIFAR versions with batch norm, and VGG-16 for ImageNet.


def _vgg_features(depth: int, in_channels: int, *, batch_norm: bool, bias: bool, last_pool: bool) -> nn.Sequential:
    """The 3x3 convolutions, each with ReLU, in one flat Sequential (torchvision's numbering)."""
    layers: list[nn.Module] = []
    before = in_channels
    repeats = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[depth]
    for block, (convolutions, width) in enumerate(zip(repeats, (64, 128, 256, 512, 512), strict=True)):
        for _ in range(convolutions):
            layers.append(nn.Conv2d(before, width, 3, padding=1, bias=bias))
            if batch_norm:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU())
            before = width
        if last_pool or block < 4:
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    """Convolutions, pooling to a fixed grid, and a classifier; attributes named as in torchvision."""

    def __init__(self, features: nn.Sequential, grid: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(grid)
        self.classifier = classifier
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))  # [N, 512, grid, grid]
        return self.classifier(torch.flatten(x, 1))  # type: ignore[no-any-return]


@register("vgg16", CIFAR, "batch norm, linear 512-512-classes", depth=16, hidden=512)
@register("vgg19", CIFAR, "batch norm, one linear layer", depth=19, hidden=None)
def cifar_vgg(num_classes: int = 10, depth: int = 16, hidden: int | None = 512, in_channels: int = 3) -> nn.Module:
    """A VGG for 32x32 images."""
    features = _vgg_features(depth, in_channels, batch_norm=True, bias=False, last_pool=False)
    before = [nn.Linear(512, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()] if hidden else []
    return VGG(features, 1, nn.Sequential(*before, nn.Linear(hidden or 512, num_classes)))


@register("vgg16_imagenet", IMAGENET, "torchvision's names")
def vgg16_imagenet(
    num_classes: int = 1000, batch_norm: bool = False, dropout: float = 0.5, in_channels: int = 3
) -> nn.Module:
    """VGG-16 for 224x224 images; `batch_norm=True` is torchvision's vgg16_bn."""
    # torchvision's network with batch norm has biases in its convolutions too, and so do its weight files.
    features = _vgg_features(16, in_channels, batch_norm=batch_norm, bias=True, last_pool=True)
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
