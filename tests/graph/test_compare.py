"""How far two outputs are apart, and differences that hide: behind offsets, beside larger numbers, deep inside."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.graph.compare import flattened, largest_difference, tensor_distance
from tests.graph.checks import unchanged
from tests.graph.odd_nets import Plain


class Pair(NamedTuple):
    one: Tensor
    other: Tensor


@dataclasses.dataclass
class Record:
    logits: Tensor
    names: list[str]
    extra: Any = None


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: (1, [t, None]),
        lambda t: Pair(torch.ones(2), t),
        lambda t: OrderedDict(a=torch.ones(1), b={"c": t}),
        lambda t: Record(torch.zeros(2), ["x"], t),
        lambda t: Box([Box(t)]),
        lambda t: t.to_sparse(),
        lambda t: torch.complex(t, t),
    ],
)
def test_differences_are_found_in_any_structure(wrap: Any) -> None:
    values = torch.tensor([1.0, -4.0, 2.0])
    other = values + torch.tensor([0.0, 0.0, 0.5])
    assert largest_difference(wrap(values), wrap(values.clone())) == 0.0
    apart = largest_difference(wrap(other), wrap(values))
    assert apart == pytest.approx(0.5 / (4.0 - 1 / 3))  # relative to the largest distance from the mean, -1 / 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), (torch.ones(2),)),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1.0, math.nan]), torch.tensor([math.nan, 1.0])),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, 2.0])),
        (torch.ones(1), torch.zeros(1)),
        ("one", "other"),
        (None, torch.ones(1)),
        (True, 1),
    ],
)
def test_what_cannot_be_measured_is_different(one: Any, other: Any) -> None:
    assert largest_difference(one, other) == math.inf


def test_not_a_number_and_infinity_are_equal_to_themselves() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 2.0])
    assert largest_difference(values, values.clone()) == 0.0
    apart = largest_difference(values + torch.tensor([0, 0, 0, 1.0]), values)
    assert apart == pytest.approx(1 / 1.5)  # what is not finite counts as 0, so that the mean is 0.5
    assert largest_difference(0.5, 0.4) == pytest.approx(0.25)


PICTURE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


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
        assert set(pr.trace(model, PICTURE).units) == {"a:out"}


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
    assert largest_difference(circle, circle) == 0.0
