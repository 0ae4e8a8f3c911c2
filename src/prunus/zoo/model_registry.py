"""The registry of built-in networks: a decorator adds a network's config next to its code.

The table is filled while this package is imported, and a name can be registered only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from prunus.errors import ModelError

Factory = Callable[..., nn.Module]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2470, 0.2435, 0.2616)


@dataclass(frozen=True)
class Input:
    """Default input and number of classes of a family of networks."""

    shape: tuple[int, int, int]  # channels, height, width
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


GREY32 = Input((1, 32, 32), 10, (0.1307,), (0.3081,))
CIFAR = Input((3, 32, 32), 10, CIFAR_MEAN, CIFAR_STD)
IMAGENET = Input((3, 224, 224), 1000, IMAGENET_MEAN, IMAGENET_STD)


@dataclass(frozen=True)
class ModelConfig:
    """A network's name, factory and input: what is known without building it."""

    name: str
    factory: Factory
    input: Input
    about: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    declared: tuple[str, ...] = ()  # parts of the input that the user's own factory names: shape, mean, std

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        return self.input.shape

    @property
    def num_classes(self) -> int:
        """Default number of classes."""
        return self.input.num_classes

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel that training usually subtracts, of pixels in [0, 1]."""
        return self.input.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel that training usually divides by."""
        return self.input.std


_TABLE: dict[str, ModelConfig] = {}


def register(name: str, takes: Input, about: str, **arguments: Any) -> Callable[[Factory], Factory]:
    """Decorator that registers `factory(num_classes=..., **arguments)` as `name`. Use it several times for a family."""

    def add(factory: Factory) -> Factory:
        if name in _TABLE:
            raise ModelError(f"the model name {name!r} is registered twice; choose another name for the second")
        _TABLE[name] = ModelConfig(name, factory, takes, about, arguments)
        return factory

    return add


def registered() -> dict[str, ModelConfig]:
    """A copy of the table: name -> config."""
    return dict(_TABLE)
