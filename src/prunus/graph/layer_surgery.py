"""Make layers smaller: keep slices of their tensors. These functions change the module, which must be a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunus.graph.traced import CONVOLUTIONS, DEPTHWISE, MIXING, TRANSPOSED
from prunus.graph.units import Indices


def shrink_mixing(layer: nn.Module, inputs: Indices, outputs: Indices) -> None:
    """Keep these inputs and outputs of a layer that mixes channels, in this order.

    Further tensors of a conv or linear layer, such as those from which a mask or a weight norm computes the weight, are
    cut like the weight if they have its shape, and otherwise if they have an entry for each output. A module that calls
    a function on a weight of its own is cut too; attributes that say how wide it is follow.
    """
    weight: Tensor = layer.weight.detach()  # type: ignore[operator]

    def cut(tensor: Tensor) -> Tensor:
        if isinstance(layer, CONVOLUTIONS):
            return _conv_weight(layer, tensor.detach(), inputs, outputs)
        return _block(tensor.detach(), outputs, inputs)

    if isinstance(layer, MIXING):
        wide = int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)
        computing = layer._modules.get("parametrizations")
        for owner in (layer, *(() if computing is None else computing.modules())):
            for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
                if tensor is not None and tensor.dim() > 1 and tensor.shape == weight.shape:
                    _replace(owner, name, cut(tensor))
                elif _has_entries(name, tensor, wide):
                    _slice(owner, name, outputs)
            _check_norms(owner)
    else:
        _replace(layer, "weight", cut(weight))
        _slice(layer, "bias", outputs)
    if "weight" in vars(layer):  # a hook computes it before each call
        layer.weight = cut(weight)
    if isinstance(layer, CONVOLUTIONS):
        layer.in_channels, layer.out_channels = len(inputs), len(outputs)
        if layer.groups > 1:  # a group with one channel left does not make it depthwise
            setattr(layer, DEPTHWISE, False)
        return
    for width, kept, ends in ((weight.size(1), inputs, "in"), (weight.size(0), outputs, "out")):
        for name in (f"{ends}_channels", f"{ends}_features"):
            if getattr(layer, name, None) == width:
                setattr(layer, name, len(kept))


def _check_norms(owner: nn.Module) -> None:
    """ValueError if the norms of a weight norm no longer fit its directions: torch would read beyond them."""
    known = owner._parameters
    for name, direction in known.items():
        norm = known.get({"original1": "original0"}.get(name, f"{name.removesuffix('_v')}_g"))
        if norm is None or direction is None or norm is direction or norm.dim() != direction.dim():
            continue
        if any(n not in (1, d) for n, d in zip(norm.shape, direction.shape, strict=True)):
            raise ValueError(f"norms {list(norm.shape)} do not fit directions {list(direction.shape)}")


def _conv_weight(layer: Any, weight: Tensor, inputs: Indices, outputs: Indices) -> Tensor:
    """Weights have shape [out, in / groups, ...]; those of transposed convolutions [in, out / groups, ...]."""
    rows, columns = (inputs, outputs) if isinstance(layer, TRANSPOSED) else (outputs, inputs)
    wide = layer.out_channels if isinstance(layer, TRANSPOSED) else layer.in_channels
    groups, per_group = layer.groups, wide // layer.groups
    if groups == 1:
        return _block(weight, rows, columns)
    row_parts = rows.reshape(groups, -1)
    column_parts = columns.reshape(groups, -1)
    owner = np.arange(groups)[:, None]
    rows_per_group = weight.size(0) // groups
    if not ((row_parts // rows_per_group == owner).all() and (column_parts // per_group == owner).all()):
        raise ValueError(f"channels would cross the {groups} groups of the convolution")
    parts = [_block(weight, r, c % per_group) for r, c in zip(row_parts, column_parts, strict=True)]
    return torch.cat(parts)


def depthwise_filters(layer: Any, channels: Indices) -> Indices:
    """The filters of a depthwise convolution that belong to these input channels."""
    multiplier = layer.out_channels // layer.in_channels
    filters: Indices = (channels[:, None] * multiplier + np.arange(multiplier)).reshape(-1)
    return filters


def shrink_depthwise(layer: Any, channels: Indices) -> None:
    """Keep these input channels of a depthwise convolution, with all of their filters."""
    filters = depthwise_filters(layer, channels)
    # Weights have shape [in * multiplier, 1, ...]; those of transposed convolutions [in, multiplier, ...].
    _slice(layer, "weight", channels if isinstance(layer, TRANSPOSED) else filters)
    _slice(layer, "bias", filters)
    layer.in_channels = layer.groups = len(channels)
    setattr(layer, DEPTHWISE, True)  # even if only one channel is left
    layer.out_channels = len(filters)


def shrink_channelwise(layer: nn.Module, channels: Indices, width: int) -> None:
    """Keep these channels of a layer whose tensors have one entry per channel (batch norm, PReLU)."""
    for name, tensor in [*layer._parameters.items(), *layer._buffers.items()]:
        if _has_entries(name, tensor, width):
            _slice(layer, name, channels)
    if isinstance(layer, nn.GroupNorm):  # groups are removed as a whole
        layer.num_groups = len(channels) * layer.num_groups // width
    for attribute in ("num_features", "num_parameters", "num_channels"):
        if getattr(layer, attribute, None) == width:
            setattr(layer, attribute, len(channels))


def shrink_parameter(model: nn.Module, name: str, entries: Mapping[int, Indices]) -> None:
    """Keep these entries of a standalone parameter or buffer, axis by axis."""
    owner_name, _, attribute = name.rpartition(".")
    owner = model.get_submodule(owner_name)
    tensor: Tensor = getattr(owner, attribute)
    value = tensor.detach()
    for axis, index in entries.items():
        value = value.index_select(axis, _t(index, tensor.device))
    _replace(owner, attribute, value)


def _has_entries(name: str, tensor: Tensor | None, width: int) -> bool:
    """Whether a tensor of a layer, other than a selection, has one entry for each of `width` channels."""
    return tensor is not None and tensor.dim() > 0 and tensor.size(0) == width and not name.startswith("prunus_")


def _slice(layer: nn.Module, name: str, index: Indices) -> None:
    tensor = getattr(layer, name, None)
    if tensor is not None:
        _replace(layer, name, tensor.detach().index_select(0, _t(index, tensor.device)))


def _block(weight: Tensor, rows: Indices, columns: Indices) -> Tensor:
    """Rows and columns of a weight. The axis that loses most goes first; nothing is copied if all are kept."""
    weight = weight.detach()
    for dim, index in sorted(((0, rows), (1, columns)), key=lambda cut: len(cut[1]) / max(1, weight.size(cut[0]))):
        if len(index) != weight.size(dim) or not np.array_equal(index, np.arange(len(index))):
            weight = weight.index_select(dim, _t(index, weight.device))
    return weight


def _replace(layer: nn.Module, name: str, value: Tensor) -> None:
    """Give a tensor of a layer another value. It stays the same tensor, which a list of the model may hold too."""
    old: Tensor = getattr(layer, name)
    value = value.clone() if value.data_ptr() == old.data_ptr() else value
    for dims, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if old.dim() == dims and old.is_contiguous(memory_format=layout) and not old.is_contiguous():
            value = value.contiguous(memory_format=layout)
    old.data = value


def _t(index: Indices, device: torch.device | None = None) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(index)).to(device or torch.device("cpu"))
