"""The ops that a random network is made of besides layers. Written as users write them: sizes asked of the tensor
where it says `dynamic`, spelled out as literals where it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def iadd(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone()
    x += y
    return x


def iadd_alias(x: Tensor, y: Tensor) -> Tensor:
    x += y  # whoever reads x later reads the sum
    return x


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    left, right = torch.chunk(x, 2, dim=1)
    return left, right


def thirds(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    parts = x.chunk(3, 1)
    return parts[0], parts[1], parts[2]


def split(x: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    left, right = torch.split(x, sizes, dim=1)
    return left, right


def split_dynamic(x: Tensor) -> tuple[Tensor, Tensor]:
    left, right = x.split(x.size(1) // 2, dim=1)
    return left, right


def slice_dynamic(x: Tensor, first: bool) -> Tensor:
    half = x.shape[1] // 2
    return x[:, :half] if first else x[:, half:]


def shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.contiguous().view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


def shuffle_unknown_groups(x: Tensor, per_group: int) -> Tensor:
    n, _, h, w = x.shape
    return x.reshape(n, -1, per_group, h, w).permute(0, 2, 1, 3, 4).flatten(1, 2)


def groups_apart(x: Tensor) -> tuple[Tensor, Tensor]:
    n, c, h, w = x.shape
    pair = x.reshape(n, c // 2, 2, h, w)
    return pair[:, :, 0], pair[:, :, 1]


def group_sum(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.contiguous().view(n, groups, c // groups, h, w).sum(dim=1)


def radix_attention(x: Tensor, radix: int) -> Tensor:
    n, c, h, w = x.shape
    parts = x.contiguous().view(n, radix, c // radix, h, w)
    weights = torch.softmax(parts.mean((3, 4), keepdim=True), dim=1)
    return (parts * weights).sum(1)


def stack_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([x, y], dim=1).sum(dim=1)


def stack_flat(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack((x, y), 1).flatten(1, 2)


def attention(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    weights = torch.softmax(flat.transpose(1, 2) @ flat, dim=-1)
    return (flat @ weights).view(x.shape)


def to_map(x: Tensor) -> Tensor:
    return x.view(x.size(0), x.size(1), 1, 1)


OPS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "iadd": iadd,
    "iadd_alias": iadd_alias,
    "add_fn": lambda x, y: torch.add(x, y, alpha=0.5),
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * torch.sigmoid(y),
    "maximum": torch.maximum,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "scalar": lambda x: 1.0 - 0.5 * x,
    "gate": lambda x, gate: x * gate,
    "gate_first": lambda x, gate: gate * x,
    "one_channel_add": lambda x, one: one + x,
    "relu": lambda x: F.relu(x),
    "relu_inplace": lambda x: F.relu(x.clone(), inplace=True),
    "sigmoid": torch.sigmoid,
    "tanh": lambda x: x.tanh(),
    "exp": lambda x: torch.exp(-x.abs()),
    "clamp": lambda x: x.clamp(min=-1.0, max=2.0),
    "dropout": lambda x: F.dropout(x, 0.3, training=False),
    "max_pool": lambda x: F.max_pool2d(x, 2),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, stride=1, padding=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    "resize_like": lambda x, y: F.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=False),
    "cat": lambda *xs: torch.cat(xs, dim=1),
    "cat_negative_axis": lambda *xs: torch.cat(list(xs), -3),
    "cat_rows": lambda x, y: torch.cat([x, y], dim=2),
    "cat_zeros": lambda x: torch.cat([x, torch.zeros_like(x)], 1),
    "stack_sum": stack_sum,
    "stack_flat": stack_flat,
    "halves": halves,
    "thirds": thirds,
    "split": split,
    "split_dynamic": split_dynamic,
    "slice_literal": lambda x, low, high: x[:, low:high],
    "slice_step": lambda x: x[:, ::2],
    "slice_dynamic": slice_dynamic,
    "slice_pixels": lambda x: x[:, :, ::2, 1:],
    "slice_ellipsis": lambda x: x[..., 1:],
    "pick_channels": lambda x, order: x[:, list(order)],
    "narrow": lambda x, low, count: x.narrow(1, low, count),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: torch.roll(x, 1, dims=1),
    "shuffle": shuffle,
    "shuffle_unknown_groups": shuffle_unknown_groups,
    "channel_shuffle": lambda x, groups: F.channel_shuffle(x, groups),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "groups_apart": groups_apart,
    "group_sum": group_sum,
    "radix_attention": radix_attention,
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, dim=1),
    "expand_pixels": lambda x, size: x.expand(-1, -1, size, size),
    "pad_channels": lambda x, low, high, value: F.pad(x, (0, 0, 0, 0, low, high), value=value),
    "pad_pixels": lambda x: F.pad(x, (1, 0, 0, 1)),
    "pad_reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "mean_pixels": lambda x: x.mean((2, 3)),
    "mean_kept": lambda x: x.mean([2, 3], keepdim=True),
    "mean_rows": lambda x: x.mean(dim=2, keepdim=True),
    "max_pixels": lambda x: x.amax((2, 3), keepdim=True),
    "std_pixels": lambda x: x.std((2, 3), keepdim=True),
    "mean_channels": lambda x: x.mean(1, keepdim=True),
    "max_channels": lambda x: torch.max(x, dim=1, keepdim=True)[0],
    "softmax_channels": lambda x: torch.softmax(x, dim=1),
    "softmax_pixels": lambda x: torch.softmax(x.flatten(2), dim=-1).view_as(x),
    "normalize": lambda x: F.normalize(x, dim=1, eps=1e-3),
    "cumsum": lambda x: torch.cumsum(x, dim=1) * 0.3,
    "attention": attention,
    "einsum": lambda x: torch.einsum("nchw,nchw->nc", x, x) * 0.1,
    "flatten": lambda x: torch.flatten(x, 1),
    "flatten_view": lambda x: x.contiguous().view(x.size(0), -1),
    "flatten_literal": lambda x, count: x.reshape(-1, count),
    "flatten_last": lambda x: x.permute(0, 2, 3, 1).flatten(1),
    "to_map": to_map,
    "unsqueeze": lambda x: x[:, :, None, None],
    "channels_last": lambda x: x.permute(0, 2, 3, 1),
    "channels_first": lambda x: x.movedim(-1, 1),
    "transpose_pixels": lambda x: x.transpose(2, 3),
}
