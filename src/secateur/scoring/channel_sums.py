"""Sums of every channel of every image: the only step of the pass that reads whole activations.

On the CPU, torch's var_mean reads 0.7 GB/s; its plain sum and 2-norm read up to 28 GB/s each (one core, float32). So
the pass takes sum and norm, and recomputes in float64 the few rows where their difference would cancel. A tensor is
read in chunks that fit into a core's cache, so that the norm finds the data that the sum has just loaded. It is read
from its end to its start, because its end was written last, and its start is what the layer reads next.
On accelerators var_mean is one fast kernel, and waiting for recomputed rows would stall the queue, so it is used there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.scoring.moments import ImageSums

# A float32 row is recomputed if its squared deviations are less than this fraction of its sum of squares: there the
# difference of the two has fewer than about 5 correct digits.
DOUBTFUL = 1e-2
CHUNK = 1 << 19  # elements per chunk: 2 MB of float32
LONG = 4096  # most elements of a row, if it can be divided


@dataclass(frozen=True, eq=False)
class Recomputed:
    """Rows that were computed in float64: their images and channels [R], their mean and m2 [R]."""

    image: Tensor
    channel: Tensor
    mean: Tensor
    m2: Tensor


@dataclass(frozen=True, eq=False)
class RowSums:
    """What is kept of one tensor [N, C, ...] until the batch is done."""

    positions: int
    total: Tensor  # [N, C] sum over positions
    norm: Tensor  # [N, C] square root of the sum of squares
    recomputed: Recomputed | None = None


def reduce(x: Tensor) -> RowSums:
    """Sums of x [N, C, ...] over all positions of a channel."""
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    positions = x.shape[2:].numel()
    if positions == 1:
        total = x.reshape(x.shape[:2]).clone()  # a view would change with the network's in-place operations
        return RowSums(1, total, total.abs())
    if x.device.type != "cpu":
        return _by_welford(x, positions)
    total, norm = _sums(x)  # [N, C] each
    if x.dtype == torch.float64:
        return RowSums(positions, total, norm)
    share = 1 / (positions * (1 - DOUBTFUL))
    margin = torch.addcmul(norm.square(), total, total, value=-share)  # [N, C] below 0: too few digits
    return RowSums(positions, total, norm, _recompute(x, margin < 0) if margin.amin().item() < 0 else None)


def together(one: RowSums, other: RowSums) -> RowSums:
    """The sums over the positions of both tensors, which have the same images and channels."""
    a, b = to_sums([one]), to_sums([other])
    return RowSums(one.positions + other.positions, a.total + b.total, (a.squares + b.squares).sqrt_())


def to_sums(parts: Sequence[RowSums]) -> ImageSums:
    """All parts side by side in float64."""
    sizes = [part.total.shape[1] for part in parts]
    positions = torch.tensor([part.positions for part in parts], dtype=torch.float64)
    total = torch.cat([part.total.cpu() for part in parts], 1).double()  # [N, C]
    squares = torch.cat([part.norm.cpu() for part in parts], 1).double().square_()  # [N, C]
    start = 0
    for size, part in zip(sizes, parts, strict=True):
        if part.recomputed is not None:
            fix = part.recomputed
            where = (fix.image, start + fix.channel)
            total[where] = fix.mean * part.positions
            squares[where] = fix.m2 + fix.mean.square() * part.positions
        start += size
    return ImageSums(positions.repeat_interleave(torch.tensor(sizes)), total, squares)


def image_sums(x: Tensor) -> ImageSums:
    """Sum and sum of squares of each channel of each image of x [N, C, ...], in float64."""
    return to_sums([reduce(x)])


def _by_welford(x: Tensor, positions: int) -> RowSums:
    """One stable kernel. All of its rows are given as recomputed ones."""
    variance, mean = torch.var_mean(x.flatten(2), dim=2, correction=0)  # [N, C] each
    mean, variance = mean.cpu().double(), variance.cpu().double()
    image, channel = torch.ones_like(mean, dtype=torch.bool).nonzero(as_tuple=True)
    return RowSums(positions, mean, mean, Recomputed(image, channel, mean.flatten(), variance.flatten() * positions))


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and 2-norm per image and channel, [N, C] each."""
    images, channels = x.shape[:2]
    if x.stride(1) < x.stride(-1) and channels > 1:  # channels-last memory, where torch's norm is slow
        rows = x.movedim(1, -1).reshape(images, -1, channels)  # [N, P, C]
        return _in_chunks(rows, CHUNK // 4, lambda c: (c.sum(1), c.square().sum(1).sqrt_()))
    pieces = _pieces(x.shape[2:].numel())
    rows = x.reshape(images * channels * pieces, -1)  # [N C pieces, P / pieces]
    total, norm = _in_chunks(rows, CHUNK, lambda c: (c.sum(1), torch.linalg.vector_norm(c, dim=1)))
    if pieces > 1:
        total = total.view(-1, pieces).sum(1)
        norm = torch.linalg.vector_norm(norm.view(-1, pieces), dim=1)
    return total.view(images, channels), norm.view(images, channels)


def _pieces(positions: int) -> int:
    """Number of equal pieces in which a long row is summed.

    torch's norm adds numbers one after the other, and with 100,000 float32 numbers it loses a digit.
    """
    return next((q for q in range(1, 65) if positions % q == 0 and positions // q <= LONG), 1)


def _in_chunks(rows: Tensor, size: int, sums: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """`sums` of chunks of whole rows with about `size` elements, from the last chunk to the first."""
    step = max(1, size // rows[0].numel())
    if step >= len(rows):
        return sums(rows)
    parts = [sums(chunk) for chunk in reversed(torch.split(rows, step))]
    return torch.cat([total for total, _ in reversed(parts)]), torch.cat([norm for _, norm in reversed(parts)])


def _recompute(x: Tensor, doubtful: Tensor) -> Recomputed:
    """The doubtful rows, computed by two passes in float64."""
    image, channel = doubtful.nonzero(as_tuple=True)  # [R] each
    step = max(1, CHUNK // x[0, 0].numel())
    means, m2s = [], []
    for i, c in zip(torch.split(image, step), torch.split(channel, step), strict=True):
        row = x[i, c].flatten(1).double()  # [r, P]
        centre = row.mean(1)
        means.append(centre)
        m2s.append((row - centre[:, None]).square().sum(1))
    return Recomputed(image, channel, torch.cat(means), torch.cat(m2s))
