"""Networks with one input, two positional inputs and two inputs by keyword."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """factor * x + 1."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x + 1


class Difference(nn.Module):
    """left - 2 * right."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left - 2 * right
