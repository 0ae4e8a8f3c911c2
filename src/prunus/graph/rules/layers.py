"""Rules for layers with parameters per channel, and for operations that change the spatial dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunus.graph.labels import Call, Rule, along, tensors_in
from prunus.graph.rules.pointwise import elementwise
from prunus.graph.traced import batched_dims, is_depthwise


def convolution(call: Call) -> Any:
    """Convolutions and transposed convolutions, 1d to 3d.

    They read their input channels and write one channel per filter. A depthwise convolution passes channels on.
    """
    layer: nn.Conv2d = call.module  # type: ignore[assignment]
    x = call.x
    dim = x.dim() - batched_dims(layer) + 1  # 1, or 0 without a batch dimension
    vector = call.vector(x, dim)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    groups = layer.groups
    if is_depthwise(layer):
        call.passes(vector)
        return along(vector.repeat_interleave(layer.out_channels // groups), call.shape, dim)
    call.reads(vector)
    out = call.writes(layer.out_channels)
    if groups > 1:
        reason = f"{call.what} has {groups} groups"
        if len(vector) % groups or len(out) % groups:
            raise ValueError(f"{reason}, which {len(vector)} -> {len(out)} channels do not fill evenly")
        if not call.reads_all:
            call.balance(vector.view(groups, -1), reason, reader=call.name)
        call.balance(out.view(groups, -1), reason)
    return along(out, call.shape, dim)


def linear(call: Call) -> Any:
    """Linear layers read and write the last dimension."""
    layer: nn.Linear = call.module  # type: ignore[assignment]
    vector = call.vector(call.x, -1)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.reads(vector)
    return along(call.writes(layer.out_features), call.shape, call.x.dim() - 1)


def own_layer(call: Call) -> Any:
    """Convolution and linear functions: as layers, if they are called in a module on a weight and a bias of its own."""
    if call.labels.traced.layer_of(call.node) is None:
        return call.unknown(f"{call.what} is not the only use that a module makes of its input, weight and bias")
    weight: Tensor = call.argument(1, "weight")
    for tensor in ("weight", "bias"):
        if f"{call.name}.{tensor}" in call.labels.opaque:
            return call.unknown(call.labels.opaque[f"{call.name}.{tensor}"])
    x = call.x
    dim = x.dim() - weight.dim() + 1
    if weight.dim() == 2 and dim != 1:
        return call.unknown(f"{call.what} reads the last of {x.dim()} dimensions; give these weights to nn.Linear")
    vector = call.vector(x, dim)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.reads(vector)
    return along(call.writes(weight.size(0)), call.shape, dim)


def channelwise(call: Call) -> Any:
    """Parameters per channel on dimension 1, each channel on its own: batch norm, PReLU."""
    x = call.x
    if x.dim() < 2 or (vector := call.vector(x, 1)) is None:
        return call.unknown(f"{call.what} has channels on another axis than its input")
    call.passes(vector)
    return x


def prelu(call: Call) -> Any:
    """PReLU: one slope for all channels, or one per channel."""
    layer: nn.PReLU = call.module  # type: ignore[assignment]
    return elementwise(call) if layer.num_parameters == 1 else channelwise(call)


def instance_norm(call: Call) -> Any:
    """Instance norm with a batch dimension: each channel on its own."""
    layer: nn.InstanceNorm2d = call.module  # type: ignore[assignment]
    if call.x.dim() != {"1d": 3, "2d": 4, "3d": 5}.get(type(layer).__name__[-2:], 0):
        return call.unknown(f"{call.what} without a batch dimension has no rule")
    return channelwise(call)


def norm_over_channels(call: Call) -> Any:
    """Layer, RMS and response norms: every channel depends on the others, so all are kept. Layers that read a stream
    behind the norm may still select."""
    reason = f"{call.what} normalises over channels"
    if call.shape != call.x.shape:
        return call.unknown(reason)
    call.unchanged()
    call.hold((call.args, call.kwargs), reason)
    return call.x


def batch_norm_function(call: Call) -> Any:
    """F.batch_norm and F.instance_norm: statistics, weight and bias have one entry per channel, on dimension 1."""
    x = call.x
    if x.dim() < 2 or call.vector(x, 1) is None:
        return call.unknown(f"{call.what} has channels on another axis than its input")
    for tensor in tensors_in((call.args[1:], {k: v for k, v in call.kwargs.items() if k != "input"})):
        x = call.unite(x, tensor.reshape(1, -1, *(1,) * (x.dim() - 2)), additive=False)
    return x


def spatial(dims: int) -> Rule:
    """Pooling, padding, interpolation: the last `dims` dimensions (0: all but the first two) change size."""

    def rule(call: Call) -> Any:
        x, shape = call.x, call.shape
        if not isinstance(shape, torch.Size):
            return call.unknown(f"{call.what} returns more than one tensor")
        k = dims if dims > 0 else x.dim() - 2
        changing = range(x.dim() - k, x.dim())
        if len(shape) != x.dim() or any(d in changing for d in call.axes(x)):
            return call.unknown(f"{call.what} runs along an axis that carries channels")
        for d in changing:
            x = x.narrow(d, 0, 1)
        return x.expand(*x.shape[: x.dim() - k], *shape[x.dim() - k :])

    return rule
