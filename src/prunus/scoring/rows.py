"""Inputs and outputs of a layer at some output positions, as the rows of a regression: [N, P, groups, n], [N, P, O].

The call of a convolution or a linear function that the layer makes says which inputs each output depends on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from prunus.errors import ScoreError
from prunus.graph.traced import MIXING, TRANSPOSED

PLAIN = MIXING  # layers whose output is a linear function of patches, unless a subclass does something else
BLOCK = 64  # images whose positions are drawn together
TRIED = 1024  # output positions on which it is tried whether a layer is plain

TRANSPOSED_CALLS = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
CALLS: dict[Any, tuple[str, ...]] = {  # arguments after input, weight and bias
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), ("stride", "padding", "dilation", "groups")),
    **dict.fromkeys(TRANSPOSED_CALLS, ("stride", "padding", "output_padding", "groups", "dilation")),
    F.linear: (),
}


@dataclass(frozen=True, eq=False)
class LinearCall:
    """The input [N, C, ...] of a convolution, and how its outputs depend on it; [N, ..., C] of a linear function."""

    x: Tensor
    linear: bool = False
    transposed: bool = False
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()  # in front of each axis
    dilation: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()  # size of each axis of the output

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LinearCall:
        """From a call of one of CALLS."""
        given = {**dict(zip(("input", "weight", "bias", *CALLS[func]), args, strict=False)), **kwargs}
        x, kernel = given["input"], tuple(given["weight"].shape[2:])
        if func is F.linear:
            return cls(x, linear=True, grid=tuple(x.shape[1:-1]))

        def each_axis(name: str, default: int) -> tuple[int, ...]:
            size = given.get(name, default)
            if isinstance(size, int):
                return (size,) * len(kernel)
            return tuple(size) * (len(kernel) if len(size) == 1 else 1)

        axes, stride, dilation = range(len(kernel)), each_axis("stride", 1), each_axis("dilation", 1)
        reach = [dilation[d] * (kernel[d] - 1) for d in axes]  # of the kernel, beyond its first tap
        if isinstance(given.get("padding", 0), str):
            around = reach if given["padding"] == "same" else [0] * len(kernel)
            front = tuple(r // 2 for r in around)  # if the number of zeros is odd, there is one more at the end
        else:
            front = each_axis("padding", 0)
            around = [2 * p for p in front]
        transposed = func in TRANSPOSED_CALLS
        if transposed:
            more = each_axis("output_padding", 0)
            grid = [(x.shape[2 + d] - 1) * stride[d] - around[d] + reach[d] + more[d] + 1 for d in axes]
        else:
            grid = [(x.shape[2 + d] + around[d] - reach[d] - 1) // stride[d] + 1 for d in axes]
        return cls(x, False, transposed, kernel, stride, front, dilation, tuple(grid))


class _CallFound(BaseException):
    """Ends a forward at its first convolution; no layer catches a BaseException."""

    def __init__(self, call: LinearCall) -> None:
        self.call = call


class _UntilCall(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CALLS:
            raise _CallFound(LinearCall.of(func, args, kwargs))
        return func(*args, **kwargs)


def linear_call(layer: nn.Module, x: Tensor) -> LinearCall | None:
    """The first convolution or linear function that `layer` calls with x, with the input that really enters it; None
    if it calls none. Nothing is computed after that."""
    try:
        with torch.no_grad(), _UntilCall():
            layer.forward(x)
    except _CallFound as found:
        return found.call
    return None


def spots_of(images: range, grid: int, count: int, key: tuple[int, ...]) -> Tensor:
    """For each image, `count` different positions out of `grid`, spread evenly; all if there are not more: [N, count].

    The grid is divided into `count` stretches, and one position is drawn from each. The positions depend on the key and
    the number of the image only, not on how images are divided into chunks.
    """
    if grid <= count:
        return torch.arange(grid).expand(len(images), grid)
    blocks = range(images.start // BLOCK, -(-images.stop // BLOCK))
    seeds = [int(np.random.SeedSequence((*key, block)).generate_state(1)[0]) for block in blocks]
    uniform = torch.cat([torch.rand(BLOCK, count, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    uniform = uniform[images.start - blocks.start * BLOCK :][: len(images)]  # [N, count]
    edges = torch.arange(count + 1) * grid // count
    return edges[:-1] + (uniform * edges.diff()).long()


def grid_of(layer: nn.Module, y: Tensor) -> int:
    """Number of output positions of one image."""
    return math.prod(y.shape[1:-1] if isinstance(layer, nn.Linear) else y.shape[2:])


def outputs_at(layer: nn.Module, y: Tensor, where: Tensor, images: Tensor | None = None) -> Tensor:
    """The outputs y [N, O, ...] of a layer at `where` [N, P]: [N, P, O]. Linear layers have their channels last.

    images: the images that the rows of `where` are about, if not all in turn.
    """
    where, image = where.to(y.device), _each(where, images)
    if isinstance(layer, nn.Linear):
        return y.reshape(len(y), -1, y.shape[-1])[image, where]
    return y.flatten(2)[image, :, where]


def inputs_at(layer: Any, x: Tensor, where: Tensor, images: Tensor | None = None) -> Tensor:
    """The inputs that the layer multiplies with its weights for the outputs at `where` [N, P].

    The result has the shape [N, P, groups, inputs, taps]. Flattened from `inputs` on, it fits `rows_of_weight`.
    """
    call = linear_call(layer, x)
    if call is None:
        raise ScoreError(f"{type(layer).__name__} calls no convolution and no linear function")
    where, image = where.to(x.device), _each(where, images)
    if call.linear:
        return call.x.reshape(len(x), -1, call.x.shape[-1])[image, where][:, :, None, :, None]
    rows = _patches(call, where, image)
    return rows.view(*where.shape, layer.groups, -1, rows.shape[3])


def _patches(call: LinearCall, where: Tensor, image: Tensor) -> Tensor:
    """The inputs under the kernel at each output position, zero where it is beyond the edge: [N, P, C, taps].

    Along one axis, tap k of output position p is on the input position q with

        q = p * stride - padding + k * dilation        q * stride = p + padding - k * dilation  (transposed)

    Only these inputs are copied, and padding is never written out.
    """
    index = torch.zeros_like(where).unsqueeze(2)  # [N, P, taps of the axes so far]
    inside = torch.ones_like(index, dtype=torch.bool)
    for axis, place in enumerate(torch.unravel_index(where, call.grid)):
        size, stride, padding = call.x.shape[2 + axis], call.stride[axis], call.padding[axis]
        tap = torch.arange(call.kernel[axis], device=where.device) * call.dilation[axis]
        place = place.unsqueeze(2)
        if call.transposed:
            far = place + padding - tap
            q = torch.where(far % stride == 0, far.div(stride, rounding_mode="floor"), -1)
        else:
            q = place * stride - padding + tap
        hit = (q >= 0) & (q < size)
        index = ((index * size).unsqueeze(-1) + q.clamp(0, size - 1).unsqueeze(-2)).flatten(2)
        inside = (inside.unsqueeze(-1) & hit.unsqueeze(-2)).flatten(2)
    rows = call.x.flatten(2)[image.unsqueeze(2), :, index]  # [N, P, taps, C]
    return rows.mul_(inside.unsqueeze(3)).transpose(2, 3)


def _each(where: Tensor, images: Tensor | None) -> Tensor:
    return (torch.arange(len(where)) if images is None else images)[:, None]


def exact(x: Tensor) -> Tensor:
    """x in float64; on the CPU if the device has no float64."""
    return (x.cpu() if x.device.type == "mps" else x).detach().double()


def rows_of_weight(layer: Any) -> Tensor:
    """The weight as [groups, outputs per group, n], in float64: outputs = inputs_at @ its transpose + bias."""
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    weight = exact(layer.weight)
    if isinstance(layer, TRANSPOSED):  # [inputs, outputs per group, ...]
        return weight.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(2)
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def weight_of_rows(layer: Any, rows: Tensor) -> Tensor:
    """The layer's weight from the form that `rows_of_weight` returns."""
    if isinstance(layer, TRANSPOSED):
        rows = rows.reshape(*rows.shape[:2], -1, math.prod(layer.kernel_size)).transpose(1, 2)
    return rows.reshape(layer.weight.shape).to(layer.weight)


def acts_plainly(layer: Any, x: Tensor) -> bool:
    """Whether this layer computes weight times patches of the input of its call, plus bias, as tried on one image.

    A subclass may change the input first, but not the weights or the output, and the weights are its own parameter:
    those that a weight norm computes cannot be set.
    """
    if not isinstance(layer, PLAIN) or not isinstance(layer.weight, nn.Parameter):
        return False
    image = x[:1]
    y = layer.forward(image)
    call = linear_call(layer, image)
    if call is None or math.prod(call.grid) != grid_of(layer, y):
        return False
    where = spots_of(range(1), grid_of(layer, y), TRIED, (0,))
    try:
        rows = exact(inputs_at(layer, image, where)).flatten(3)  # [1, P, groups, n]
    except (RuntimeError, IndexError):
        return False
    mine = torch.einsum("ipgn,gon->ipgo", rows, rows_of_weight(layer)).flatten(2)
    mine = mine if layer.bias is None else mine + exact(layer.bias)
    theirs = exact(outputs_at(layer, y, where))
    rounding = max(1e-3, torch.finfo(y.dtype).eps)  # bfloat16 has three digits
    return mine.shape == theirs.shape and bool((mine - theirs).norm() <= rounding * theirs.norm())
