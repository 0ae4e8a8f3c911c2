"""Nothing of the user's is changed: modes, hooks, random state, requires_grad, weights; on errors too."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.errors import PrunusError
from tests import proof
from tests.graph.checks import IMAGE, pruned_exactly, unchanged
from tests.nets import NETS, PreActivation
from tests.nets_frozen import FROZEN_NETS

FLOAT = IMAGE.float()
OTHER = pr.trace(NETS["chain"].build(), FLOAT)


def prepared() -> nn.Module:
    """A network in an untidy state: mixed modes, frozen parameters, gradients, hooks."""
    torch.manual_seed(3)
    model = PreActivation().train()
    model.bn1.eval()
    model.conv2.weight.requires_grad_(False)
    model.stem.bias.grad = torch.ones(4)
    model.bn2.register_forward_hook(lambda module, arguments, output: output * 1.0)
    model.conv1.register_forward_pre_hook(lambda module, arguments: None)
    model.conv2.register_full_backward_hook(lambda module, grads, outs: None)
    model.note = {"mine": [1, 2, 3]}
    return model


@pytest.mark.parametrize("mode", ["select", "coupled"])
def test_everything_leaves_the_model_as_it_was(mode: str) -> None:
    model = prepared()
    with unchanged(model):
        graph = pr.trace(model, FLOAT, streams=mode)
    keep = proof.random_keep(graph, 0)
    with unchanged(model):
        plan = pr.Plan.of(graph, keep)
        graph.cost(plan)
        graph.balance(keep)
        pr.prune(graph, plan)
    with unchanged(model), pr.zeroed(graph, plan):
        pass


def test_the_example_is_left_alone() -> None:
    class InPlace(PreActivation):
        def forward(self, x: Tensor) -> Tensor:
            x.mul_(2.0)
            return super().forward(x)

    image = FLOAT.clone()
    pr.trace(InPlace(), image)
    assert torch.equal(image, FLOAT)


def test_keep_is_left_alone() -> None:
    graph = pr.trace(prepared(), FLOAT)
    keep = {"conv1:out": [5, 0, 2]}
    before = copy.deepcopy(keep)
    plan = pr.Plan.of(graph, keep)
    graph.balance(keep)
    assert keep == before
    assert plan.keep["conv1:out"] == (0, 2, 5)


def test_zeroed_puts_back_on_an_exception() -> None:
    model = prepared()
    graph = pr.trace(model, FLOAT)
    plan = pr.Plan.of(graph, proof.random_keep(graph, 0))
    with unchanged(model), pytest.raises(ZeroDivisionError), pr.zeroed(graph, plan):
        assert model.fc._forward_pre_hooks
        _ = 1 / 0


def test_zeroed_within_zeroed() -> None:
    model = prepared().eval()
    graph = pr.trace(model, FLOAT)
    one = pr.Plan.of(graph, {"conv1:out": [0, 1]})
    other = pr.Plan.of(graph, {"conv1:out": [1, 2], "fc:in": [3]})
    both = pr.Plan.of(graph, {"conv1:out": [1], "fc:in": [3]})
    with unchanged(model):
        with pr.zeroed(graph, one):
            first = proof.outputs(model, FLOAT)
            with pr.zeroed(graph, other):
                inner = proof.outputs(model, FLOAT)
            assert torch.equal(proof.outputs(model, FLOAT)[0], first[0])
        with pr.zeroed(graph, both):
            assert torch.equal(proof.outputs(model, FLOAT)[0], inner[0])


def bad_example(model: nn.Module) -> None:
    pr.trace(model, torch.zeros(2, 7, 8, 8))


def bad_plan(model: nn.Module) -> None:
    pr.prune(pr.trace(model, FLOAT), pr.Plan.of(OTHER, {"a:out": [0]}))


def bad_zeroed(model: nn.Module) -> None:
    graph = pr.trace(model, FLOAT)
    with pr.zeroed(graph, {"conv1:out": [0, 77]}):
        pass


@pytest.mark.parametrize("act", [bad_example, bad_plan, bad_zeroed])
def test_errors_change_nothing(act: Callable[[nn.Module], None]) -> None:
    model = prepared()
    with unchanged(model), pytest.raises(PrunusError):
        act(model)


def test_the_pruned_model_is_like_the_original_in_all_else() -> None:
    model = prepared()
    graph = pr.trace(model, FLOAT)
    small = pr.prune(graph, pr.Plan.of(graph, proof.random_keep(graph, 0)))
    assert type(small) is type(model)
    assert {n: m.training for n, m in small.named_modules()} == {n: m.training for n, m in model.named_modules()}
    assert {n: p.requires_grad for n, p in small.named_parameters()} == {
        n: p.requires_grad for n, p in model.named_parameters()
    }
    assert list(small.state_dict()) == list(model.state_dict())
    assert small.note == {"mine": [1, 2, 3]} and small.note is not model.note
    assert len(small.bn2._forward_hooks) == 1 and len(small.conv2._backward_hooks) == 1
    own = {p.data_ptr() for p in small.parameters()}
    assert not own & {p.data_ptr() for p in model.parameters()}


def test_no_plan_at_all_gives_a_copy() -> None:
    model = prepared()
    graph = pr.trace(model, FLOAT)
    small = pr.prune(graph, pr.Plan.of(graph, {}))
    assert proof.same_state(small, model)
    assert torch.equal(proof.outputs(small.eval(), FLOAT)[0], proof.outputs(copy.deepcopy(model).eval(), FLOAT)[0])


def test_memory_format_and_dtype_stay() -> None:
    model = prepared().to(memory_format=torch.channels_last).bfloat16()
    graph = pr.trace(model, FLOAT.bfloat16())
    small = pr.prune(graph, pr.Plan.of(graph, {"conv1:out": [0, 1, 2]}))
    assert {p.dtype for p in small.parameters()} == {torch.bfloat16}
    assert small.get_parameter("conv2.weight").is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["residual", "shuffle", "glu", "tied", "literal_slice"])
def test_tracing_twice_says_the_same(name: str) -> None:
    tiny = {**NETS, **FROZEN_NETS}[name]
    one, other = tiny.build(), tiny.build()  # other weights, the same structure
    example = tiny.example()
    first, second = pr.trace(one, example), pr.trace(other, example)
    plan = pr.Plan.of(first, proof.random_keep(first, 0))
    assert pr.Plan.of(second, proof.random_keep(second, 0)).to_json() == plan.to_json()
    assert first.frozen == second.frozen
    small = pr.prune(second, plan)
    assert {n: p.shape for n, p in small.named_parameters()} == {
        n: p.shape for n, p in pr.prune(first, plan).named_parameters()
    }


class Normalised(nn.Module):
    """Spectral norms: in training mode, every look at their weights changes buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)
        self.b = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3))
        self.c = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


def test_weights_that_change_when_they_are_looked_at_are_not() -> None:
    model = Normalised().train()
    with unchanged(model):
        graph = pr.trace(model, FLOAT)
    assert graph.params == 3 * 8 * 9 + 8 * 8 * 9 + 8 * 8  # computed weights are no shared ones


class Listening(nn.Module):
    """Hooks that write to a list of the model, and hooks on the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(8, 4, 1)
        self.seen: list[Tensor] = []
        self.b.register_forward_hook(lambda module, args, output: self.seen.append(output))
        self.register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(1, keepdim=True),))
        self.register_forward_hook(lambda module, args, output: output * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)).relu())


def test_hooks_that_write_to_the_model_and_hooks_of_the_model_itself() -> None:
    model = Listening().double().eval()
    image = IMAGE
    graph = pr.trace(model, image)
    assert model.seen == [] and set(graph.units) == {"a:out", "b:out"}
    keep = {"a:out": [1, 2, 6], "b:out": [0, 5]}
    pr.prune(graph, pr.Plan.of(graph, keep))
    assert model.seen == []
    pruned_exactly(graph, keep)
