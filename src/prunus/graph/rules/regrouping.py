"""Rules for operations that work on groups of channels: group norm, pixel and channel shuffle, unfold and fold."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from prunus.graph.labels import Call, along, constant
from prunus.graph.rules.layers import norm_over_channels


def group_norm(call: Call) -> Any:
    """nn.GroupNorm: each group is normalised on its own, so a group can be removed as a whole."""
    layer: nn.GroupNorm = call.module  # type: ignore[assignment]
    vector = call.vector(call.x, 1) if call.x.dim() > 1 else None
    if layer.num_groups == 1 or vector is None:
        return norm_over_channels(call)
    call.passes(vector)
    call.unite_along(vector.view(-1, layer.num_channels // layer.num_groups), 1)
    return call.x


def pixel_shuffle(call: Call) -> Any:
    """[C r r, H, W] -> [C, r H, r W]: each run of r r channels becomes one, so they are pruned together."""
    runs = _factor(call, "upscale_factor") ** 2
    vector = _channels(call)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.unite_along(vector.view(-1, runs), 1)
    return along(vector.view(-1, runs)[:, 0], call.shape, len(call.shape) - 3)


def pixel_unshuffle(call: Call) -> Any:
    """[C, r H, r W] -> [C r r, H, W]: each channel becomes a run of r r channels."""
    vector = _channels(call)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    return along(vector.repeat_interleave(_factor(call, "downscale_factor") ** 2), call.shape, len(call.shape) - 3)


def channel_shuffle(call: Call) -> Any:
    """[g n] -> [n g]: the same number of channels is kept in each of the g groups."""
    groups = _factor(call, "groups")
    vector = call.vector(call.x, 1)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    blocks = vector.view(groups, -1)
    call.balance(blocks, f"{call.what} splits channels into {groups} blocks")
    return along(blocks.t().reshape(-1), call.shape, 1)


def unfold(call: Call) -> Any:
    """[C, H, W] -> [C k k, L]: each channel becomes a run of the k k pixels of a window."""
    vector = _channels(call)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    return along(vector.repeat_interleave(_window(call, 1)), call.shape, len(call.shape) - 2)


def fold(call: Call) -> Any:
    """[C k k, L] -> [C, H, W]: each run of k k channels becomes one, so they are pruned together."""
    runs = _window(call, 2)
    vector = call.vector(call.x, call.x.dim() - 2)
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.unite_along(vector.view(-1, runs), 1)
    return along(vector.view(-1, runs)[:, 0], call.shape, len(call.shape) - 3)


def grid_sample(call: Call) -> Any:
    """grid_sample: each channel is sampled on its own, at the positions of the grid."""
    vector, grid = call.vector(call.x, 1), call.argument(1, "grid")
    if vector is None:
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    call.hold(grid, f"{call.what} takes it for positions")
    return along(vector, call.shape, 1)


def affine_grid(call: Call) -> Any:
    """affine_grid: positions for images of a given size. Their number of channels does not matter."""
    call.hold(call.x, f"{call.what} computes positions from it")
    return constant(call.shape)


affine_grid.takes_sizes = True  # type: ignore[attr-defined]  # see reshaping


def _factor(call: Call, name: str) -> int:
    """A number given to the layer or to the function."""
    return int(getattr(call.module, name) if call.node.op == "call_module" else call.argument(1, name))


def _window(call: Call, index: int) -> int:
    """The number of pixels in a window."""
    layer: Any = call.module if call.node.op == "call_module" else None
    kernel = call.argument(index, "kernel_size") if layer is None else layer.kernel_size
    return int(kernel) ** 2 if isinstance(kernel, int) else math.prod(kernel)


def _channels(call: Call) -> Tensor | None:
    return call.vector(call.x, call.x.dim() - 3)
