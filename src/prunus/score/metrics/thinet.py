"""Greedy choice by the error of the next layer's output (ThiNet, Luo et al. 2017)."""

import torch
from torch import Tensor

from prunus.score.evidence import Contributions
from prunus.score.metrics import Metric


def thinet(contributions: Contributions) -> Tensor:
    """Remove channels one by one, each time the one that keeps the error of the readers' outputs smallest.

    The error of removing the set T is the mean over positions of |sum over T of the channel's contribution|^2
    (Luo et al. 2017, Eqn. 6 and Algorithm 1), here with all filters and 64 positions of each image. A channel's score
    is the step at which it is removed. The publication's second stage, a least-squares scale for each remaining
    channel, is part of what the repair `solve` does.
    """
    products = contributions.products
    n = len(products)
    added = products.diagonal().clone()  # error that each channel would add
    steps = torch.zeros(n, dtype=torch.float64)
    for step in range(n):
        weakest = int(added.argmin())
        steps[weakest] = step
        added += 2 * products[weakest]
        added[weakest] = torch.inf
    return steps


ENTRY = Metric(
    name="thinet",
    help="Greedy choice by the error of the next layer's output (ThiNet, Luo et al. 2017)",
    needs="contributions",
    score=thinet,
)
