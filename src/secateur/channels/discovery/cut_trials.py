"""Try on a layer itself which channels it may lose.

A copy with fewer channels must give the outputs of the full layer whose other inputs are zeroed. If that fails, a copy
with fewer outputs is tried: a weight-standardised convolution computes each filter from the weights of all inputs, so
it can lose filters, but no inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from secateur.channels import layer_surgery
from secateur.channels.labels.call import Rule
from secateur.channels.layer_kinds import CONVOLUTIONS, MIXING, batched_dims, is_depthwise
from secateur.channels.rules.layers import channelwise, instance_norm, prelu
from secateur.channels.rules.regrouping import group_norm
from secateur.channels.rules.rulebook import base_layer
from secateur.channels.rules.tables import LAYERS
from secateur.channels.selection import unselect
from secateur.channels.units import Indices

Cuts = Literal["both", "outputs", "nothing"]  # what a layer may lose: inputs and outputs, only outputs, or nothing


@torch.no_grad()
def try_cuts(module: nn.Module, dims: int) -> Cuts:
    """What a layer may lose, tried on random inputs with so many dimensions. The layer is not changed."""
    try:
        whole = copy.deepcopy(module).cpu().double().eval()
        unselect(whole)
        _randomise(whole.parameters())
        x = _random_input(whole, dims)
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return "nothing"
    if _agrees(whole, x, _kept_inputs(whole)):
        return "both"
    mixes = isinstance(whole, MIXING) and not is_depthwise(whole)
    return "outputs" if mixes and _agrees(whole, x, np.arange(_input_width(whole))) else "nothing"


def _agrees(whole: nn.Module, x: Tensor, keep: Indices) -> bool:
    """Whether a copy that reads only `keep`, and has fewer outputs, computes what the whole layer computes without the
    weights of the other inputs."""
    axis = x.dim() - 1 if isinstance(whole, nn.Linear) else 1
    weight = whole.weight.data if isinstance(whole, MIXING) else None
    try:
        cut = copy.deepcopy(whole)
        outputs = _cut(cut, keep)
        if isinstance(whole, MIXING) and not is_depthwise(whole):
            gone = np.setdiff1d(np.arange(_input_width(whole)), keep)
            whole.weight.data = layer_surgery.without_inputs(whole, gone) if len(gone) else whole.weight.data
        expected = whole(x).index_select(axis, torch.from_numpy(outputs))
        got = cut(x.index_select(axis, torch.from_numpy(keep)))
        return bool(torch.allclose(got, expected, rtol=1e-9, atol=1e-9))
    except Exception:  # noqa: BLE001  whatever the layer's own code raises
        return False
    finally:
        if weight is not None:
            whole.weight.data = weight


def _cut(layer: nn.Module, keep: Indices) -> Indices:
    """Remove all inputs but `keep`, and some outputs. Returns the outputs that are left."""
    if is_depthwise(layer):
        outputs = layer_surgery.depthwise_filters(layer, keep)
        layer_surgery.shrink_depthwise(layer, keep)
        return outputs
    if isinstance(layer, MIXING):
        out_width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        outputs = _all_but_first(int(out_width), _groups(layer))  # not as the inputs, or a skip would not show
        layer_surgery.shrink_mixing(layer, keep, outputs)
        return outputs
    if _rule_of(layer) in (channelwise, prelu, instance_norm, group_norm):  # others are not cut
        layer_surgery.shrink_channelwise(layer, keep, _input_width(layer))
    return keep


def _kept_inputs(layer: nn.Module) -> Indices:
    """Every other input of each group, or every other group of a group norm."""
    width = _input_width(layer)
    if isinstance(layer, nn.GroupNorm):
        return np.arange(width).reshape(layer.num_groups, -1)[::2].reshape(-1)
    return np.arange(width).reshape(_groups(layer), -1)[:, ::2].reshape(-1)


def _all_but_first(width: int, groups: int) -> Indices:
    blocks = np.arange(width).reshape(groups, -1)
    return blocks[:, min(1, blocks.shape[1] - 1) :].reshape(-1)


def _groups(layer: Any) -> int:
    return 1 if is_depthwise(layer) else int(getattr(layer, "groups", 1))


def _rule_of(module: nn.Module) -> Rule | None:
    base = base_layer(module)
    return None if base is None else LAYERS.get(base)


def _randomise(parameters: Iterable[nn.Parameter]) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))


def _random_input(layer: nn.Module, dims: int) -> Tensor:
    """Two random images, large enough for the kernel of a convolution."""
    side = 15
    if isinstance(layer, CONVOLUTIONS):
        dims = batched_dims(layer)  # with a batch dimension, also for layers that are called without one
        sides = zip(layer.kernel_size, layer.dilation, layer.stride, strict=True)
        side = max(dilation * (kernel - 1) + 1 + 2 * stride for kernel, dilation, stride in sides)
    x = torch.randn(2, _input_width(layer), *(side,) * (dims - 2), dtype=torch.float64)
    return x.movedim(1, -1) if isinstance(layer, nn.Linear) else x


def _input_width(module: nn.Module) -> int:
    for name in ("in_channels", "in_features", "num_features", "num_channels"):
        width = getattr(module, name, None)
        if isinstance(width, int):
            return width
    return 6
