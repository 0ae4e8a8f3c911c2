"""The networks of the paper, and anyone's own, by name.

    model = create("resnet56", num_classes=10)
    load_weights(model, "resnet56.safetensors")
    config("resnet56").shape            # (3, 32, 32)

Names: the built-in ones (`names()`), `torchvision:NAME`, `timm:NAME`, `package.module:factory`.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch import Tensor, nn

from secateur.errors import ModelError
from secateur.zoo.models import lenet, preresnet, resnet_cifar, resnet_imagenet, vgg  # noqa: F401  these register
from secateur.zoo.models.outside import outside_config
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
    """What is known of a name without building the network: input shape, classes, mean and deviation."""
    if ":" in name:
        return outside_config(name)
    table = registered()
    if name not in table:
        close = difflib.get_close_matches(name, table, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else "."
        raise ModelError(
            f"no model is called {name!r}{hint} Known: {', '.join(names())}; "
            "also torchvision:NAME, timm:NAME and package.module:factory"
        )
    return table[name]


def create(name: str, num_classes: int | None = None, **arguments: Any) -> nn.Module:
    """A freshly initialised network; `num_classes` as in its config unless given, `arguments` go to its factory."""
    found = config(name)
    classes = found.num_classes if num_classes is None else num_classes
    if classes < 1:
        raise ModelError(f"{name}: num_classes should be at least 1, not {classes}")
    try:
        return found.factory(num_classes=classes, **{**found.arguments, **arguments})
    except TypeError as error:
        raise ModelError(f"{name}: cannot be built with {arguments or 'no further arguments'}: {error}") from error


def example(name: str, batch: int = 1) -> Tensor:
    """An input of the right shape for tracing and counting: zeros [batch, C, H, W]."""
    return torch.zeros(batch, *config(name).shape)
