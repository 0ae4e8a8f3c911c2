"""Mean and sum of squared deviations of every channel of every image: the one thing that touches whole activations.

Measured on the CPU (`benchmarks/scoring.py` prints the ratios): torch's var_mean reads 0.7 GB/s, its plain sum and
2-norm 28 GB/s each. So the pass takes sum and norm, and repairs in float64 the few rows where their difference
would cancel. On accelerators var_mean is one fast kernel, and is what is used there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.scoring.moments import ImageMoments

# A row is repaired when its squared deviations are less than this share of its sum of squares: there the difference
# of the two keeps fewer than about 5 (float32) or 8 (float64) digits.
DOUBTFUL = {torch.float32: 1e-2, torch.float64: 1e-8}
CHUNK = 1 << 18  # elements squared or repaired at a time: small enough to stay in a core's cache


def image_moments(x: Tensor) -> ImageMoments:
    """Moments of x [N, C, ...] over everything behind the channel axis, in float64."""
    if x.dtype not in DOUBTFUL:
        x = x.float()
    positions = x[0, 0].numel() if len(x) else 1
    if positions == 1:
        mean = x.reshape(x.shape[:2]).double()
        return ImageMoments(1, mean, torch.zeros_like(mean))
    if x.device.type != "cpu":
        return _by_welford(x, positions)
    total, squares = _sums(x)  # [N, C] each
    mean = total / positions
    m2 = squares - total * mean
    doubtful = ~(m2 > DOUBTFUL[x.dtype] * squares) & (squares != 0)  # also where float32 overflowed
    if bool(doubtful.any()):
        _repair(x, doubtful, mean, m2)
    return ImageMoments(positions, mean, m2)


def _by_welford(x: Tensor, positions: int) -> ImageMoments:
    variance, mean = torch.var_mean(x.flatten(2), dim=2, correction=0)  # [N, C] each
    return ImageMoments(positions, mean.double(), variance.double() * positions)


def _sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares per image and channel, [N, C] float64 each."""
    axes = list(range(2, x.ndim))
    if _channels_are_innermost(x):
        return x.sum(axes).double(), _squares_in_chunks(x)
    return x.sum(axes).double(), torch.linalg.vector_norm(x, dim=axes).double().square()


def _channels_are_innermost(x: Tensor) -> bool:
    return x.stride(1) < x.stride(-1) and x.shape[1] > 1


def _squares_in_chunks(x: Tensor) -> Tensor:
    """Sum of squares for channels-last memory, where torch's norm is slow: squares of a few images at a time."""
    step = max(1, CHUNK // max(1, x[0].numel()))
    parts = [chunk.square().sum(list(range(2, x.ndim))) for chunk in x.split(step)]
    return torch.cat(parts).double()


def _repair(x: Tensor, doubtful: Tensor, mean: Tensor, m2: Tensor) -> None:
    """Overwrite the doubtful rows of mean and m2 by two passes in float64."""
    image, channel = doubtful.nonzero(as_tuple=True)  # [R] each
    step = max(1, CHUNK // x[0, 0].numel())
    for i, c in zip(image.split(step), channel.split(step), strict=True):
        row = x[i, c].flatten(1).double()  # [r, P]
        centre = row.mean(1)
        mean[i, c] = centre
        m2[i, c] = (row - centre[:, None]).square().sum(1)
