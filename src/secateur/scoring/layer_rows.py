"""Inputs and outputs of a layer at some output positions, as the rows of a regression: [N, P, groups, n], [N, P, O]."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from secateur.channels.layer_kinds import MIXING, TRANSPOSED
from secateur.errors import ScoreError
from secateur.scoring.linear_calls import LinearCall, linear_call

PLAIN = MIXING  # layers whose output is a linear function of patches, unless a subclass does something else
TRIED = 1024  # output positions on which that is tried


def spots(num_images: int, grid: int, count: int, draw: torch.Generator) -> Tensor:
    """For each image, `count` different positions out of `grid`; all of them if there are not more."""
    if grid <= count:
        return torch.arange(grid).expand(num_images, grid)
    return torch.rand(num_images, grid, generator=draw).topk(count).indices  # [images, count]


def grid_of(layer: nn.Module, y: Tensor) -> int:
    """Number of output positions of one image."""
    places = y.shape[1:-1] if isinstance(layer, nn.Linear) else y.shape[2:]
    return math.prod(places)


def outputs_at(layer: nn.Module, y: Tensor, where: Tensor) -> Tensor:
    """The outputs y [N, O, ...] of a layer at `where` [N, P]: [N, P, O]. Linear layers have their channels last."""
    last = y if isinstance(layer, nn.Linear) else y.movedim(1, -1)
    flat = last.reshape(len(y), -1, last.shape[-1])  # [N, positions, O]
    return flat[_each(where), where.to(y.device)]


def inputs_at(layer: Any, x: Tensor, where: Tensor) -> Tensor:
    """The inputs that the layer multiplies with its weights for the outputs at `where` [N, P]: [N, P, groups, n]."""
    call = linear_call(layer, x)
    if call is None:
        raise ScoreError(f"{type(layer).__name__} calls no convolution and no linear function")
    if call.linear:
        return call.x.reshape(len(x), -1, call.x.shape[-1])[_each(where), where.to(x.device)].unsqueeze(2)
    return _patches(call, where.to(x.device)).reshape(*where.shape, layer.groups, -1)


def _patches(call: LinearCall, where: Tensor) -> Tensor:
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
    rows = call.x.flatten(2)[_each(where).unsqueeze(2), :, index]  # [N, P, taps, C]
    return rows.mul_(inside.unsqueeze(3)).transpose(2, 3)


def _each(where: Tensor) -> Tensor:
    return torch.arange(len(where))[:, None]


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

    A subclass may change the input first, but not the weights or the output.
    """
    if not isinstance(layer, PLAIN):
        return False
    image = x[:1]
    y = layer.forward(image)
    call = linear_call(layer, image)
    if call is None or math.prod(call.grid) != grid_of(layer, y):
        return False
    where = spots(1, grid_of(layer, y), TRIED, torch.Generator().manual_seed(0))
    try:
        rows = exact(inputs_at(layer, image, where))  # [1, P, groups, n]
    except (RuntimeError, IndexError):
        return False
    mine = torch.einsum("ipgn,gon->ipgo", rows, rows_of_weight(layer)).flatten(2)
    mine = mine if layer.bias is None else mine + exact(layer.bias)
    theirs = exact(outputs_at(layer, y, where))
    return mine.shape == theirs.shape and bool((mine - theirs).norm() <= 1e-3 * theirs.norm() + 1e-6)
