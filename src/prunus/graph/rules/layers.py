"""Rules for layers with parameters per channel, for operations that change the spatial dimensions, and for those that
work on groups of channels: group norm, pixel and channel shuffle, unfold and fold."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, fx, nn

from prunus.graph.labels import Call, Replay, Rule, along, constant, each_tensor, shapes_in, tensors_in
from prunus.graph.norms import can_be_compensated, is_on_second_axis
from prunus.graph.proxies import Number
from prunus.graph.rules.pointwise import elementwise, takes_sizes
from prunus.graph.traced import channel_dim, is_depthwise


def convolution(call: Call) -> Any:
    """Convolutions and transposed convolutions, 1d to 3d.

    They read their input channels and write one channel per filter. A depthwise convolution passes channels on.
    """
    layer: nn.Conv2d = call.module  # type: ignore[assignment]
    dim = channel_dim(layer, call.x)
    groups = layer.groups
    if is_depthwise(layer):
        vector = call.channels(call.x, dim)
        call.passes(vector)
        return along(vector.repeat_interleave(layer.out_channels // groups), call.shape, dim)
    vector = call.inputs(dim)
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
    call.reads(call.inputs(-1))
    return along(call.writes(layer.out_features), call.shape, call.x.dim() - 1)


def _depthwise_function(call: Call) -> Any:
    """A filter for each channel, as in blurs: filters and biases that carry channels meet those of the input."""
    weight: Tensor = call.argument(1, "weight")
    bias: Tensor | None = call.argument(2, "bias")
    dim = call.x.dim() - weight.dim() + 1
    vector, filters = call.vector(call.x, dim), call.vector(weight, 0)
    groups = call.literal(6, "groups")
    if vector is None or filters is None or not isinstance(groups, fx.Node | Number) or (filters < 0).any():
        return None
    if weight.size(1) != 1 or call.argument(6, "groups") != len(vector) or len(filters) % len(vector):
        return None
    if isinstance(groups, Number):
        call.counts(groups, vector)
    times = len(filters) // len(vector)
    met = call.unite(vector.repeat_interleave(times), filters, additive=False)
    met = met if bias is None else call.unite(met, bias, additive=False)
    call.record.filters[call.labels.traced.function_name(call.node)] = met.numpy()
    return along(met, call.shape, dim)


@takes_sizes
def functional_layer(call: Call) -> Any:
    """Convolution and linear functions: as layers, if they are called in a module on a weight and a bias of its own."""
    sizes: list[fx.Node] = []
    fx.node.map_arg((call.node.args[3:6], {**call.node.kwargs, "groups": None}), sizes.append)
    out = _depthwise_function(call) if call.labels.traced.layer_of(call.node) is None else None
    if out is None:
        fx.node.map_arg(call.literal(6, "groups"), sizes.append)
    if isinstance(call.labels.emit, Replay):
        before, now = call.labels.emit.first.values, call.record.values
        plain = [n.name for n in sizes if not isinstance(now[n.name], Tensor)]
        if any(now[name] != before[name] for name in plain):
            raise ValueError("the number of channels is used as a value")
    if out is not None:
        return out
    if call.labels.traced.layer_of(call.node) is None:
        groups = call.literal(6, "groups")
        if isinstance(groups, int) and groups > 1:
            return call.unknown(
                f"{call.what} has a fixed number of groups, {groups}; call a layer instead, or take the number from "
                "the shape of its input or filters"
            )
        return call.unknown(
            f"{call.what} is called on parameters that are no layer's alone, or not on the input of their module; "
            "make it a layer, or a module that does nothing else with its input, weight and bias"
        )
    weight: Tensor = call.argument(1, "weight")
    for tensor in call.labels.traced.tensors_of(call.name):
        if f"{call.name}.{tensor}" in call.labels.opaque:
            return call.unknown(call.labels.opaque[f"{call.name}.{tensor}"])
    dim = call.x.dim() - weight.dim() + 1
    if call.node.name in call.labels.traced.lent:
        return _lent_layer(call, weight)
    if weight.dim() == 2 and dim != 1:
        return call.unknown(f"{call.what} reads the last of {call.x.dim()} dimensions; give these weights to nn.Linear")
    call.reads(call.inputs(dim))
    return along(call.writes(weight.size(0)), call.shape, dim)


def _lent_layer(call: Call, weight: Tensor) -> Any:
    """A function on the weight of a layer that is not called: nothing can be taken out in front of it, but it may lose
    outputs. A bias that is not the layer's own meets them, such as parts in one parameter each."""
    dim = call.x.dim() - max(1, weight.dim() - 1)
    call.reads(call.keeps(dim, f"takes it, with the weight of {call.name}"))
    out = along(call.writes(weight.size(0)), call.shape, dim)
    bias, node = call.argument(2, "bias"), call.literal(2, "bias")
    if bias is None or (node.op == "get_attr" and node.target == f"{call.name}.bias"):
        return out
    bias = bias.reshape(-1, *(1,) * (weight.dim() - 2))
    return call.unite(out, bias, additive=False)


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
    if call.x.dim() != {"1d": 3, "2d": 4, "3d": 5}.get(type(call.module).__name__[-2:], 0):
        return call.unknown(f"{call.what} without a batch dimension has no rule")
    return channelwise(call)


def group_norm(call: Call) -> Any:
    """nn.GroupNorm: each group is normalised on its own, so a group can be removed as a whole."""
    layer: nn.GroupNorm = call.module  # type: ignore[assignment]
    vector = call.vector(call.x, 1) if call.x.dim() > 1 else None
    if layer.num_groups == 1 or vector is None:
        return norm_over_channels(call)
    call.passes(vector)
    call.unite_along(vector.view(-1, layer.num_channels // layer.num_groups), 1)
    return call.x


def norm_over_channels(call: Call) -> Any:
    """Layer, RMS and response norms: every channel depends on the others, so all are kept. Layers that read a stream
    behind the norm may still select. With `norms="compensated"` channels may go: they count as zeros."""
    reason = f"{call.what} normalises over channels"
    axes = call.axes(call.x)
    over = range(call.x.dim() - _normalised(call), call.x.dim())
    inside = [d for d in axes if d in over]
    if over and inside and len(inside) < len(axes):  # each head on its own
        for d in inside:
            call.unite_along(call.x, d)
        return call.x
    if call.decided("compensated", "", lambda: _can_lose(call, axes)):
        call.averages(axes[0] if is_on_second_axis(call.module) else axes[0] - call.x.dim(), reason)
        return call.x
    if call.shape != call.x.shape:
        return call.unknown(reason)
    call.unchanged()
    call.freeze((call.args, call.kwargs), reason)
    return call.x


def _can_lose(call: Call, axes: list[int]) -> bool:
    """Whether a norm may lose channels along its only axis that has some."""
    module: Any = call.module if call.node.op == "call_module" else None
    if not (call.labels.find_rule.compensates and len(axes) == 1 and call.shape == call.x.shape):
        return False
    if not can_be_compensated(module):
        return False
    plain = type(module).forward in (nn.LayerNorm.forward, getattr(nn, "RMSNorm", nn.LayerNorm).forward)
    return axes[0] == call.x.dim() - 1 if plain else True


def _normalised(call: Call) -> int:
    """How many dimensions at the end a layer norm or RMS norm runs over; 0 for other norms."""
    module: Any = call.module if call.node.op == "call_module" else None
    shape = getattr(module, "normalized_shape", None) if module is not None else call.argument(1, "normalized_shape")
    return len(shape) if isinstance(shape, tuple | list) and "norm" in call.what.lower() else 0


def batch_norm_function(call: Call) -> Any:
    """F.batch_norm and F.instance_norm: statistics, weight and bias have one entry per channel, on dimension 1."""
    x = call.x
    if x.dim() < 2 or call.vector(x, 1) is None:
        return call.unknown(f"{call.what} has channels on another axis than its input")
    for tensor in tensors_in((call.args[1:], {k: v for k, v in call.kwargs.items() if k != "input"})):
        x = call.unite(x, tensor.reshape(1, -1, *(1,) * (x.dim() - 2)), additive=False)
    return x


def spatial(dims: int) -> Rule:
    """Pooling, padding, interpolation: the last `dims` dimensions (0: all but the first two) change size.

    The indices that max pooling returns belong to the same channels, and meet those of what is unpooled by them.
    Unpooling uses the last `dims` numbers of the shape that it is given.
    """

    @takes_sizes
    def rule(call: Call) -> Any:
        x, shapes = call.x, shapes_in(call.shape)
        if isinstance(call.labels.emit, Replay):
            for node in call.node.all_input_nodes:
                now, before = call.record.values[node.name], call.labels.emit.first.values[node.name]
                if isinstance(now, tuple) and len(now) == dims + 2 and dims:
                    now, before = now[2:], before[2:]
                if not tensors_in(now) and now != before:
                    raise ValueError("the number of channels is used as a value")
        for other in tensors_in((call.args[1:], [v for v in call.kwargs.values() if v is not x])):
            if other.dim() == x.dim():
                x = call.unite(x, other, additive=False)
        k = dims if dims > 0 else x.dim() - 2
        changing = range(x.dim() - k, x.dim())
        if not shapes or len(shapes[0]) != x.dim() or any(d in changing for d in call.axes(x)):
            return call.unknown(f"{call.what} runs along an axis that carries channels")
        for d in changing:
            x = x.narrow(d, 0, 1)
        return each_tensor(call.shape, lambda shape: x.expand(*x.shape[: x.dim() - k], *shape[x.dim() - k :]))

    return rule


# -- groups of channels


def pixel_shuffle(call: Call) -> Any:
    """[C r r, H, W] -> [C, r H, r W]: each run of r r channels becomes one, so they are pruned together."""
    runs = call.channels(call.x, call.x.dim() - 3).view(-1, _factor(call, "upscale_factor") ** 2)
    call.unite_along(runs, 1)
    return along(runs[:, 0], call.shape, len(call.shape) - 3)


def pixel_unshuffle(call: Call) -> Any:
    """[C, r H, r W] -> [C r r, H, W]: each channel becomes a run of r r channels."""
    vector = call.channels(call.x, call.x.dim() - 3)
    return along(vector.repeat_interleave(_factor(call, "downscale_factor") ** 2), call.shape, len(call.shape) - 3)


def channel_shuffle(call: Call) -> Any:
    """[g n] -> [n g]: the same number of channels is kept in each of the g groups."""
    groups = _factor(call, "groups")
    blocks = call.channels(call.x, 1).view(groups, -1)
    call.balance(blocks, f"{call.what} splits channels into {groups} blocks")
    return along(blocks.t().reshape(-1), call.shape, 1)


def _factor(call: Call, name: str) -> int:
    """A number given to the layer or to the function."""
    return int(getattr(call.module, name) if call.node.op == "call_module" else call.argument(1, name))


def unfold(call: Call) -> Any:
    """[C, H, W] -> [C k k, L]: each channel becomes a run of the k k pixels of a window."""
    vector = call.channels(call.x, call.x.dim() - 3)
    return along(vector.repeat_interleave(_window(call, 1)), call.shape, len(call.shape) - 2)


def fold(call: Call) -> Any:
    """[C k k, L] -> [C, H, W]: each run of k k channels becomes one, so they are pruned together."""
    runs = call.channels(call.x, call.x.dim() - 2).view(-1, _window(call, 2))
    call.unite_along(runs, 1)
    return along(runs[:, 0], call.shape, len(call.shape) - 3)


def _window(call: Call, index: int) -> int:
    """The number of pixels in a window."""
    layer: Any = call.module if call.node.op == "call_module" else None
    kernel = call.argument(index, "kernel_size") if layer is None else layer.kernel_size
    return int(kernel) ** 2 if isinstance(kernel, int) else math.prod(kernel)


def grid_sample(call: Call) -> Any:
    """grid_sample: each channel is sampled on its own, at the positions of the grid."""
    vector = call.channels(call.x, 1)
    call.freeze(call.argument(1, "grid"), f"{call.what} takes it for positions")
    return along(vector, call.shape, 1)


@takes_sizes
def affine_grid(call: Call) -> Any:
    """affine_grid: positions for images of a given size. Their number of channels does not matter."""
    call.freeze(call.x, f"{call.what} computes positions from it")
    return constant(call.shape)
