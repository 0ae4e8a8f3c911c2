"""Layers as people write them: convolution and linear functions on the parameters of a module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.graph.runner import GraphRunner
from tests import proof
from tests.graph.checks import IMAGE, pruned_exactly
from tests.graph.odd_nets import Network, with_forward
from tests.scoring.toys import CLASSES, batches


class OwnConv(nn.Module):
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.tall = inputs, outputs, outputs
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * 0.3)
        self.bias = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, bias=self.bias, padding=1)


class OwnLinear(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Net(nn.Module):
    """a -> norm -> b -> hidden -> fc, of layers of one kind or the other."""

    def __init__(self, conv: Callable[..., nn.Module], linear: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.a, self.norm, self.b = conv(3, 8), nn.BatchNorm2d(8), conv(8, 6)
        self.hidden, self.fc = linear(6, 10), linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.b(F.relu(self.norm(self.a(x)))))
        return self.fc(F.relu(self.hidden(h.mean((2, 3)))))


def own() -> nn.Module:
    torch.manual_seed(0)
    return Net(OwnConv, OwnLinear).double().eval()


def usual() -> nn.Module:
    """The same network of PyTorch's layers."""
    model = Net(lambda i, o: nn.Conv2d(i, o, 3, padding=1), nn.Linear).double().eval()
    model.load_state_dict(own().state_dict())
    return model


KEEP = {"a:out": [1, 2, 6], "b:out": [0, 5], "hidden:out": [0, 4, 5, 9]}


def test_they_are_pruned_like_pytorchs_layers(tmp_path: Path) -> None:
    graph, twin = pr.trace(own(), IMAGE), pr.trace(usual(), IMAGE)
    assert {name: unit.width for name, unit in graph.units.items()} == {"a:out": 8, "b:out": 6, "hidden:out": 10}
    assert list(graph.units) == list(twin.units)
    plan = pr.Plan.of(graph, KEEP)
    small = pr.prune(graph, plan)
    wanted = pr.prune(twin, pr.Plan.of(twin, KEEP))
    assert proof.same_state(small, wanted)
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(wanted, IMAGE)) < 1e-12
    with pr.zeroed(graph, KEEP):
        assert proof.relative_error(proof.outputs(graph.model, IMAGE), proof.outputs(wanted, IMAGE)) < 1e-12
    assert graph.cost(KEEP).macs == twin.cost(KEEP).macs == 64 * 9 * (3 * 3 + 3 * 2) + 2 * 4 + 4 * CLASSES
    assert (small.b.in_channels, small.b.out_channels, small.b.tall) == (3, 2, 6)
    again = pr.trace(small, IMAGE)
    second = pr.Plan.of(again, {"a:out": [0, 2]})
    smaller = pr.prune(again, second)
    pr.save(smaller, plan.then(second), tmp_path / "net")
    assert proof.same_state(pr.load(tmp_path / "net", own()), smaller)


def test_they_are_scored_like_pytorchs_layers() -> None:
    graph, twin = pr.trace(own(), IMAGE), pr.trace(usual(), IMAGE)
    for metric in ("gsd", "l1", "fisher", "taylor", "reader_energy", "di"):
        mine, its = (pr.score(g, batches(), metric) for g in (graph, twin))
        for unit in twin.units:
            np.testing.assert_allclose(mine.values[unit], its.values[unit], rtol=1e-9)


def test_sensitivity_runs_what_depends_on_them() -> None:
    graph, twin = pr.trace(own(), IMAGE), pr.trace(usual(), IMAGE)
    for g in (graph, twin):
        runner = GraphRunner(g.analysis.traced)
        calls = [runner.calls_of({reader.module for reader in unit.readers}) for unit in g.units.values()]
        assert [g.analysis.traced.layer_of(node) for (node,) in calls] == ["b", "hidden", "fc"]


class Foreign(OwnConv):
    """The bias comes from elsewhere."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.shift = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.shift, padding=1)


def tied() -> nn.Module:
    """Two layers share a weight."""
    parts = [OwnConv(8, 8), OwnConv(8, 8)]
    parts[1].weight = parts[0].weight
    return nn.Sequential(*parts)


class Blurred(nn.Module):
    """Fixed filters for each channel, as in blurs, or those of Sobel: of its own, in a buffer."""

    def __init__(self, groups: str, times: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.register_buffer("filters", torch.randn(8 * times, 1, 3, 3))
        self.bias = nn.Parameter(torch.randn(8 * times)) if bias else None
        self.groups, self.count = groups, 8

    def forward(self, x: Tensor) -> Tensor:
        groups = {"input": x.shape[1], "filters": self.filters.size(0), "number": self.count}[self.groups]
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.filters.to(x), self.bias, groups=groups)


class Edges(Blurred):
    """The same filters along both axes, at half the size."""

    def forward(self, x: Tensor) -> Tensor:
        down, right = self.filters, self.filters.transpose(2, 3)
        maps = [F.conv2d(x, each, stride=2, padding=1, groups=x.size(1)) for each in (down, right)]
        return (maps[0] ** 2 + maps[1] ** 2 + 0.1).sqrt()


class Around(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.a, self.middle, self.b, self.c = nn.Conv2d(3, 8, 1), middle, nn.Conv2d(8, 6, 1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.b(F.relu(self.middle(self.a(x))))))


FREE = {"a:out", "middle:out", "b:out"}
STACKED = {"a:out", "middle.0:out", "middle.1:out", "b:out"}


class Standardised(OwnConv):
    """Each filter has mean 0 and variance 1, times a gain: it depends on all of its inputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        return F.conv2d(x, (self.weight - mean) / (variance + 1e-5).sqrt() * self.gain, self.bias, padding=1)


class Kept(OwnConv):
    """It has computed its weights before, and keeps them in a plain attribute."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.kept = torch.randn(outputs, inputs, 3, 3, dtype=torch.float64)


CASES: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "plain": (lambda: OwnConv(8, 8), FREE),
    "without bias": (lambda: OwnConv(8, 8, bias=False), FREE),
    "called twice": (
        lambda: Network(lambda m, x: m.layer(x) * m.layer(x.sin()), layer=OwnConv(8, 8)),
        {"a:out", "middle.layer:out", "b:out"},
    ),
    "one input": (lambda: nn.Sequential(nn.Conv2d(8, 1, 1), OwnConv(1, 8)), {"a:out", "middle.1:out", "b:out"}),
    "groups": (
        lambda: with_forward(OwnConv, lambda self, x: F.conv2d(x, self.weight, self.bias, padding=1, groups=2), 4, 8),
        {"b:out"},
    ),
    "input elsewhere": (
        lambda: with_forward(OwnConv, lambda self, x: OwnConv.forward(self, x) + x.mean(1, keepdim=True), 8, 8),
        {"b:out"},
    ),
    "weight elsewhere": (
        lambda: with_forward(OwnConv, lambda self, x: OwnConv.forward(self, x) / self.weight.norm(), 8, 8),
        {"b:out"},
    ),
    "scaled": (
        lambda: with_forward(OwnConv, lambda self, x: F.conv2d(x, self.weight * 0.5, self.bias * 2, padding=1), 8, 8),
        FREE,
    ),
    "standardised": (lambda: nn.Sequential(Standardised(8, 8), Standardised(8, 8)), STACKED),
    "normalised by their largest weight": (
        lambda: with_forward(OwnConv, lambda self, x: F.conv2d(x, self.weight / self.weight.max(), padding=1), 8, 8),
        {"b:out"},
    ),
    "computed, with a factor behind it": (
        lambda: with_forward(Standardised, lambda self, x: F.conv2d(x, self.weight * 0.5) * self.gain[:, 0], 8, 8),
        FREE | {"middle:out"},
    ),
    "by the number of inputs": (  # which pruning changes
        lambda: with_forward(OwnConv, lambda self, x: F.conv2d(x, self.weight / self.weight.size(1), padding=1), 8, 8),
        FREE,
    ),
    "kept from an earlier call": (
        lambda: with_forward(Kept, lambda self, x: F.conv2d(x, self.kept, self.bias, padding=1), 8, 8),
        {"b:out"},
    ),
    "with a parameter of another layer": (
        lambda: Network(
            lambda m, x: F.conv2d(x, m.layer.weight * m.other.weight, padding=1),
            layer=OwnConv(8, 8),
            other=OwnConv(8, 8),
        ),
        {"b:out"},
    ),
    "other bias": (lambda: Foreign(8, 8), FREE),
    "lent": (
        lambda: Network(lambda m, x: F.conv2d(x, m.layer.weight, m.layer.bias), layer=nn.Conv2d(8, 8, 1)),
        {"middle.layer:out", "b:out"},
    ),
    "lent in groups": (
        lambda: Network(lambda m, x: F.conv2d(x, m.layer.weight, groups=2), layer=nn.Conv2d(8, 8, 1, groups=2)),
        {"b:out"},
    ),
    "a list of parameters": (
        lambda: Network(lambda m, x: F.conv2d(x, m.layer[0]), layer=nn.ParameterList([torch.randn(8, 8, 1, 1)])),
        {"b:out"},
    ),
    "functional_call": (
        lambda: Network(
            lambda m, x: torch.func.functional_call(m.layer, {"weight": m.layer.state_dict()["weight"] * 2}, (x,)),
            layer=nn.Conv2d(8, 8, 1),
        ),
        {"b:out"},
    ),
    "width in forward": (  # under a name that surgery leaves alone
        lambda: with_forward(OwnConv, lambda self, x: OwnConv.forward(self, x) * (self.tall / 8), 8, 8),
        FREE,
    ),
    "tied": (tied, {"b:out"}),
    "tokens": (  # a linear function on the last of four dimensions
        lambda: Network(lambda m, x: m.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), layer=OwnLinear(8, 8)),
        {"b:out"},
    ),
    "blur": (lambda: Blurred("input"), {"a:out", "b:out"}),
    "blur and shift": (lambda: Blurred("input", bias=True), {"a:out", "b:out"}),
    "a group for each filter": (lambda: Blurred("filters"), {"a:out", "b:out"}),
    "two filters a channel": (
        lambda: nn.Sequential(Blurred("input", 2, bias=True), nn.Conv2d(16, 8, 1)),
        {"a:out", "middle.1:out", "b:out"},
    ),
    "edges": (lambda: Edges("input"), {"a:out", "b:out"}),
    "blur in a number of groups": (lambda: Blurred("number"), {"a:out", "b:out"}),
    "blur in eight groups": (
        lambda: with_forward(Blurred, lambda self, x: F.conv2d(x, self.filters, groups=8), "number"),
        {"b:out"},
    ),
    "filters looked at": (
        lambda: with_forward(Blurred, lambda self, x: Blurred.forward(self, x) * self.filters.sum(), "input"),
        {"b:out"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_or_frozen(name: str) -> None:
    torch.manual_seed(0)
    build, units = CASES[name]
    graph = pr.trace(Around(build()).double().eval(), IMAGE)
    assert set(graph.units) == units
    for seed in range(2):
        keep = proof.random_keep(graph, seed, 0.2, 0.8)
        assert graph.cost(keep).macs * 2 == proof.counted_macs(pruned_exactly(graph, keep), IMAGE)


def test_pruned_blurs_are_pruned_again_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Around(nn.Sequential(Blurred("input"), Edges("filters"))).double().eval()
    graph = pr.trace(model, IMAGE)
    assert graph.params == 3 * 8 + 8 * 6 + 6 * 2  # fixed filters are no weights
    first = pr.Plan.of(graph, {"a:out": [0, 2, 3, 5, 7]})
    again = pr.trace(pr.prune(graph, first), IMAGE)
    second = pr.Plan.of(again, {"a:out": [1, 4], "b:out": [2, 3]})
    small = pr.prune(again, second)
    with proof.masked(model, graph, {"a:out": [2, 7], "b:out": [2, 3]}):
        wanted = proof.outputs(model, IMAGE)
    assert proof.relative_error(proof.outputs(small, IMAGE), wanted) < 1e-12
    blur, edges = small.middle  # type: ignore[misc]
    assert torch.equal(blur.filters, model.middle[0].filters[[2, 7]])  # type: ignore[index]
    assert torch.equal(edges.filters, model.middle[1].filters[[2, 7]])  # type: ignore[index]
    pr.save(small, first.then(second), tmp_path / "net")
    torch.manual_seed(1)
    fresh = Around(nn.Sequential(Blurred("input"), Edges("filters"))).double().eval()
    assert proof.same_state(pr.load(tmp_path / "net", fresh), small)


def test_standardised_layers_are_pruned_twice_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)

    def build() -> nn.Module:
        return Around(nn.Sequential(Standardised(8, 8), Standardised(8, 8))).double().eval()

    model = build()
    graph = pr.trace(model, IMAGE)
    first = pr.Plan.of(graph, {"a:out": [0, 2, 3, 5, 7], "middle.0:out": [1, 2, 3, 6]})
    again = pr.trace(pr.prune(graph, first), IMAGE)
    second = pr.Plan.of(again, {"a:out": [1, 4], "middle.0:out": [0, 3], "b:out": [2, 3]})
    small = pr.prune(again, second)
    with proof.masked(model, graph, {"a:out": [2, 7], "middle.0:out": [1, 6], "b:out": [2, 3]}):
        wanted = proof.outputs(model, IMAGE)
    assert proof.relative_error(proof.outputs(small, IMAGE), wanted) < 1e-12
    assert small.middle[0].weight.shape == (2, 8, 3, 3)  # type: ignore[index, union-attr]
    assert torch.equal(small.middle[0].gain, model.middle[0].gain[[1, 6]])  # type: ignore[index, union-attr]
    runner = GraphRunner(again.analysis.traced)
    got = runner.run(runner.bind(IMAGE))
    assert proof.relative_error([got], proof.outputs(again.model, IMAGE)) < 1e-12
    pr.save(small, first.then(second), tmp_path / "net")
    assert proof.same_state(pr.load(tmp_path / "net", build()), small)


def test_the_reason_names_a_number_of_groups() -> None:
    eight = with_forward(Blurred, lambda self, x: F.conv2d(x, self.filters, groups=8), "number")
    graph = pr.trace(Around(eight).double().eval(), IMAGE)
    assert graph.frozen["a"].startswith("conv2d has a fixed number of groups, 8")
