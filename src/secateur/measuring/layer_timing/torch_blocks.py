"""Blocks that run in PyTorch, cut to some of their widths."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from secateur.channels import layer_surgery
from secateur.channels.units import Indices
from secateur.measuring.layer_timing.blocks import Block


def torch_run(block: Block, inputs: int, outputs: int, batch: int, device: torch.device) -> Callable[[], Any]:
    """A call that runs the block with these numbers of inputs and outputs on random images."""
    width, wide = block.widths
    cut = copy.deepcopy(block.modules)
    kept, made = (_first(w, block.groups, n) for w, n in ((width, inputs), (wide, outputs)))
    if block.depthwise:
        layer_surgery.shrink_depthwise(cut[0], kept)
        made = layer_surgery.depthwise_filters(block.modules[0], kept)
    else:
        layer_surgery.shrink_mixing(cut[0], kept, made)
    for module in list(cut)[1:]:
        layer_surgery.shrink_channelwise(module, made, wide)
    return partial(cut, random_input(block, inputs, batch, device))


def torch_selection(block: Block, inputs: int, batch: int, device: torch.device) -> Callable[[], Any]:
    """A call that selects this number of the block's inputs."""
    width = block.widths[0]
    x = random_input(block, width, batch, device)
    return partial(x.index_select, block.axis, torch.from_numpy(_first(width, block.groups, inputs)).to(device))


def random_input(block: Block, inputs: int, batch: int, device: torch.device) -> Tensor:
    """Random images as the block reads them, with this number of channels, in the layout of its weights."""
    size = [batch, *block.in_shape[1:]]
    size[block.axis] = inputs
    weight = next(block.modules.parameters())
    x = torch.randn(size, device=device, dtype=weight.dtype)
    last = weight.dim() == 4 and not weight.is_contiguous()
    return x.contiguous(memory_format=torch.channels_last) if last else x


def _first(width: int, groups: int, count: int) -> Indices:
    """The first channels of each group."""
    return np.arange(width).reshape(groups, -1)[:, : count // groups].reshape(-1)
