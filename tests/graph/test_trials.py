"""Code that does something else in training, with gradients, or when the mode is switched is found by `trace`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.graph.record import trace_calls
from prunus.graph.trials import constants_varied, trials_for
from tests import proof
from tests.graph.checks import unchanged
from tests.graph.odd_nets import WIDTH, Network, Plain, centred

PICTURE = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def centred_with_gradients(h: Tensor) -> Tensor:
    return centred(h) if torch.is_grad_enabled() else h


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


KINDS: dict[str, Callable[[], nn.Module]] = {
    "gradients": lambda: Plain(lambda m, h: centred(h) if torch.is_grad_enabled() else h),
    "required gradients": lambda: Plain(lambda m, h: h * h.shape[1] if h.requires_grad else h),
    "in a function": lambda: Plain(lambda m, h: centred_with_gradients(h)),
    "merging": lambda: Plain(b=Merging()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_mode_is_wrong(kind: str, training: bool) -> None:
    torch.manual_seed(0)
    model = KINDS[kind]().double().train(training)
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
    graph = pr.trace(KINDS["gradients"]().double().eval(), PICTURE)
    assert graph.frozen["b"].startswith(
        "with fewer channels the network computes something else in training mode, with gradients: "
    )


class AsksTheOriginal(Plain):
    """A function that was made for the original asks for its mode, also in a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.is_training = lambda: self.training

    def between(self, h: Tensor) -> Tensor:
        return h * 2 if self.is_training() else h


def test_a_network_that_asks_the_original_for_its_mode_is_left_as_it_is() -> None:
    torch.manual_seed(0)
    graph = pr.trace(AsksTheOriginal().double().eval(), PICTURE)
    assert not graph.units and "with fewer channels the network computes something else" in graph.frozen["a"]


def moved(m: Any, h: Tensor) -> Tensor:
    """Training moves the weights of one layer of PyTorch towards those of another."""
    if m.training:
        m.slow.weight.data = m.slow.weight.data * 0.9 + m.b.weight.data * 0.1
        with torch.no_grad():
            m.slow.bias += 1
    return m.slow(h)


def averaged(m: Any, h: Tensor) -> Tensor:
    """Only training calls a layer, whose weights follow those of another one."""
    if not m.training:
        return h
    with torch.no_grad():
        for fast, slow in zip(m.b.parameters(), m.slow.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
    return m.slow(h)


class InClass(Plain):
    def between(self, h: Tensor) -> Tensor:
        return moved(self, h)


@pytest.mark.parametrize("build", [InClass, *(partial(Plain, f) for f in (moved, partial(moved), averaged))])
@pytest.mark.parametrize("training", [False, True])
def test_weights_that_forward_writes_are_restored(build: Callable[..., nn.Module], training: bool) -> None:
    """Whether a method writes them, a function among the attributes, or a partial."""
    torch.manual_seed(0)
    model = build(slow=nn.Conv2d(WIDTH, WIDTH, 3)).double().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graph = pr.trace(model, PICTURE)
    keep = {name: list(range(1, unit.width)) for name, unit in graph.units.items()}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(small.c.bias, before["c.bias"]) and torch.equal(small.slow.bias, before["slow.bias"])


def test_trials_take_the_smallest_images_that_the_network_allows() -> None:
    """A network that needs images of 80 pixels a side is tried on 128, a small one on 64 or less."""

    def shapes(model: nn.Module, *size: int) -> list[tuple[int, ...]]:
        trials, output = trials_for(trace_calls(model.eval(), torch.zeros(size)), torch.zeros(size))
        assert output is not None
        assert [trial.mode for trial in trials] == ["eval", "training with gradients"]
        return [tuple(trial.inputs[0].shape) for trial in trials]

    small = nn.Sequential(nn.Conv2d(3, 2, 3))
    unpacking = Network(lambda m, x: m.a(x).reshape([*[*x.size()][:1], 2, -1]), a=nn.Conv2d(3, 2, 3))
    assert shapes(unpacking, 4, 3, 24, 24) == [(1, 3, 24, 24), (2, 3, 24, 36)]
    assert shapes(nn.Conv2d(3, 2, 80, stride=8), 1, 3, 224, 224)[0] == (1, 3, 128, 128)
    assert shapes(small, 1, 3, 224, 224)[0] == (1, 3, 64, 64)
    assert shapes(small, 4, 3, 32, 32) == [(1, 3, 16, 16), (2, 3, 16, 24)]
    assert shapes(small, 4, 3, 24, 24) == [(1, 3, 24, 24), (2, 3, 24, 36)]


LAST = torch.channels_last


def does_not_divide(x: Tensor) -> bool:
    try:
        x.reshape(*x.shape[:-2], 4, x.shape[-2] // 4, x.shape[-1])
    except RuntimeError:
        return True
    return False


@pytest.mark.parametrize(
    "other",
    [
        lambda x: min(x.shape[2:]) > 20,
        lambda x: min(x.shape[2:]) < 12,
        lambda x: x.shape[-1] / x.shape[-2] > 2,
        lambda x: len(x) > 4,
        lambda x: x.is_contiguous(memory_format=LAST),
        lambda x: x.dim() == 3,
        does_not_divide,
        lambda x: x[0].numel() > 2000,
        lambda x: len(x[0, 0]) > 18,
        lambda x: x.size(-1) % 2 == 1,
        lambda x: x.shape[0] > 3,
        lambda x: np.prod(x.shape[2:]) > 3000,
        lambda x: x.shape[0] >= 32,
        lambda x: x.shape[-1] * x.shape[-2] > 40000,
    ],
    ids=[
        "side",
        "least side",
        "wide",
        "batch",
        "layout",
        "no batch",
        "divided",
        "numbers",
        "length",
        "odd",
        "images",
        "asked by numpy",
        "many images",
        "tiles",
    ],
)
def test_other_sizes_are_tried_however_the_code_looks_at_them(other: Callable[[Tensor], bool]) -> None:
    """A channel of `a` that is removed would be missing in the mean; those of `b` go."""
    torch.manual_seed(0)

    def forward(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.a(x))
        return m.c(torch.relu(m.b(h - h.mean(-3, keepdim=True) if other(x) else h)))

    model = Network(forward, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 8, 1), c=nn.Conv2d(8, 2, 1))
    model = model.double().eval()
    graph = pr.trace(model, PICTURE)
    assert list(graph.units) == ["b:out"] and "first at mean" in graph.frozen["a"]
    keep = {"b:out": [1, 2, 5]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    shapes = ((2, 3, 16, 16), (2, 3, 40, 48), (2, 3, 17, 19), (5, 3, 16, 16), (1, 3, 8, 8), (2, 3, 16, 40), (3, 16, 16))
    shapes += ((1, 3, 64, 64), (1, 3, 201, 200), (32, 3, 16, 16))
    for picture in (*(torch.randn(shape, dtype=torch.float64) for shape in shapes), PICTURE.to(memory_format=LAST)):
        with proof.masked(model, graph, keep):
            assert proof.relative_error(proof.outputs(small, picture), proof.outputs(model, picture)) < 1e-12


class Trying(nn.Module):
    """Positions that images of more than 32 pixels have none of: then the code takes another path."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)
        self.register_buffer("positions", torch.randn(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        try:
            h = h + self.positions[:, :, : h.shape[2], : h.shape[3]]
        except RuntimeError:
            h = h - h.mean(1, keepdim=True)
        return self.c(torch.relu(self.b(h)))


def test_sizes_whose_errors_are_caught_are_tried() -> None:
    graph = pr.trace(Trying().double().eval(), PICTURE)
    assert list(graph.units) == ["b:out"] and "mean" in graph.frozen["a"]


class Optional(nn.Module):
    """Other arguments take another path: a flag, a text, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor, centre: bool = False, mode: str = "plain", power: float = 0.0) -> Tensor:
        h = torch.relu(self.a(x))
        if centre or mode in ("mean", "centred") or power > 1.5:
            h = h - h.mean(1, keepdim=True)
        return self.c(torch.relu(self.b(h)))


@pytest.mark.parametrize(("name", "value"), [("centre", True), ("mode", "centred"), ("power", 2.0)])
def test_arguments_that_the_example_leaves_out_are_tried(name: str, value: Any) -> None:
    """Every argument but one is given, and so is what it stands for: the trial must be that of the one."""
    torch.manual_seed(0)
    model, given = Optional().double().eval(), {"centre": False, "mode": "plain", "power": 0.0}
    graph = pr.trace(model, {"x": PICTURE, **{n: v for n, v in given.items() if n != name}})
    assert list(graph.units) == ["b:out"] and f"computes something else with {name}=" in graph.frozen["a"]
    keep = {"b:out": [1, 2, 5]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    for example in ({"x": PICTURE}, {"x": PICTURE, name: value}):
        with proof.masked(model, graph, keep):
            assert proof.relative_error(proof.outputs(small, example), proof.outputs(model, example)) < 1e-12
    assert list(pr.trace(model, {"x": PICTURE, **given}).units) == ["a:out", "b:out"]  # that is how it is used


def test_outputs_that_hardly_vary_excuse_nothing() -> None:
    """Rounding moves this network's outputs by more than they vary, and the wrong values inside it not at all."""
    torch.manual_seed(0)

    def forward(m: Any, x: Tensor) -> Tensor:
        h = torch.relu(m.a(x))
        h = h - h.mean(-3, keepdim=True) if x.size(-1) % 2 else h
        return m.c(torch.relu(m.b(h) - 1e3)) + 1e-15 * x[:, :2]

    model = Network(forward, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 8, 1), c=nn.Conv2d(8, 2, 1)).double()
    nn.init.ones_(model.c.bias)
    graph = pr.trace(model.eval(), PICTURE)
    assert list(graph.units) == ["b:out"] and "first at mean" in graph.frozen["a"]


class Fitted(nn.Module):
    """A layer that only images of odd sizes reach: halved and doubled, they have lost a row."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.halve = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 2, 2)
        self.fit, self.leave = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.relu(self.enter(x))
        back = nn.functional.interpolate(self.halve(wide), scale_factor=2)
        if back.shape != wide.shape:
            back = self.fit(nn.functional.interpolate(back, size=wide.shape[2:]))
        return self.leave(torch.relu(wide + back))


def test_a_layer_that_only_odd_sizes_reach_gets_its_channels() -> None:
    torch.manual_seed(0)
    graph = pr.trace(Fitted().eval(), torch.randn(2, 3, 16, 16))
    plan = pr.Plan.of(graph, {name: range(6) for name in graph.units})
    images = torch.randn(2, 3, 17, 16)
    whole, small = graph.model, pr.prune(graph, plan)
    with proof.masked(whole, graph, plan.keep):
        want = proof.outputs(whole, images)
    assert proof.relative_error(proof.outputs(small, images), want) < 1e-5


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
