"""What errors of a layer do to the network's outputs: gradients and measured changes, and nothing left behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import prunus as pr
from prunus.scoring.output_weights import OutputWeights, ProbeImages
from prunus.scoring.rows import rows_of_weight


class TwoOutputs(nn.Module):
    """A reader followed by an activation in place, and two outputs of different sizes; one of them no float."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1)
        self.relu = nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.relu(self.second(F.relu(self.first(x))))
        return 100 * y, y.mean((2, 3)), y.argmax(1)


def images(count: int) -> Tensor:
    return torch.randn(count, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def matrix(probe: ProbeImages, layer: str) -> Tensor:
    """G from its root."""
    root = probe.output_weights([layer])[layer].root()
    return root.T @ root


def test_weights_are_those_of_all_outputs_by_their_spread_and_activations_in_place_do_no_harm() -> None:
    found = []
    for inplace in (False, True):
        model = TwoOutputs(inplace).double().requires_grad_(not inplace)
        graph = pr.trace(model, images(1))
        found.append(matrix(ProbeImages(graph, images(5)), "second"))
        assert all(p.grad is None for p in model.parameters()) and not model.second._forward_hooks
    np.testing.assert_allclose(found[0], found[1])
    model = TwoOutputs(False).double()
    y = model.second(F.relu(model.first(images(5)))).detach().requires_grad_(True)
    z = F.relu(y)
    outputs = (100 * z, z.mean((2, 3)))
    draw = torch.Generator().manual_seed(0)
    pulled = [(torch.randn(o.shape, generator=draw) * o / o.std(correction=0).detach()).sum() for o in outputs]
    sum(pulled[1:], pulled[0]).backward()
    assert y.grad is not None
    rows = y.grad.movedim(1, 3).reshape(-1, 3)
    np.testing.assert_allclose(found[0], rows.T @ rows, rtol=1e-6)


class WithoutGradient(TwoOutputs):
    """Another output comes first or last, which no gradient flows to."""

    def __init__(self, first: bool) -> None:
        super().__init__(False)
        self.is_first = first

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, pooled, _ = super().forward(x)
        extra = 1000 * x.detach().mean((2, 3))
        return (extra, y, pooled) if self.is_first else (y, pooled, extra)


def scaled(scale: float) -> nn.Module:
    """The first layer's outputs are multiplied by `scale`, and the second one undoes it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 1, bias=False))
    with torch.no_grad():
        for parameter in model[0].parameters():
            parameter.mul_(scale)
        model[1].weight.div_(scale)
    return model


def test_neither_an_output_without_a_gradient_nor_huge_gradients_change_the_weights() -> None:
    """Gradients of 1e25, whose squares float32 cannot hold; an output without one takes no other output's scale."""
    one, other = (
        matrix(ProbeImages(pr.trace(model, images(1)), images(5)), "second")
        for model in (WithoutGradient(True).double(), WithoutGradient(False).double())
    )
    np.testing.assert_allclose(one, other, rtol=1e-9)
    one, other = (
        matrix(ProbeImages(pr.trace(scaled(by), images(1).float()), images(5).float()), "0").numpy() * by * by
        for by in (1.0, 1e-25)
    )
    np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize("rows", [3, 40])
def test_a_root_gives_the_matrix_back(rows: int) -> None:
    """With fewer rows than outputs, and with more; all outputs and some of them."""
    drawn = torch.randn(rows, 8, generator=torch.Generator().manual_seed(0))
    weights = OutputWeights()
    for some in drawn.split(2):
        weights.add(some)
    want = (drawn.double().T @ drawn.double()).numpy()
    for part in (slice(None), slice(2, 6)):
        root = weights.root(part).numpy()
        np.testing.assert_allclose(root.T @ root, want[part, part], rtol=1e-5, atol=1e-5)
    assert len(weights.root()) == min(rows, 8)


@torch.no_grad()
def test_changes_are_relative_to_each_output_and_the_layer_is_restored() -> None:
    model = TwoOutputs(True).double()
    probe = ProbeImages(pr.trace(model, images(1)), images(20))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = rows_of_weight(model.second)
    none = torch.zeros(1, 3, dtype=torch.float64)
    assert probe.change({"second": (rows, none)}) == 0
    got = probe.change({"second": (0.5 * rows, none + 0.1)})
    inner = F.relu(model.first(images(20)))
    old = F.relu(model.second(inner))
    new = F.relu(F.conv2d(inner, 0.5 * model.second.weight, model.second.bias + 0.1))
    want = float((new - old).square().mean() / old.var(correction=0))  # the factor 100 cancels
    means = old.mean((2, 3))
    want += float((new.mean((2, 3)) - means).square().mean() / means.var(correction=0))
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.second._forward_hooks


@torch.no_grad()
def test_only_what_comes_after_a_change_runs_again() -> None:
    """Three batches of probe images; the kept place moves on with the layers, and starts again for an earlier one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(True), nn.Conv2d(4, 4, 3), nn.ReLU(True), nn.Conv2d(4, 3, 1))
    model.double().eval()
    probe, before = ProbeImages(pr.trace(model, images(1)), images(20)), model(images(20))

    def changed(name: str) -> float:
        layer = model.get_submodule(name)
        return probe.change({name: (0.5 * rows_of_weight(layer), torch.zeros(1, len(layer.weight)))})

    changed("4")
    calls: list[str] = []
    for name in "024":
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    for name, expected in (("2", "024" * 3), ("4", "24" * 3), ("4", "4" * 3), ("0", "024" * 3)):
        calls.clear()
        got = changed(name)
        assert sorted(calls) == sorted(expected)
        layer = model.get_submodule(name)
        layer.weight.mul_(0.5)
        want = float((model(images(20)) - before).square().mean() / before.var(correction=0))
        layer.weight.mul_(2)
        np.testing.assert_allclose(got, want, rtol=1e-9)


def test_a_network_in_training_mode_is_probed_as_in_use_and_left_as_it_was() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 3, 1)
    model = nn.Sequential(*layers).double()
    found = []
    for training in (False, True):
        model.train(training)
        probe = ProbeImages(pr.trace(model, images(1)), images(20))
        before, numbers = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
        rows = 0.5 * rows_of_weight(model[4])
        found.append(probe.change({"4": (rows, torch.zeros(1, 3, dtype=torch.float64))}))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), numbers) and model.training is training
    assert found[0] == found[1] > 0
