"""What a network costs, as the paper counts it: multiply-adds and weights of convolutions and linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.errors import ModelError
from secateur.zoo.models import config, create


@dataclass(frozen=True)
class Totals:
    """One multiply-add is one MAC; `weights` leaves out biases and batch norm, `parameters` counts everything."""

    macs: int
    weights: int
    parameters: int


def totals(name: str, num_classes: int | None = None) -> Totals:
    """Totals of a named network for one image of its usual size. Nothing is computed: the tensors have no content."""
    macs: dict[str, int] = {}
    with torch.device("meta"):
        model = create(name, num_classes).eval()
        example = torch.zeros(1, *config(name).shape)
    layers = {key: layer for key, layer in model.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)}
    for key, layer in layers.items():
        layer.register_forward_hook(_counter(key, macs))
    try:
        with torch.no_grad():
            model(example)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise ModelError(f"{name}: cannot be run on an image of shape {tuple(example.shape[1:])}: {error}") from error
    return Totals(
        macs=sum(macs.values()),
        weights=sum(layer.weight.numel() for layer in layers.values()),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


def _counter(key: str, macs: dict[str, int]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
    def count(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        # Conv [N, C, H, W]: each weight is used once for each output pixel. Linear [N, ..., C]: once for each vector.
        weight = layer.weight
        assert isinstance(weight, Tensor)
        positions = output.numel() // (output.shape[0] * weight.shape[0])
        macs[key] = macs.get(key, 0) + weight.numel() * positions

    return count
