"""What operations do to channels. A rule takes a `Call`, tells it what happens, and returns the labels that come out.

Ready to use for operations and layers of your own, with `secateur.register_rule`:

    elementwise   each output position depends on the same input position only
    channelwise   ... on the same channel only, with parameters of shape [channels, ...] sliced along
    spatial(k)    ... on the same channel only; the last k dimensions change
    combine       several tensors meet position by position (multiply, maximum): their channels go together
    add           the same for sums: the channels become a stream
    structural    elements are only moved: the operation itself is run on the labels
    unknown       nothing is known: the channels stay
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secateur.channels.labels import along, tensors_in
from secateur.channels.reshape_rules import compute, structural
from secateur.channels.rule_call import Call, Rule

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MIXING = (*CONVOLUTIONS, nn.Linear)
DEPTHWISE = "secateur_depthwise"  # on a pruned convolution: what it was when it had all of its channels


def is_depthwise(layer: nn.Module) -> bool:
    """A convolution in which every input channel has filters of its own."""
    if not isinstance(layer, CONVOLUTIONS):
        return False
    return bool(getattr(layer, DEPTHWISE, layer.groups == layer.in_channels > 1))


def elementwise(call: Call) -> Any:
    """Positions keep their channels. Further tensor arguments meet the first one position by position."""
    return combine(call)


def same(call: Call) -> Any:
    """The first argument as it is, in another type, layout or place."""
    return call.args[0]


def handed_on(call: Call) -> Any:
    """The first argument as it is; what the operation might have wanted of the others is not known."""
    call.hold((call.args[1:], call.kwargs), f"{call.what} has no rule")
    return call.args[0]


def unknown(call: Call) -> Any:
    """Nothing is known of this operation: its channels stay. Without tensors it is just computed."""
    if not tensors_in((call.args, call.kwargs)):
        return compute(call)
    return call.unknown()


# ---------------------------------------------------------------------------------------------- layers that mix


def convolution(call: Call) -> Any:
    """Conv and transposed conv, 1d to 3d: reads its input channels, writes its filters; depthwise hands on."""
    layer: nn.Conv2d = call.module  # type: ignore[assignment]
    x = call.x
    dim = x.dim() - layer.weight.dim() + 1  # 1, or 0 without a batch dimension
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
        call.balance(vector.view(groups, -1), reason, reader=call.name)
        call.balance(out.view(groups, -1), reason)
    return along(out, call.shape, dim)


def linear(call: Call) -> Any:
    """Linear: reads and writes the last dimension."""
    layer: nn.Linear = call.module  # type: ignore[assignment]
    vector = call.vector(call.x, -1)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.reads(vector)
    return along(call.writes(layer.out_features), call.shape, call.x.dim() - 1)


# ---------------------------------------------------------------------------------------------- channel by channel


def channelwise(call: Call) -> Any:
    """Parameters per channel on dimension 1, each channel by itself: batch norm, PReLU."""
    x = call.x
    if x.dim() < 2 or (vector := call.vector(x, 1)) is None:
        return call.unknown(f"{call.what} has channels on another axis than its input")
    call.passes(vector)
    return x


def prelu(call: Call) -> Any:
    """PReLU: one slope for all, or one per channel."""
    layer: nn.PReLU = call.module  # type: ignore[assignment]
    return elementwise(call) if layer.num_parameters == 1 else channelwise(call)


def instance_norm(call: Call) -> Any:
    """Instance norm, with a batch dimension: every channel by itself."""
    layer: nn.InstanceNorm2d = call.module  # type: ignore[assignment]
    if call.x.dim() != {"1d": 3, "2d": 4, "3d": 5}.get(type(layer).__name__[-2:], 0):
        return call.unknown(f"{call.what} without a batch dimension has no rule")
    return channelwise(call)


def norm_over_channels(call: Call) -> Any:
    """Layer, group, RMS and response norms: every channel depends on the others."""
    return call.unknown(f"{call.what} normalises over channels")


def spatial(dims: int) -> Rule:
    """Pooling, padding, interpolation: the last `dims` dimensions change, channel by channel."""

    def rule(call: Call) -> Any:
        x, shape = call.x, call.shape
        if not isinstance(shape, torch.Size):
            return call.unknown(f"{call.what} returns more than one tensor")
        k = dims if dims > 0 else x.dim() - 2
        moving = range(x.dim() - k, x.dim())
        if len(shape) != x.dim() or any(d in moving for d in call.axes(x)):
            return call.unknown(f"{call.what} runs along an axis that carries channels")
        for d in moving:
            x = x.narrow(d, 0, 1)
        return x.expand(*x.shape[: x.dim() - k], *shape[x.dim() - k :])

    return rule


# ---------------------------------------------------------------------------------------------- tensors that meet


def combine(call: Call) -> Any:
    """Several tensors meet position by position: multiply, divide, maximum, where, gates."""
    return _meet(call, additive=False)


def add(call: Call) -> Any:
    """Sums: the channels go through an addition, they are a stream."""
    return _meet(call, additive=True)


def _meet(call: Call, *, additive: bool) -> Any:
    tensors = tensors_in((call.args, call.kwargs))
    if not tensors:
        return compute(call)
    if not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} returns more than one tensor")
    united = tensors[0]
    for other in tensors[1:]:
        united = call.unite(united, other, additive=additive)
    return united


def reduce(call: Call) -> Any:
    """Sums, means and maxima over dimensions: what is summed together goes together."""
    x = call.x
    dims = call.argument(1, "dim", call.kwargs.get("axis"))
    if dims is None or dims == () or isinstance(dims, bool | Tensor) or not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} over all dimensions has no rule")
    dims = sorted({d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)})
    kept_dims = len(call.shape) == x.dim()
    axes = call.axes(x)
    crossed = [d for d in axes if d in dims]
    if crossed and not set(axes) - set(dims):
        return call.unknown(f"{call.what} runs over all channels")
    for d in crossed:
        call.unite_along(x, d)
    for d in reversed(dims):
        x = x.narrow(d, 0, 1) if kept_dims else x.select(d, 0)
    return x


def softmax(call: Call) -> Any:
    """Each position depends on all others along one dimension: they go together."""
    dim = call.argument(1, "dim") if call.node.op != "call_module" else getattr(call.module, "dim", 1)
    x = call.x
    if not isinstance(dim, int):
        return call.unknown()
    moving = call.axes(x)
    if dim % x.dim() in moving:
        if len(moving) == 1:
            return call.unknown(f"{call.what} runs over all channels")
        call.unite_along(x, dim % x.dim())
    return x


def nothing(call: Call) -> Any:
    """Assertions and the like."""
    return None


__all__ = ["add", "channelwise", "combine", "elementwise", "spatial", "structural", "unknown"]
