"""Inputs and outputs of a layer at some output positions, as the rows of a regression: [N, P, groups, n], [N, P, O]."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PLAIN = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose output is a linear function of patches


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
    if isinstance(layer, nn.Linear):
        return x.reshape(len(x), -1, x.shape[-1])[_each(where), where.to(x.device)].unsqueeze(2)
    rows = _patches(layer, x, where)  # [N, P, in, kernel ...]
    return rows.reshape(*where.shape, layer.groups, -1)


def _patches(layer: Any, x: Tensor, where: Tensor) -> Tensor:
    """The patch under the kernel at each output position. Indexing a strided view of x copies only these patches."""
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    pads = list(layer._reversed_padding_repeated_twice)
    x = F.pad(x, pads, mode=mode) if any(pads) else x  # [N, in, H, W]
    sides = range(len(layer.kernel_size))
    reach = [layer.dilation[d] * (layer.kernel_size[d] - 1) for d in sides]
    grid = [(x.shape[2 + d] - reach[d] - 1) // layer.stride[d] + 1 for d in sides]
    steps = [x.stride(2 + d) * layer.stride[d] for d in sides]
    inside = [x.stride(2 + d) * layer.dilation[d] for d in sides]
    view = x.as_strided(  # [N, H', W', in, kh, kw]
        (len(x), *grid, x.shape[1], *layer.kernel_size),
        (x.stride(0), *steps, x.stride(1), *inside),
        x.storage_offset(),
    )
    return view[(_each(where).to(x.device), *torch.unravel_index(where.to(x.device), grid))]


def _each(where: Tensor) -> Tensor:
    return torch.arange(len(where))[:, None]


def exact(x: Tensor) -> Tensor:
    """x in float64; on the CPU if the device has no float64."""
    return (x.cpu() if x.device.type == "mps" else x).detach().double()


def rows_of_weight(layer: Any) -> Tensor:
    """The weight as [groups, outputs per group, n], in float64: outputs = inputs_at @ its transpose + bias."""
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    weight = exact(layer.weight)
    return weight.reshape(groups, weight.shape[0] // groups, -1)


@torch.no_grad()
def put_weight(layer: Any, rows: Tensor) -> None:
    """Set the weight from the form that `rows_of_weight` returns."""
    layer.weight.copy_(rows.reshape(layer.weight.shape))


def acts_plainly(layer: Any, x: Tensor) -> bool:
    """Whether this layer computes weight times patches plus bias; a subclass may do something else."""
    if not isinstance(layer, PLAIN):
        return False
    image = x[:1]
    y = layer.forward(image)
    where = torch.arange(grid_of(layer, y)).expand(1, -1)
    try:
        rows = exact(inputs_at(layer, image, where))  # [1, P, groups, n]
    except (RuntimeError, IndexError):
        return False
    mine = torch.einsum("ipgn,gon->ipgo", rows, rows_of_weight(layer)).flatten(2)
    mine = mine if layer.bias is None else mine + exact(layer.bias)
    theirs = exact(outputs_at(layer, y, where))
    return mine.shape == theirs.shape and bool((mine - theirs).norm() <= 1e-3 * theirs.norm() + 1e-6)
