"""Ops that tempt a channel pruner into a silent error: they use the number of channels, not only the channels; treat
channels as pixels, images or tokens; or compute with parameters that belong to no layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def pad_up_to(x: Tensor, channels: int) -> Tensor:
    return F.pad(x, (0, 0, 0, 0, 0, channels - x.size(1)))


def branch_on_width(x: Tensor, wide: int) -> Tensor:
    if x.shape[1] >= wide:
        return x * 0.5
    return x + 1.0


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


def halves_swapped(x: Tensor) -> Tensor:
    left, right = x.chunk(2, 1)
    return torch.cat([right, left], 1)


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


ODD_OPS: dict[str, Callable[..., Any]] = {
    "folded_pick": lambda x: x.view(x.size(0), 2, -1, *x.shape[2:])[:, :, 1],
    "folded_chunk": lambda x: x.view(x.size(0), 2, -1, *x.shape[2:]).chunk(2, 2)[0].sum(1),
    "rows_by_width": lambda x: x[:, :, : x.size(1) % x.size(2) + 1],
    "count_scale": lambda x: x * (1.0 / x.shape[1]),
    "count_root": lambda x: x * x.size(1) ** -0.5,
    "numel_scale": lambda x: x.sum() / x.numel() + x,
    "pad_up_to": pad_up_to,
    "branch_on_width": branch_on_width,
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
    "halves_swapped": halves_swapped,
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
