"""The registry of built-in networks: one decorator, with each network's config beside its code.

The table below is filled only while this package is imported, and a name can be registered only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from secateur.errors import ModelError

Factory = Callable[..., nn.Module]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Input:
    """What a network of a family takes and says by default."""

    shape: tuple[int, int, int]  # channels, height, width
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


GREY32 = Input((1, 32, 32), 10, (0.1307,), (0.3081,))
CIFAR = Input((3, 32, 32), 10, CIFAR_MEAN, CIFAR_STD)
IMAGENET = Input((3, 224, 224), 1000, IMAGENET_MEAN, IMAGENET_STD)


@dataclass(frozen=True)
class ModelConfig:
    """A network's name, factory and what it takes: all that is known without building it."""

    name: str
    factory: Factory
    input: Input
    about: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        return self.input.shape

    @property
    def num_classes(self) -> int:
        """Classes the network tells apart unless told otherwise."""
        return self.input.num_classes

    @property
    def mean(self) -> tuple[float, ...]:
        """Per-channel mean that its usual training subtracts, of pixels in [0, 1]."""
        return self.input.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Per-channel deviation that its usual training divides by."""
        return self.input.std


_TABLE: dict[str, ModelConfig] = {}


def register(name: str, takes: Input, about: str, **arguments: Any) -> Callable[[Factory], Factory]:
    """Decorator: make `factory(num_classes=..., **arguments)` findable as `name`. Stack it for a family."""

    def add(factory: Factory) -> Factory:
        if name in _TABLE:
            raise ModelError(f"the model name {name!r} is registered twice; choose another name for the second")
        _TABLE[name] = ModelConfig(name, factory, takes, about, arguments)
        return factory

    return add


def registered() -> dict[str, ModelConfig]:
    """A copy of the table: name -> config."""
    return dict(_TABLE)
