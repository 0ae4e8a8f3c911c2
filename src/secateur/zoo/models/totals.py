"""What a network costs, as the paper counts it: multiply-adds and weights of convolutions and linear layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from secateur.errors import ModelError
from secateur.zoo.models import config, create

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
