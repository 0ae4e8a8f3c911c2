"""Metrics of the weights alone, and random scores: they need no images."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from prunus.scoring.evidence import Filters, UnitWidth
from prunus.scoring.metrics import Metric


def l1(filters: Filters) -> Tensor:
    """Sum of the absolute weights of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.abs().sum(1)


def l2(filters: Filters) -> Tensor:
    """Euclidean norm of a channel's filter; of the readers' slices for a stream."""
    return filters.weights.square().sum(1).sqrt()


def fpgm(filters: Filters) -> Tensor:
    """Sum of the Euclidean distances from a channel's filter to all other filters of the unit.

    Filters with the smallest sums are nearest to the geometric median, so the other filters can replace them.
    """
    return torch.cdist(filters.weights, filters.weights).sum(1)  # [n, n] -> [n]


def bn_scale(filters: Filters) -> Tensor:
    """|gamma| of the batch norm between the channel's writer and its readers; the largest if there are several.

    If a channel passes no batch norm (a stream, a network without batch norm), the whole unit is scored by the L2 norm
    of its filters, or of the readers' slices.
    """
    return l2(filters) if filters.scales is None else filters.scales


def random(unit: UnitWidth, seed: int = 0) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the seed and the unit's name only."""
    digest = hashlib.sha256(f"{seed}/{unit.unit}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.rand(unit.width, dtype=torch.float64, generator=generator)


L1 = Metric(name="l1", help="L1 norm of the filters (Li et al. 2017)", needs="filters", score=l1)
L2 = Metric(name="l2", help="L2 norm of the filters", needs="filters", score=l2)
FPGM = Metric(
    name="fpgm", help="Distance from the geometric median of the filters (He et al. 2019)", needs="filters", score=fpgm
)
BN_SCALE = Metric(
    name="bn_scale",
    help="Scale of the batch norm after the filter (network slimming, Liu et al. 2017)",
    needs="filters",
    score=bn_scale,
)
RANDOM = Metric(name="random", help="Random scores, a baseline", needs="nothing", score=random)
