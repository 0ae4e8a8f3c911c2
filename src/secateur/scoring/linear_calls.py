"""The call of a convolution or a linear function that a layer makes, and the input that really enters it.

A subclass may pad its input by its own rule and then convolve it without padding. So a layer's inputs are not read off
its attributes: its `forward` runs until it calls `conv2d` or the like, and the arguments of that call are what counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

CALLS: dict[Any, tuple[str, ...]] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), ("stride", "padding", "dilation", "groups")),
    **dict.fromkeys(
        (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
        ("stride", "padding", "output_padding", "groups", "dilation"),
    ),
    F.linear: (),
}
TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


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


class _Entered(BaseException):
    """Ends a forward at its first convolution; no layer catches a BaseException."""

    def __init__(self, call: LinearCall) -> None:
        self.call = call


class _UntilCall(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in CALLS:
            raise _Entered(_call_of(func, args, kwargs))
        return func(*args, **kwargs)


def linear_call(layer: nn.Module, x: Tensor) -> LinearCall | None:
    """The first convolution or linear function that `layer` calls with x; None if it calls none.

    Nothing is computed after that.
    """
    try:
        with torch.no_grad(), _UntilCall():
            layer.forward(x)
    except _Entered as entered:
        return entered.call
    return None


def _call_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LinearCall:
    given = {**dict(zip(("input", "weight", "bias", *CALLS[func]), args, strict=False)), **kwargs}
    x, weight = given["input"], given["weight"]
    if func is F.linear:
        return LinearCall(x, linear=True, grid=tuple(x.shape[1:-1]))
    axes = range(weight.dim() - 2)
    kernel = tuple(weight.shape[2:])
    stride, dilation = (_each_axis(given.get(name, 1), len(kernel)) for name in ("stride", "dilation"))
    reach = [dilation[d] * (kernel[d] - 1) for d in axes]  # of the kernel, beyond its first tap
    padding = given.get("padding", 0)
    if isinstance(padding, str):
        around = reach if padding == "same" else [0] * len(kernel)
        front = tuple(r // 2 for r in around)  # if the number of zeros is odd, there is one more at the end
    else:
        front = _each_axis(padding, len(kernel))
        around = [2 * p for p in front]
    if func in TRANSPOSED:
        more = _each_axis(given.get("output_padding", 0), len(kernel))
        grid = [(x.shape[2 + d] - 1) * stride[d] - around[d] + reach[d] + more[d] + 1 for d in axes]
    else:
        grid = [(x.shape[2 + d] + around[d] - reach[d] - 1) // stride[d] + 1 for d in axes]
    return LinearCall(x, False, func in TRANSPOSED, kernel, stride, front, dilation, tuple(grid))


def _each_axis(size: Any, axes: int) -> tuple[int, ...]:
    if isinstance(size, int):
        return (size,) * axes
    return tuple(size) * (axes if len(size) == 1 else 1)
