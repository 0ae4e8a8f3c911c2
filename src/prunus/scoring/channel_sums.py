"""Sums of every channel of every image: the only step of a scoring pass that reads whole activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A float32 row is recomputed if its squared deviations are less than this fraction of its sum of squares: there the
# difference of the two has fewer than about 5 correct digits.
DOUBTFUL = 1e-2
CHUNK = 1 << 19  # elements per chunk: 2 MB of float32
LONG = 4096  # most elements of a row, if it can be divided


@dataclass(frozen=True, eq=False)
class ImageSums:
    """Sum and sum of squares of each channel in each image over its positions, in float64."""

    positions: Tensor  # [C]
    total: Tensor  # [N, C]
    squares: Tensor  # [N, C]


@dataclass(frozen=True, eq=False)
class PreciseRows:
    """Rows that were computed in float64: their images and channels [R], their mean and m2 [R]."""

    image: Tensor
    channel: Tensor
    mean: Tensor
    m2: Tensor


@dataclass(frozen=True, eq=False)
class RowSums:
    """What is kept of one tensor [N, C, ...] until the batch is done: little work, in the tensor's own precision."""

    positions: int
    total: Tensor  # [N, C] sum over positions
    norm: Tensor  # [N, C] square root of the sum of squares
    precise: PreciseRows | None = None  # in the place of rows whose deviations float32 sums would hide


def row_sums(x: Tensor) -> RowSums:
    """Sums of x [N, C, ...] over all positions of a channel."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    positions = x.shape[2:].numel()
    if positions == 1:
        total = x.reshape(x.shape[:2]).clone()  # a view would change with the network's in-place operations
        return RowSums(1, total, total.abs())
    if x.device.type != "cpu":
        return row_sums_by_welford(x)
    total, norm = _totals_and_norms(x)  # [N, C] each
    if x.dtype == torch.float64:
        return RowSums(positions, total, norm)
    share = 1 / (positions * (1 - DOUBTFUL))
    margin = torch.addcmul(norm.square(), total, total, value=-share)  # [N, C] below 0: too few digits
    return RowSums(positions, total, norm, _precise_rows(x, margin < 0) if margin.amin().item() < 0 else None)


def row_sums_by_welford(x: Tensor) -> RowSums:
    """The same by one stable kernel, for accelerators. All rows are precise ones."""
    variance, mean = torch.var_mean(x.flatten(2), dim=2, correction=0)  # [N, C] each
    mean, variance, positions = mean.cpu().double(), variance.cpu().double(), x.shape[2:].numel()
    image, channel = torch.ones_like(mean, dtype=torch.bool).nonzero(as_tuple=True)
    return RowSums(positions, mean, mean, PreciseRows(image, channel, mean.flatten(), variance.flatten() * positions))


def add_rows(one: RowSums, other: RowSums) -> RowSums:
    """The sums over the positions of both tensors, which have the same images and channels."""
    a, b = to_image_sums([one]), to_image_sums([other])
    return RowSums(one.positions + other.positions, a.total + b.total, (a.squares + b.squares).sqrt_())


def to_image_sums(parts: Sequence[RowSums]) -> ImageSums:
    """All parts side by side in float64."""
    sizes = [part.total.shape[1] for part in parts]
    positions = torch.tensor([part.positions for part in parts], dtype=torch.float64)
    total = torch.cat([part.total.cpu() for part in parts], 1).double()  # [N, C]
    squares = torch.cat([part.norm.cpu() for part in parts], 1).double().square_()  # [N, C]
    start = 0
    for size, part in zip(sizes, parts, strict=True):
        if part.precise is not None:
            rows = part.precise
            where = (rows.image, start + rows.channel)
            total[where] = rows.mean * part.positions
            squares[where] = rows.m2 + rows.mean.square() * part.positions
        start += size
    return ImageSums(positions.repeat_interleave(torch.tensor(sizes)), total, squares)


def image_sums(x: Tensor) -> ImageSums:
    """Sum and sum of squares of each channel of each image of x [N, C, ...], in float64."""
    return to_image_sums([row_sums(x)])


def _totals_and_norms(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and 2-norm per image and channel, [N, C] each: chunk by chunk of whole rows, which stay in the cache."""
    images, channels = x.shape[:2]
    last = x.stride(1) < x.stride(-1) and channels > 1  # channels-last memory, where torch's norm is slow
    pieces, size = 1, CHUNK // 4
    if last:
        rows = x.movedim(1, -1).reshape(images, -1, channels)  # [N, P, C]
    else:
        # torch's norm adds numbers one after the other, and with 100,000 float32 numbers it loses a digit. So a long
        # row is summed in equal pieces.
        positions, size = x.shape[2:].numel(), CHUNK
        pieces = next((q for q in range(1, 65) if positions % q == 0 and positions // q <= LONG), 1)
        rows = x.reshape(images * channels * pieces, -1)  # [N C pieces, P / pieces]
    totals, norms = [], []
    for chunk in reversed(torch.split(rows, max(1, size // rows[0].numel()))):  # the last ones may be in the cache
        totals.append(chunk.sum(1))
        norms.append(chunk.square().sum(1).sqrt_() if last else torch.linalg.vector_norm(chunk, dim=1))
    total, norm = torch.cat(totals[::-1]), torch.cat(norms[::-1])
    if pieces > 1:
        total = total.view(-1, pieces).sum(1)
        norm = torch.linalg.vector_norm(norm.view(-1, pieces), dim=1)
    return total.view(images, channels), norm.view(images, channels)


def _precise_rows(x: Tensor, doubtful: Tensor) -> PreciseRows:
    """The doubtful rows, computed by two passes in float64."""
    image, channel = doubtful.nonzero(as_tuple=True)  # [R] each
    step = max(1, CHUNK // x[0, 0].numel())
    means, m2s = [], []
    for i, c in zip(torch.split(image, step), torch.split(channel, step), strict=True):
        row = x[i, c].flatten(1).double()  # [r, P]
        centre = row.mean(1)
        means.append(centre)
        m2s.append((row - centre[:, None]).square().sum(1))
    return PreciseRows(image, channel, torch.cat(means), torch.cat(m2s))
