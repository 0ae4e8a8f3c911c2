"""Kinds of layers that the rest of the package tells apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MIXING = (*CONVOLUTIONS, nn.Linear)
FUNCTIONS = (torch.conv1d, torch.conv2d, torch.conv3d, F.linear)  # as layers, on weights that are given to them
DEPTHWISE = "secateur_depthwise"  # attribute of a pruned convolution: whether it was depthwise before


def is_depthwise(layer: nn.Module) -> bool:
    """Whether a convolution applies filters of their own to every input channel."""
    if not isinstance(layer, CONVOLUTIONS):
        return False
    return bool(getattr(layer, DEPTHWISE, layer.groups == layer.in_channels > 1))


def batched_dims(layer: Any) -> int:
    """How many dimensions the input of a convolution has, with images."""
    return 2 + len(layer.kernel_size)
