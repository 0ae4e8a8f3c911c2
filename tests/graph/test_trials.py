"""Code that does something else in training, with gradients, or when the mode is switched is found by `trace`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.graph.record import trace_calls
from prunus.graph.trials import constants_varied, trials_for
from tests import proof
from tests.graph.checks import unchanged
from tests.graph.odd_nets import WIDTH, Plain, centred

PICTURE = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class WithGradients(Plain):
    def between(self, h: Tensor) -> Tensor:
        return centred(h) if torch.is_grad_enabled() else h


class WithRequiredGradients(Plain):
    def between(self, h: Tensor) -> Tensor:
        return h * h.shape[1] if h.requires_grad else h


def centred_with_gradients(h: Tensor) -> Tensor:
    return centred(h) if torch.is_grad_enabled() else h


class ByAFunction(Plain):
    def between(self, h: Tensor) -> Tensor:
        return centred_with_gradients(h)


class Merging(nn.Conv2d):
    """A low-rank addition to the weight, which eval mode merges into it and training mode takes out again."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3)
        self.low = nn.Parameter(torch.randn(WIDTH, 2))
        self.high = nn.Parameter(torch.randn(2, WIDTH * 9))
        self.merged = False

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            added = (self.low @ self.high).view_as(self.weight).detach()
            self.weight.data += -added if mode else added
            self.merged = not mode
        return self


class Adapted(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.b = Merging()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [WithGradients, WithRequiredGradients, ByAFunction, Adapted])
def test_no_mode_is_wrong(kind: type[nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    model = kind().double().train(training)
    with unchanged(model):
        graph = pr.trace(model, PICTURE)
    plan = pr.Plan.of(graph, {name: list(range(unit.width // 3, unit.width)) for name, unit in graph.units.items()})
    small = pr.prune(graph, plan)
    for mode in (True, False):
        with pr.zeroed(graph, plan):
            want = model.train(mode)(PICTURE)
        torch.testing.assert_close(small.train(mode)(PICTURE), want, rtol=1e-9, atol=1e-9)


def test_the_reason_names_the_mode() -> None:
    torch.manual_seed(0)
    graph = pr.trace(WithGradients().double().eval(), PICTURE)
    assert graph.frozen["b"].startswith(
        "with fewer channels the network computes something else in training mode, with gradients: "
    )


class MovingAverage(Plain):
    """Training moves the weights of one layer of PyTorch towards those of another."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Conv2d(WIDTH, WIDTH, 3)

    def between(self, h: Tensor) -> Tensor:
        if self.training:
            self.slow.weight.data = self.slow.weight.data * 0.9 + self.b.weight.data * 0.1
            with torch.no_grad():
                self.slow.bias += 1  # type: ignore[operator]
        return self.slow(h)


@pytest.mark.parametrize("training", [False, True])
def test_weights_that_forward_writes_are_restored(training: bool) -> None:
    torch.manual_seed(0)
    model = MovingAverage().double().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graph = pr.trace(model, PICTURE)
    keep = {name: list(range(1, unit.width)) for name, unit in graph.units.items()}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(small.c.bias, before["c.bias"]) and torch.equal(small.slow.bias, before["slow.bias"])


class Wide(nn.Module):
    """Needs images of 80 pixels a side, and in training of 200."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.aux = nn.Conv2d(3, 2, 80, stride=8), nn.Conv2d(2, 2, 16)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.stem(x)
        return (x, self.aux(x)) if self.training else x


def test_trials_take_the_smallest_images_that_the_network_allows() -> None:
    def shapes(model: nn.Module, *size: int) -> list[list[tuple[int, ...]]]:
        trials, output = trials_for(trace_calls(model.eval(), torch.zeros(size)), torch.zeros(size))
        assert output is not None
        assert [trial.mode for trial in trials] == ["eval", "training with gradients"]
        return [[tuple(inputs.shape) for inputs in trial.inputs] for trial in trials]

    in_eval, in_training = shapes(Wide(), 1, 3, 224, 224)
    assert in_eval[0] == (1, 3, 128, 128)
    assert in_training == [(2, 3, 64, 96), (2, 3, 128, 192), (2, 3, 128, 128), (2, 3, 224, 224), (1, 3, 224, 224)]
    small = nn.Sequential(nn.Conv2d(3, 2, 3))
    assert shapes(small, 1, 3, 224, 224)[0][0] == (1, 3, 64, 64)
    assert shapes(small, 4, 3, 80, 80)[0][0] == (1, 3, 40, 40)
    assert [each[0] for each in shapes(small, 4, 3, 32, 32)] == [(1, 3, 16, 16), (2, 3, 16, 24)]
    assert [each[0] for each in shapes(small, 4, 3, 24, 24)] == [(1, 3, 24, 24), (2, 3, 24, 36)]
    assert shapes(nn.Sequential(nn.Conv2d(3, 2, 20)), 4, 3, 32, 32)[0][0] == (1, 3, 32, 32)


class ByItsSize(nn.Module):
    """Takes another path for images of other sizes."""

    def __init__(self, other: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.c(torch.relu(self.b(centred(h) if self.other(x) else h)))


@pytest.mark.parametrize(
    "other",
    [
        lambda x: min(x.shape[2:]) > 20,
        lambda x: x[0].numel() > 2000,
        lambda x: len(x[0, 0]) > 18,
        lambda x: x.size(-1) % 2 == 1,
        lambda x: x.shape[0] > 3,
    ],
    ids=["least side", "numbers", "length", "odd", "images"],
)
def test_other_sizes_are_tried_however_the_code_looks_at_them(other: Callable[[Tensor], bool]) -> None:
    """A channel of `a` that is removed would be missing in the mean; those of `b` go."""
    torch.manual_seed(0)
    model = ByItsSize(other).double().eval()
    graph = pr.trace(model, PICTURE)
    assert list(graph.units) == ["b:out"] and "first at mean" in graph.frozen["a"]
    keep = {"b:out": [1, 2, 5]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    for shape in ((2, 3, 16, 16), (2, 3, 40, 48), (2, 3, 17, 19), (5, 3, 16, 16)):
        picture = torch.randn(shape, dtype=torch.float64)
        with proof.masked(model, graph, keep):
            assert proof.relative_error(proof.outputs(small, picture), proof.outputs(model, picture)) < 1e-12


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
