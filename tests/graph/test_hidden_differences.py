"""Differences that hide: behind offsets, beside larger numbers, deep in an output, behind weights that are zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.graph.compare import distance, flattened, tensor_distance
from prunus.graph.trials import constants_varied
from tests.graph.test_state import unchanged
from tests.graph.wrong_nets import Plain

IMAGE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Divided(Plain):
    """Divides by a width that the rules cannot see."""

    def divided(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu()) / self.b.out_channels


class Offset(Divided):
    def forward(self, x: Tensor) -> Any:
        return self.divided(x) + 1e3


class BesideLargeNumbers(Divided):
    def forward(self, x: Tensor) -> Any:
        y = self.divided(x)
        return torch.cat([y * self.b.out_channels * 1e7, y], 1)


class Deep(Divided):
    def forward(self, x: Tensor) -> Any:
        y: Any = self.divided(x)
        for _ in range(30):
            y = [y]
        return y


class Array(Divided):
    def forward(self, x: Tensor) -> Any:
        return self.divided(x).detach().numpy()


class BehindZeros(Divided):
    """A branch whose scale starts at zero, or nearly so."""

    def __init__(self, scale: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((8, 1, 1), scale))

    def forward(self, x: Tensor) -> Any:
        return x.mean((1, 2, 3), keepdim=True) + self.scale * self.divided(x)


@pytest.mark.parametrize("build", [Offset, BesideLargeNumbers, Deep, Array, BehindZeros, lambda: BehindZeros(1e-6)])
def test_units_that_would_change_the_output_are_frozen(build: Any) -> None:
    torch.manual_seed(0)
    model = build().eval()
    with unchanged(model):
        assert set(sc.trace(model, IMAGE).units) == {"a:out"}


def test_distances_are_relative_to_what_varies() -> None:
    want = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    got = want.clone()
    got[1, 2, 3, 4] += 0.01
    spread = (want - want.mean()).abs().max().item()
    assert tensor_distance(got + 1e6, want + 1e6) >= 0.01 / spread * 0.999
    scales = torch.tensor([1e6, 1e6, 1.0]).view(1, 3, 1, 1)
    part = want[:, 2]
    alone = 0.01 / (part - part.mean()).abs().max().item()
    assert tensor_distance(got * scales, want * scales) == pytest.approx(alone, rel=0.5)
    assert tensor_distance(torch.full((4,), 2.0), torch.full((4,), 1.0)) == 1.0
    assert tensor_distance(want, want) == 0.0


def test_outputs_are_followed_to_any_depth_but_not_in_circles() -> None:
    nested: Any = torch.ones(1)
    for _ in range(50):
        nested = {"inside": [nested]}
    assert any(isinstance(value, Tensor) for value in flattened(nested))
    circle: list[Any] = [1.0]
    circle.append(circle)
    assert distance(flattened(circle), flattened(circle)) == 0.0


def test_only_constants_vary_and_all_is_restored() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    nn.init.zeros_(model[0].bias)
    weight = model[0].weight.clone()
    with unchanged(model), constants_varied(model):
        assert torch.equal(model[0].weight, weight)
        for tensor in (model[0].bias, model[1].running_mean, model[1].bias):
            assert len(tensor.unique()) == 4 and tensor.min() >= 0.1 and tensor.max() <= 0.3
        for tensor in (model[1].weight, model[1].running_var):
            assert len(tensor.unique()) == 4 and tensor.min() >= 0.7 and tensor.max() <= 1.3
