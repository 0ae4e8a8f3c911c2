"""Metrics of whole feature maps: di and mmd separate classes by them, hrank and chip look at their ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from prunus.errors import ScoreError
from prunus.scoring.evidence import Maps
from prunus.scoring.metrics import metric

BLOCKS = 4  # number of strips of a symmetric product, each computed up to the diagonal: 5/8 of the work


@metric(
    "Discriminant information (Kung, Hou and Liu 2019)", needs="maps", saturates=True, cites=("kung2019methodical",)
)
def di(maps: Maps, rho: float = 1e-4) -> Tensor:
    """DI = tr([S + rho I]^-1 S_B), Eqn. 11, with the scatter S (Eqn. 9) and that of class means S_B (Eqn. 10).

    With d pixels and N images, d <= N: Cholesky of the d x d matrix S + rho I. Otherwise Cholesky of the N x N Gram
    matrix K of the centred maps, as tr(P K [K + rho I]^-1) = C - rho tr(P [K + rho I]^-1) with the projection P onto
    class means. Both in float64, a few channels at a time.

    With d >= N the maps of any channel separate the classes of the sample perfectly: DI is C - 1 for all channels but
    for rho, and says nothing. `score` warns of it.
    """
    images, channels, pixels = maps.maps.shape
    each = 8 * (2 * images * pixels + 2 * min(images, pixels) ** 2)  # bytes for one channel
    step = max(1, min(channels, maps.memory // each))
    member = F.one_hot(maps.labels).double().T
    member = member / member.sum(1, keepdim=True).sqrt()  # [K, N]: 1 / sqrt(N_c) for images of class c, P = M^T M
    parts = []
    for some in torch.split(maps.maps, step, dim=1):
        x = some.transpose(0, 1).double()  # [n, N, d]
        x = x - x.mean(1, keepdim=True)
        if pixels <= images:  # sum_c N_c g_c^T [S + rho I]^-1 g_c with the centred class means g_c
            parts.append(_solved(_lower_product(x.transpose(1, 2)), member @ x, rho))
        else:
            within = _solved(_lower_product(x), member.expand(len(x), -1, -1), rho)
            parts.append(len(member) - rho * within)
    return torch.cat(parts)


def _lower_product(a: Tensor) -> Tensor:
    """The lower triangle of a a^T for a [n, rows, columns]; the upper part is never read."""
    rows = a.shape[1]
    product = a.new_zeros(len(a), rows, rows)
    width = -(-rows // BLOCKS)
    for start in range(0, rows, width):
        stop = min(rows, start + width)
        torch.bmm(a[:, start:stop], a[:, :stop].transpose(1, 2), out=product[:, start:stop, :stop])
    return product


def _solved(matrix: Tensor, rows: Tensor, rho: float) -> Tensor:
    """tr([matrix + rho I]^-1 rows^T rows) for [n, d, d], which is overwritten, and [n, K, d]. -> [n]"""
    matrix.diagonal(dim1=-2, dim2=-1).add_(rho)
    factor: Tensor = torch.linalg.cholesky(matrix)
    half: Tensor = torch.linalg.solve_triangular(factor, rows.transpose(1, 2), upper=False)  # [n, d, K]
    return half.square().sum((1, 2))


@metric("Maximum mean discrepancy (Gretton et al. 2012)", needs="maps", cites=("gretton2012kernel",))
def mmd(maps: Maps, sigma: float | Literal["median"] = 1.0) -> Tensor:
    """MMD = mean over classes of MMD_two(F^c, F^-c), Eqns. 12 to 14, kernel exp(-|x - y|^2 / (2 sigma^2)).

    One matrix product gives all pairs of images; then sums over blocks of classes, a few channels at a time.
    sigma="median" is the median distance between two different images, for each channel (1 if that is 0).
    """
    if sigma != "median" and not (isinstance(sigma, int | float) and sigma > 0):
        raise ScoreError(f'mmd: sigma must be a positive number or "median", got {sigma!r}')
    images, channels, pixels = maps.maps.shape
    each = 8 * (2 * images * pixels + 3 * images**2)  # bytes for one channel
    step = max(1, min(channels, maps.memory // each))
    member = F.one_hot(maps.labels).double().T  # [K, N]
    counts = member.sum(1)
    rest = counts.sum() - counts  # [K]
    parts = []
    for some in torch.split(maps.maps, step, dim=1):
        squares = _squared_distances(some)  # [n, N, N]
        scale = _median_square(squares) if sigma == "median" else float(sigma) ** 2  # [n, 1, 1] or a number
        kernel = squares.mul_(-0.5 / scale).exp_()
        blocks = member @ kernel @ member.T  # [n, K, K] sums over pairs of classes
        own = blocks.diagonal(dim1=-2, dim2=-1)  # [n, K]
        row = blocks.sum(2)  # [n, K] a class against everything
        within_rest = row.sum(1, keepdim=True) - 2 * row + own
        two = own / counts.square() + within_rest / rest.square() - 2 * (row - own) / (counts * rest)
        parts.append(two.mean(1))
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
    rows, columns = torch.triu_indices(squares.shape[1], squares.shape[1], 1)
    low, high = (len(rows) + 1) // 2, len(rows) // 2 + 1  # the middle value, or the two in the middle
    medians = []
    for channel in squares:
        distances = channel[rows, columns].sqrt()
        medians.append((distances.kthvalue(low).values + distances.kthvalue(high).values) / 2)
    median = torch.stack(medians)  # [n]
    return torch.where(median > 0, median, 1.0).square()[:, None, None]


@metric(
    "Average rank of the feature maps (HRank, Lin et al. 2020)",
    needs="maps",
    needs_classes=False,
    cites=("lin2020hrank",),
)
def hrank(maps: Maps, images: float = 500) -> Tensor:
    """Mean over images of the rank of the channel's map [height, width], Eqn. 7 of Lin et al. 2020.

    A singular value counts if it is above max(height, width) x epsilon x the largest one. The ranks change little
    from image to image, so at most `images` images are used, as in the publication.
    """
    some = _every_few(maps, images).float()  # [N, n, d]; in float64 rounding of the network would count as rank
    ranks: Tensor = torch.linalg.matrix_rank(some.view(*some.shape[:2], maps.height, -1))
    return ranks.double().mean(0)


@metric(
    "Channel independence: nuclear norm that is lost with the channel's map (CHIP, Sui et al. 2021)",
    needs="maps",
    needs_classes=False,
    cites=("sui2021chip",),
)
def chip(maps: Maps, images: float = 128) -> Tensor:
    """Mean over images of |A|_* - |A without row i|_*, with the unit's maps as the rows of A [n, d]; Sui et al. Eqn. 4.

    A singular value of A is the square root of an eigenvalue of A A' (or A' A, whichever is smaller). This costs n
    eigenvalue problems per image, so at most `images` images are used.
    """
    some = _every_few(maps, images)
    _, n, d = some.shape
    others = ~torch.eye(n, dtype=torch.bool)
    total = torch.zeros((), dtype=torch.float64)
    for image in some:
        rows = image.double()  # [n, d]
        products = rows @ rows.T if n <= d else rows.T @ rows
        if n > d:  # one after another: n matrices of d x d may be large
            left = torch.stack([_nuclear_norm(products - torch.outer(row, row)) for row in rows])
        else:
            without = products.expand(n, n, n)[others[:, :, None] & others[:, None, :]].reshape(n, n - 1, n - 1)
            left = _nuclear_norm(without)
        total = total + (_nuclear_norm(products) - left)
    return total / len(some)


def _nuclear_norm(products: Tensor) -> Tensor:
    """Sum of the singular values of A from A A' [..., k, k]."""
    values: Tensor = torch.linalg.eigvalsh(products)
    return values.clamp(min=0).sqrt().sum(-1)


def _every_few(maps: Maps, images: float) -> Tensor:
    """At most `images` of the maps, spread evenly over the sample: [N, n, d]."""
    if not images >= 1:
        raise ScoreError(f"images must be at least 1, got {images!r}")
    count = min(len(maps.maps), int(images))
    return maps.maps[torch.linspace(0, len(maps.maps) - 1, count).round().long()]
