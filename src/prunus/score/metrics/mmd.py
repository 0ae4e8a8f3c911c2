"""Maximum mean discrepancy (Gretton et al. 2012)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from prunus.errors import ScoreError
from prunus.score.evidence import Maps
from prunus.score.metrics import Metric


def mmd(maps: Maps, sigma: float | Literal["median"] = 1.0) -> Tensor:
    """MMD = mean over classes of MMD_two(F^c, F^-c), Eqns. 12 to 14, kernel exp(-|x - y|^2 / (2 sigma^2)).

    One matrix product gives all pairs of images; then sums over blocks of classes, a few channels at a time.
    sigma="median" is the median distance between two different images, for each channel (1 if that is 0).
    """
    assert maps.maps is not None
    if sigma != "median" and not (isinstance(sigma, int | float) and sigma > 0):
        raise ScoreError(f'mmd: sigma must be a positive number or "median", got {sigma!r}')
    images, channels, pixels = maps.maps.shape
    each = 8 * (2 * images * pixels + 3 * images**2)  # bytes for one channel
    step = max(1, min(channels, maps.memory // each))
    member = torch.nn.functional.one_hot(maps.labels).double().T  # [K, N]
    parts = []
    for i in range(0, channels, step):
        squares = _squared_distances(maps.maps[:, i : i + step])  # [n, N, N]
        scale = _median_square(squares) if sigma == "median" else float(sigma) ** 2  # [n, 1, 1] or a number
        kernel = squares.mul_(-0.5 / scale).exp_()
        parts.append(_discrepancy(member @ kernel @ member.T, member.sum(1)))
    return torch.cat(parts)


def _squared_distances(maps: Tensor) -> Tensor:
    """|x_i - x_j|^2 of maps [N, n, d] in float64, centred first so that little cancels. -> [n, N, N]"""
    maps = maps.transpose(0, 1).double()  # [n, N, d]
    maps = maps - maps.mean(1, keepdim=True)
    norms = maps.square().sum(2)  # [n, N]
    squares = torch.baddbmm(norms[:, :, None] + norms[:, None, :], maps, maps.transpose(1, 2), alpha=-2)
    squares.clamp_(min=0).diagonal(dim1=-2, dim2=-1).zero_()
    return squares


def _median_square(squares: Tensor) -> Tensor:
    """[n, 1, 1] squared median of the distances between different images."""
    upper = torch.triu_indices(squares.shape[1], squares.shape[1], 1)
    medians = torch.stack([_median(channel[upper[0], upper[1]].sqrt()) for channel in squares])  # [n]
    return torch.where(medians > 0, medians, 1.0).square()[:, None, None]


def _median(values: Tensor) -> Tensor:
    """The middle value, or the mean of the two in the middle."""
    low, high = (len(values) + 1) // 2, len(values) // 2 + 1
    return (values.kthvalue(low).values + values.kthvalue(high).values) / 2


def _discrepancy(blocks: Tensor, counts: Tensor) -> Tensor:
    """Mean over classes of MMD_two from the kernel's sums over pairs of classes, blocks [n, K, K]. -> [n]"""
    own = blocks.diagonal(dim1=-2, dim2=-1)  # [n, K]
    row = blocks.sum(2)  # [n, K] class c against everything
    total = row.sum(1, keepdim=True)  # [n, 1]
    rest = counts.sum() - counts  # [K]
    within_rest = total - 2 * row + own
    two = own / counts.square() + within_rest / rest.square() - 2 * (row - own) / (counts * rest)
    return two.mean(1)


ENTRY = Metric(name="mmd", help="Maximum mean discrepancy (Gretton et al. 2012)", needs="maps", score=mmd)
