"""Networks by name: those of the paper, of torchvision and timm, and the user's own.

    model = create("resnet56", num_classes=10)
    load_weights(model, "resnet56.safetensors")
    config("resnet56").shape            # (3, 32, 32)

Names: the built-in ones (`names()`), `torchvision:NAME`, `timm:NAME`, `package.module:factory`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secateur.errors import ModelError
from secateur.zoo.checks import check_model
from secateur.zoo.models import lenet, preresnet, resnet_cifar, resnet_imagenet, vgg  # noqa: F401  importing registers
from secateur.zoo.models.external import external_config
from secateur.zoo.models.registry import Input, ModelConfig, register, registered
from secateur.zoo.models.weights import load_weights, read_tensors

__all__ = [
    "Input",
    "ModelConfig",
    "config",
    "create",
    "example",
    "load_weights",
    "names",
    "read_tensors",
    "register",
]


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
