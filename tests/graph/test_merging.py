"""Blocks that merge their branches for inference still do so after pruning, or it is said."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.graph.units import Streams
from tests.graph.checks import IMAGE


class Branches(nn.Module):
    """Two convolutions side by side, as in RepVGG, which become one. It builds that one from numbers."""

    def __init__(self, inputs: int, outputs: int, remembered: str = "out_chs") -> None:
        super().__init__()
        self.wide, self.point = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(inputs, outputs, 1)
        self.in_chs, self.in_dim, self.remembered = inputs, inputs, remembered
        setattr(self, remembered, outputs)
        self.merged: nn.Conv2d | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self.merged(x) if self.merged is not None else self.wide(x) + self.point(x)

    def reparameterize(self) -> None:
        assert self.wide.bias is not None and self.point.bias is not None
        self.merged = nn.Conv2d(self.in_chs, getattr(self, self.remembered), 3, padding=1).to(self.wide.weight)
        with torch.no_grad():
            self.merged.weight.copy_(self.wide.weight + nn.functional.pad(self.point.weight, (1, 1, 1, 1)))
            self.merged.bias.copy_(self.wide.bias + self.point.bias)  # type: ignore[union-attr]


def small_network(block: nn.Module, streams: Streams = "coupled") -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), block, nn.ReLU(), nn.Conv2d(8, 4, 1)).double().eval()
    graph = pr.trace(model, IMAGE, streams=streams)
    keep = {name: list(range(unit.width // 2)) for name, unit in graph.units.items()}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    assert isinstance(small, nn.Sequential)
    return small


@pytest.mark.parametrize("remembered", ["out_chs", "dim"])
def test_the_numbers_of_a_block_follow(remembered: str) -> None:
    small = small_network(Branches(6, 8, remembered))
    block = small[2]
    assert isinstance(block, Branches) and (block.in_chs, block.in_dim) == (3, 3)
    before = small(IMAGE)
    block.reparameterize()
    assert block.merged is not None and block.merged.weight.shape == (4, 3, 3, 3)
    assert torch.allclose(small(IMAGE), before, atol=1e-12)


def test_a_block_that_cannot_follow_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The number is hidden in a list."""

    class Hidden(Branches):
        def __init__(self) -> None:
            super().__init__(6, 8)
            self.widths = [6, 8]

        def reparameterize(self) -> None:
            self.in_chs, self.out_chs = self.widths
            super().reparameterize()

    with caplog.at_level(logging.WARNING, "prunus"):
        block = small_network(Hidden())[2]
    assert isinstance(block, Hidden) and (block.in_chs, block.out_chs) == (6, 8)
    assert "reparameterize() no longer works after this cut" in caplog.text
