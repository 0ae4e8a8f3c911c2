"""Odd corners: pruned exactly or left alone. And users' own rules."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as sc
from prunus.errors import PlanError
from tests import proof
from tests.graph.corners import CORNERS, Through
from tests.graph.dags import randomised

IMAGE = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("mode", ["select", "coupled"])
@pytest.mark.parametrize("name", CORNERS)
def test_a_corner(name: str, mode: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = CORNERS[name]().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            randomised(module)
    whole = proof.outputs(model, IMAGE)
    graph = sc.trace(model, IMAGE, streams=mode)
    for seed, share in ((0, 0.3), (1, 0.6), (2, 1.0)):
        plan = sc.Plan.of(graph, proof.random_keep(graph, seed, share, share))
        with sc.zeroed(graph, plan):
            zeroed = proof.outputs(model, IMAGE)
        small = sc.prune(graph, plan)
        assert proof.relative_error(proof.outputs(small, IMAGE), zeroed) < 1e-12
        assert all(torch.equal(a, b) for a, b in zip(proof.outputs(model, IMAGE), whole, strict=True))
    sc.save(small, plan, tmp_path)
    assert proof.same_state(sc.load(tmp_path, copy.deepcopy(model)), small)


# ------------------------------------------------------------------------------------------------ own rules


class Squash(nn.Module):
    """Element by element, by means that no rule knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.igamma(x.abs() + 1.0, x.abs() + 0.5)


@torch.fx.wrap
def twist(x: Tensor) -> Tensor:
    return torch.special.i0e(x)


class Twisted(Through):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(twist(self.a(x))).mean((2, 3)))


@pytest.fixture
def rulebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered rules hold for the process; here they end with the test."""
    from prunus.graph.rules import rulebook

    monkeypatch.setattr(rulebook, "_OWN", dict(rulebook._OWN))


@pytest.mark.usefixtures("rulebook")
@pytest.mark.parametrize(
    ("build", "target"), [(lambda: Through(Squash()), Squash), (lambda: Twisted(nn.Identity()), twist)]
)
def test_an_own_rule_frees_what_was_frozen(build: type[nn.Module], target: object) -> None:
    torch.manual_seed(0)
    model = build().double().eval()
    before = sc.trace(model, IMAGE)
    assert "a:out" not in before.units and "a" in before.frozen
    sc.register_rule(target, sc.rules.elementwise)  # type: ignore[arg-type]
    graph = sc.trace(model, IMAGE)
    assert graph.units["a:out"].width == 8
    plan = sc.Plan.of(graph, {"a:out": [1, 4, 6]})
    with sc.zeroed(graph, plan):
        zeroed = proof.outputs(model, IMAGE)
    assert proof.relative_error(proof.outputs(sc.prune(graph, plan), IMAGE), zeroed) < 1e-12


def test_an_unbatched_image() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).double()
    graph = sc.trace(model, IMAGE[0])
    assert graph.macs == 6 * 3 * 9 * 36 + 4 * 6 * 9 * 16
    if "0:out" in graph.units:
        plan = sc.Plan.of(graph, {"0:out": [0, 5]})
        with sc.zeroed(graph, plan):
            zeroed = proof.outputs(model, IMAGE[0])
        assert proof.relative_error(proof.outputs(sc.prune(graph, plan), IMAGE[0]), zeroed) < 1e-12


class Squeezed(Through):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.a(x)).mean((2, 3), keepdim=True).squeeze())


def test_a_bare_squeeze_wants_two_channels() -> None:
    """squeeze() would take the channel axis away with the rest, so a cut to one channel is refused, and says where."""
    torch.manual_seed(0)
    model = Squeezed(nn.Identity()).double().eval()
    graph = sc.trace(model, IMAGE)
    plan = sc.Plan.of(graph, {"b:out": [1, 4]})
    with sc.zeroed(graph, plan):
        zeroed = proof.outputs(model, IMAGE)
    assert proof.relative_error(proof.outputs(sc.prune(graph, plan), IMAGE), zeroed) < 1e-12
    with pytest.raises(PlanError, match=r"squeeze.*keep two"):
        sc.Plan.of(graph, {"b:out": [4]})


def test_a_large_batch_and_another_size_work_too() -> None:
    """A network traced on one shape runs on any other that the original runs on."""
    torch.manual_seed(0)
    model = CORNERS["both"]().double().eval()
    graph = sc.trace(model, IMAGE[:1, :, :4, :4])
    plan = sc.Plan.of(graph, proof.random_keep(graph, 0))
    small = sc.prune(graph, plan)
    for image in (IMAGE, torch.randn(5, 3, 11, 7, dtype=torch.float64)):
        with sc.zeroed(graph, plan):
            zeroed = proof.outputs(model, image)
        assert proof.relative_error(proof.outputs(small, image), zeroed) < 1e-12


def test_no_warnings_of_our_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = sc.trace(CORNERS["both"]().eval(), IMAGE.float())
        sc.prune(graph, sc.Plan.of(graph, proof.random_keep(graph, 0)))
