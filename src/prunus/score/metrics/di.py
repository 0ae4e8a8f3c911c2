"""Discriminant information (Kung, Hou and Liu 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from prunus.score.evidence import Maps, Scatter
from prunus.score.metrics import Metric

BLOCKS = 4  # number of strips of a symmetric product, each computed up to the diagonal: 5/8 of the work


def di(maps: Maps, rho: float = 1e-4) -> Tensor:
    """DI = tr([S + rho I]^-1 S_B), Eqn. 11, with the scatter S (Eqn. 9) and that of class means S_B (Eqn. 10).

    With d pixels and N images, d <= N: Cholesky of the d x d matrix S + rho I. Otherwise Cholesky of the N x N Gram
    matrix K of the centred maps, as tr(P K [K + rho I]^-1) = C - rho tr(P [K + rho I]^-1) with the projection P onto
    class means. Both in float64, a few channels at a time.

    With d >= N the maps of any channel separate the classes of the sample perfectly: DI is C - 1 for all channels but
    for rho, and says nothing. `score` warns of it.
    """
    if maps.scatter is not None:
        return _by_scatter(maps.scatter, rho)
    assert maps.maps is not None
    images, channels, pixels = maps.maps.shape
    each = 8 * (2 * images * pixels + 2 * min(images, pixels) ** 2)  # bytes for one channel
    step = max(1, min(channels, maps.memory // each))
    member = _membership(maps.labels)  # [K, N]
    form = _primal if pixels <= images else _dual
    parts = [form(_centred(maps.maps[:, i : i + step]), member, rho) for i in range(0, channels, step)]
    return torch.cat(parts)


def _membership(labels: Tensor) -> Tensor:
    """[K, N]: 1 / sqrt(N_c) where image i is of class c, so that P = M^T M."""
    member = torch.nn.functional.one_hot(labels).double().T
    return member / member.sum(1, keepdim=True).sqrt()


def _centred(maps: Tensor) -> Tensor:
    maps = maps.transpose(0, 1).double()  # [n, N, d]
    return maps - maps.mean(1, keepdim=True)


def _primal(maps: Tensor, member: Tensor, rho: float) -> Tensor:
    """sum_c N_c g_c^T [S + rho I]^-1 g_c with the centred class means g_c. -> [n]"""
    return _solved(_lower_product(maps.transpose(1, 2)), member @ maps, rho)


def _by_scatter(scatter: Scatter, rho: float) -> Tensor:
    images = scatter.counts.sum()
    mean = scatter.sums.sum(0) / images  # [n, d]
    products = scatter.products - images * mean[:, :, None] * mean[:, None, :]  # [n, d, d]
    centred = scatter.sums - scatter.counts[:, None, None] * mean  # [K, n, d]
    between = (centred / scatter.counts.clamp(min=1).sqrt()[:, None, None]).transpose(0, 1)  # [n, K, d]
    return _solved(products, between, rho)


def _solved(scatter: Tensor, between: Tensor, rho: float) -> Tensor:
    """tr([scatter + rho I]^-1 between^T between) for [n, d, d] and [n, K, d]. -> [n]"""
    factor = _cholesky(scatter, rho)
    half: Tensor = torch.linalg.solve_triangular(factor, between.transpose(1, 2), upper=False)  # [n, d, K]
    return half.square().sum((1, 2))


def _dual(maps: Tensor, member: Tensor, rho: float) -> Tensor:
    """C - rho tr(M [K + rho I]^-1 M^T) with the Gram matrix K of the centred maps. -> [n]"""
    factor = _cholesky(_lower_product(maps), rho)
    ones = member.T.expand(len(maps), -1, -1)  # [n, N, K]
    half: Tensor = torch.linalg.solve_triangular(factor, ones, upper=False)
    return len(member) - rho * half.square().sum((1, 2))


def _lower_product(a: Tensor) -> Tensor:
    """The lower triangle of a a^T for a [n, rows, columns]; the upper part is never read."""
    rows = a.shape[1]
    product = a.new_zeros(len(a), rows, rows)
    width = -(-rows // BLOCKS)
    for start in range(0, rows, width):
        stop = min(rows, start + width)
        torch.bmm(a[:, start:stop], a[:, :stop].transpose(1, 2), out=product[:, start:stop, :stop])
    return product


def _cholesky(matrix: Tensor, rho: float) -> Tensor:
    matrix.diagonal(dim1=-2, dim2=-1).add_(rho)
    factor: Tensor = torch.linalg.cholesky(matrix)
    return factor


ENTRY = Metric(
    name="di",
    help="Discriminant information (Kung, Hou and Liu 2019)",
    needs="maps",
    score=di,
    takes_scatter=True,
    saturates=True,
)
