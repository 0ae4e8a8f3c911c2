"""The ops that a random network is made of besides layers, written as users write them: sizes asked of the tensor where
it says `dynamic`, spelled out as literals where it says so."""

from __future__ import annotations

import warnings
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


def attention(x: Tensor) -> Tensor:
    flat = x.flatten(2)
    weights = torch.softmax(flat.transpose(1, 2) @ flat, dim=-1)
    return (flat @ weights).view(x.shape)


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
    "stack_sum": lambda x, y: torch.stack([x, y], dim=1).sum(dim=1),
    "stack_flat": lambda x, y: torch.stack((x, y), 1).flatten(1, 2),
    "halves": lambda x: tuple(torch.chunk(x, 2, dim=1)),
    "thirds": lambda x: tuple(x.chunk(3, 1)[i] for i in range(3)),
    "split": lambda x, sizes: tuple(torch.split(x, sizes, dim=1)),
    "split_dynamic": lambda x: tuple(x.split(x.size(1) // 2, dim=1)),
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
    "to_map": lambda x: x.view(x.size(0), x.size(1), 1, 1),
    "unsqueeze": lambda x: x[:, :, None, None],
    "channels_last": lambda x: x.permute(0, 2, 3, 1),
    "channels_first": lambda x: x.movedim(-1, 1),
    "transpose_pixels": lambda x: x.transpose(2, 3),
}


# -- ops that tempt a channel pruner into a silent error: they use the number of channels, not only the channels; treat
# channels as pixels, images or tokens; or compute with parameters that belong to no layer


def channels_as_images(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return F.avg_pool2d(x.reshape(n * c, 1, h, w), 3, stride=1, padding=1).reshape(n, c, h, w)


def channels_as_length(x: Tensor) -> Tensor:
    pooled = F.avg_pool1d(x.mean((2, 3)).unsqueeze(1), 3, stride=1, padding=1)
    return x * pooled.squeeze(1)[:, :, None, None]


def maxout(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.reshape(n, c // 2, 2, h, w).amax(2)


def normalised(x: Tensor) -> Tensor:
    return (x - x.mean((1, 2, 3), keepdim=True)) / (x.std((1, 2, 3), keepdim=True) + 0.1)


def channel_ramp(x: Tensor) -> Tensor:
    ramp = torch.arange(x.size(1), dtype=x.dtype, device=x.device)
    return x * (1 + 0.1 * ramp).view(1, -1, 1, 1)


def half_changed_in_place(x: Tensor) -> Tensor:
    x = x.clone()
    left, _ = x.chunk(2, 1)
    left += 1.0
    return x


def border_assigned(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 0] = 0.5
    y[..., -1:] = x[..., :1]
    return y


def part_assigned(x: Tensor, y: Tensor) -> Tensor:
    """Some channels of one tensor, by numbers, take the values of another's."""
    x = x.clone()
    x[:, 1:] = y[:, :-1]
    return x


def parts_listed(x: Tensor) -> Tensor:
    first, *rest = [part * (i + 1) for i, part in enumerate(x.chunk(2, 1))]
    return torch.cat([*rest, first], 1)


def checked_width(x: Tensor, channels: int) -> Tensor:
    assert x.shape[1] >= channels and len(list(x.shape)) == 4
    return x


def sampled(x: Tensor) -> Tensor:
    """Pixels where an affine grid says, which knows the number of channels and does not use it."""
    shift = torch.tensor([[[1.0, 0.1, 0.0], [0.0, 1.0, 0.2]]], dtype=x.dtype).expand(x.size(0), -1, -1)
    return F.grid_sample(x, F.affine_grid(shift, x.size(), align_corners=False), align_corners=False)


def windows_there_and_back(x: Tensor) -> Tensor:
    return F.fold(F.unfold(x, (2, 1)) * 0.5, x.shape[2:], (2, 1)) if x.size(2) > 1 else x


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    scripted_swish = torch.jit.script(swish)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat((-x[:, half:], x[:, :half]), dim=1)


OPS |= {
    "folded_pick": lambda x: x.view(x.size(0), 2, -1, *x.shape[2:])[:, :, 1],
    "folded_chunk": lambda x: x.view(x.size(0), 2, -1, *x.shape[2:]).chunk(2, 2)[0].sum(1),
    "rows_by_width": lambda x: x[:, :, : x.size(1) % x.size(2) + 1],
    "count_scale": lambda x: x * (1.0 / x.shape[1]),
    "count_root": lambda x: x * x.size(1) ** -0.5,
    "numel_scale": lambda x: x.sum() / x.numel() + x,
    "pad_up_to": lambda x, channels: F.pad(x, (0, 0, 0, 0, 0, channels - x.size(1))),
    "branch_on_width": lambda x, wide: x * 0.5 if x.shape[1] >= wide else x + 1.0,
    "channel_ramp": channel_ramp,
    "ones_cat": lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1),
    "new_zeros_cat": lambda x: torch.cat([x, x.new_zeros(x.size(0), 2, x.size(2), x.size(3))], 1),
    "three_quarters": lambda x: x[:, : int(x.shape[1] * 0.75)],
    "without_last": lambda x: x[:, :-1],
    "first_kept": lambda x: x[:, 0:1] + x,
    "one_channel": lambda x: x[:, 0].unsqueeze(1),
    "unbind_sum": lambda x: torch.stack(torch.unbind(x, 1), 1) * 0.5,
    "unflatten": lambda x: x.unflatten(1, (2, -1)).flatten(1, 2),
    "unflatten_swap": lambda x: x.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2),
    "resize_by_width": lambda x: F.interpolate(x, size=(x.shape[1] % 5 + 1, 4)),
    "channels_as_images": channels_as_images,
    "channels_as_length": channels_as_length,
    "channels_resized": lambda x: F.interpolate(x[:, None], scale_factor=(2.0, 1.0, 1.0)).squeeze(1),
    "channels_pooled": lambda x: F.max_pool3d(x.unsqueeze(1), (2, 1, 1)).squeeze(1),
    "maxout": maxout,
    "normalised": normalised,
    "whole_mean": lambda x: x - x.mean(),
    "swap_pixels_channels": lambda x: x.transpose(1, 2),
    "halves_swapped": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "half_changed_in_place": half_changed_in_place,
    "rotate_half": rotate_half,
    "border_assigned": border_assigned,
    "part_assigned": part_assigned,
    "parts_listed": parts_listed,
    "checked_width": checked_width,
    "max_rows": lambda x: x * x.max(2, keepdim=True).values + torch.min(x, dim=-1, keepdim=True)[0],
    "pixels_there_and_back": lambda x: F.pixel_shuffle(F.pixel_unshuffle(x, 2) * 0.5, 2) if x.size(2) % 2 == 0 else x,
    "native_channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "after_first": lambda x: torch.cat([x[:, 1:] * 2, x[:, :1]], 1),
    "batch_of_ones": lambda x: x * torch.full((x.shape[0], 1, *x.shape[2:]), 0.5, dtype=x.dtype),
    "stacked": lambda x, y: torch.stack([x, y], 2).flatten(1, 2),
    "sampled": sampled,
    "windows_there_and_back": windows_there_and_back,
    "rows_in_windows": lambda x: x.unfold(3, 1, 1).mean(-1) + x.cumsum(2),
    "normalised_rows": lambda x: F.normalize(x, dim=2, eps=0.1) + torch.linalg.vector_norm(x, dim=3, keepdim=True),
    "largest_in_rows": lambda x: x + x.argmax(3, keepdim=True),
    "gated_by_half": lambda x: F.glu(x, 1),
    "narrow_half": lambda x: x.narrow(1, 0, x.size(1) // 2) * 0.5,
    "scripted": lambda x: scripted_swish(x),
    "hstacked": lambda x: torch.hstack([x, x.sin()]),
    "moments": lambda x: x - torch.var_mean(x, (2, 3), keepdim=True, correction=0)[1],
    "pointwise": lambda x: torch.fmax(torch.addcdiv(x, x.tanh(), x.exp() + 1), x.neg()),
    "turned": lambda x: torch.rot90(x, 2, [2, 3]),
    "first_row": lambda x: x + x.select(2, 0).unsqueeze(2),
    "first_channel": lambda x: x + x.select(1, 0).unsqueeze(1),
    "rows_by_number": lambda x: x + x.index_select(2, torch.zeros(x.size(2), dtype=torch.long)),
    "best_in_rows": lambda x: x + x.topk(1, 3).values + x.sort(2)[0],
    "aten": lambda x: torch.ops.aten.add.Tensor(torch.ops.aten.relu.default(x), torch.ops.aten.mean.dim(x, [2], True)),
    "unpooled": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2) if x.size(2) % 2 == 0 else x,
    "sort_channels": lambda x: x.sort(1)[0],
    "topk_channels": lambda x: x.topk(2, 1)[0],
    "diff_channels": lambda x: torch.diff(x, dim=1),
    "norm_channels": lambda x: x / (x.norm(dim=1, keepdim=True) + 1.0),
    "index_select": lambda x: x.index_select(1, torch.tensor([1, 0])),
    "masked": lambda x: x.masked_fill(x > 1.0, 0.5),
    "copy_into": lambda x, y: torch.zeros_like(x).copy_(y) + x,
    "gather_rows": lambda x: x.flatten(2).max(-1)[0],
    "tokens": lambda x: x.flatten(2).transpose(1, 2),
    "tokens_back": lambda x, height, width: x.transpose(1, 2).reshape(x.size(0), -1, height, width),
    "pixels_flat": lambda x: x.flatten(2),
    "pixels_back": lambda x, height, width: x.reshape(x.size(0), x.size(1), height, width),
    "rows": lambda x: x.permute(0, 2, 3, 1).reshape(-1, x.size(1)),
    "rows_back": lambda x, n, h, w: x.reshape(n, h, w, -1).permute(0, 3, 1, 2),
    "depth": lambda x: x.unsqueeze(1),
    "depth_back": lambda x: x.flatten(1, 2),
}


def fuse(alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    weights = torch.softmax(alpha, dim=0)
    return x * weights[0] + y * weights[1]


PARAMETER_OPS: dict[str, Callable[..., Any]] = {
    "scale": lambda gamma, x: x * gamma,
    "shift": lambda gamma, x: gamma + x,
    "fuse": fuse,
    "cat_parameter": lambda gamma, x: torch.cat([x, gamma.expand(x.size(0), -1, x.size(2), x.size(3))], 1),
    "einsum_parameter": lambda gamma, x: torch.einsum("nchw,cd->ndhw", x, gamma),
    "conv_function": lambda gamma, x: F.conv2d(x, gamma),
    "linear_function": lambda gamma, x: F.linear(x.permute(0, 2, 3, 1), gamma).permute(0, 3, 1, 2),
    "prelu_function": lambda gamma, x: F.prelu(x, gamma),
    "norm_function": lambda gamma, x: F.layer_norm(x, x.shape[1:]) * gamma,
    "batch_norm_function": lambda gamma, x: F.batch_norm(x, gamma, gamma.abs() + 0.5, gamma, gamma),
}
