"""Code that does something else in training, with gradients, or when the mode is switched is found by `trace`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.graph.trials import modes_of
from tests.graph.test_state import unchanged
from tests.graph.wrong_nets import WIDTH, Plain, centred

IMAGE = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


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


class Freezes(Plain):
    """Sets requires_grad, but does not ask for it."""

    def freeze(self) -> None:
        for parameter in self.parameters():
            parameter.requires_grad = False


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
        graph = sc.trace(model, IMAGE)
    plan = sc.Plan.of(graph, {name: list(range(unit.width // 3, unit.width)) for name, unit in graph.units.items()})
    small = sc.prune(graph, plan)
    for mode in (True, False):
        with sc.zeroed(graph, plan):
            want = model.train(mode)(IMAGE)
        torch.testing.assert_close(small.train(mode)(IMAGE), want, rtol=1e-9, atol=1e-9)


def test_the_reason_names_the_mode() -> None:
    torch.manual_seed(0)
    graph = sc.trace(WithGradients().double().eval(), IMAGE)
    assert graph.frozen["b"].startswith("with fewer channels the network computes something else with gradients: ")


def test_modes_are_tried_only_where_code_asks_for_them() -> None:
    both = ["eval", "eval with gradients", "training with gradients"]
    assert modes_of(Freezes()) == ["eval"]
    assert modes_of(Adapted()) == ["eval", "training"]
    assert modes_of(ByAFunction()) == modes_of(WithRequiredGradients()) == both


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
    graph = sc.trace(model, IMAGE)
    keep = {name: list(range(1, unit.width)) for name, unit in graph.units.items()}
    small = sc.prune(graph, sc.Plan.of(graph, keep))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(small.c.bias, before["c.bias"]) and torch.equal(small.slow.bias, before["slow.bias"])
