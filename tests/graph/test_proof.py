"""The check at the end of `prune`: it finds what is wrong, names it, and raises no false alarm."""

from __future__ import annotations

import threading
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr
from prunus.errors import PlanError
from prunus.graph.proof import culprits
from tests import proof
from tests.graph.odd_nets import Network, Plain, centred

PICTURE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


HALF = {"a:out": list(range(8)), "b:out": list(range(4, 12))}


def traced(model: nn.Module, image: Tensor = PICTURE) -> tuple[pr.ChannelGraph, pr.Plan]:
    graph = pr.trace(model, image)
    return graph, pr.Plan.of(graph, HALF)


def plain(dtype: torch.dtype = torch.float32) -> Plain:
    torch.manual_seed(0)
    return Plain().to(dtype).eval()


def test_the_layer_and_the_unit_are_named() -> None:
    """A hook that came after tracing: the outputs of b are centred over fewer channels."""
    model = plain()
    graph, plan = traced(model)
    model.b.register_forward_hook(lambda module, args, output: centred(output))
    with pytest.raises(PlanError, match=r"first at mean in b\. Keep all channels of 'b:out';"):
        pr.prune(graph, plan)
    alone = pr.prune(graph, pr.Plan.of(graph, {"a:out": HALF["a:out"]}))
    assert alone.a.out_channels == 8


def test_without_the_check_a_wrong_network_is_returned() -> None:
    model = plain()
    graph, plan = traced(model)
    model.b.register_forward_hook(lambda module, args, output: centred(output))
    small = pr.prune(graph, plan, check=False)
    with pr.zeroed(graph, plan):
        zeroed = proof.outputs(model, PICTURE)
    assert proof.relative_error(proof.outputs(small, PICTURE), zeroed) > 0.01


def test_a_network_that_fails_is_not_returned() -> None:
    model = plain()
    graph, plan = traced(model)
    model.between = types.MethodType(lambda self, h: h * torch.ones(1, 16, 1, 1), model)
    with pytest.raises(PlanError, match=r"fails with RuntimeError.*'b:out'"):
        pr.prune(graph, plan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_small_mistake_is_found_in_any_precision(dtype: torch.dtype) -> None:
    """One part in a thousand, which bfloat16 itself cannot tell from rounding."""
    model = plain(dtype)
    graph, plan = traced(model, PICTURE.to(dtype))
    pr.prune(graph, plan)
    model.b.register_forward_hook(lambda module, args, output: output * (1 + output.shape[1] / 16000))
    with pytest.raises(PlanError, match="differ"):
        pr.prune(graph, plan)


def test_zeros_as_example_hide_nothing() -> None:
    model = plain()
    with torch.no_grad():
        for layer in (model.a, model.b):
            layer.bias.zero_()
    graph, plan = traced(model, torch.zeros(1, 3, 16, 16))
    model.b.register_forward_hook(lambda module, args, output: centred(output))
    with pytest.raises(PlanError, match="differ"):
        pr.prune(graph, plan)


def test_training_mode_is_checked_if_the_model_is_in_it() -> None:
    model = plain().train()
    graph, plan = traced(model)
    model.b.register_forward_hook(lambda module, args, output: centred(output) if module.training else output)
    with pytest.raises(PlanError, match="in training mode"):
        pr.prune(graph, plan)
    pr.prune(pr.trace(model.eval(), PICTURE), pr.Plan.of(pr.trace(model, PICTURE), {}))


def test_a_loaded_network_is_checked(tmp_path: Path) -> None:
    model = plain()
    graph, plan = traced(model)
    pr.save(pr.prune(graph, plan), plan, tmp_path)
    assert pr.load(tmp_path, plain()).b.out_channels == 8
    other = plain()
    other.b.register_forward_hook(lambda module, args, output: centred(output))
    with pytest.raises(PlanError):
        pr.load(tmp_path, other)


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_dropout(always: bool, training: bool) -> None:
    torch.manual_seed(0)
    """As a layer, as a function, and always on."""
    model = Plain(lambda m, h: m.drop(F.dropout(h.relu(), 0.3, always or m.training)), drop=nn.Dropout2d(0.5))
    graph, plan = traced(model.train(training))
    assert pr.prune(graph, plan).b.out_channels == 8


def magnified(m: Plain, h: Tensor) -> Tensor:
    """Rounding grows fiftyfold in each of seven steps: the outputs of two exact computations have nothing in common."""
    for _ in range(7):
        h = torch.sin(50 * h)
    return h


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_that_magnifies_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    graph, plan = traced(Plain(magnified).to(dtype).eval(), PICTURE.to(dtype))
    assert pr.prune(graph, plan).b.out_channels == 8


class OfOneType(Plain):
    """Insists on float32 in the middle, or fails on float64."""

    def __init__(self, insists: bool) -> None:
        super().__init__()
        self.insists = insists

    def forward(self, x: Tensor) -> Any:
        if self.insists and x.dtype != torch.float32:
            raise TypeError("float32 only")
        h = self.b(F.relu(self.a(x)))
        return self.c(torch.tanh(h.float() * 1e3).to(h.dtype))


@pytest.mark.parametrize("insists", [False, True])
def test_a_network_that_needs_its_type(insists: bool) -> None:
    torch.manual_seed(0)
    graph, plan = traced(OfOneType(insists).eval())
    assert pr.prune(graph, plan).b.out_channels == 8


def test_state_of_the_pruned_network_is_that_of_the_original() -> None:
    class Norms(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.last = nn.BatchNorm2d(16), None

        def between(self, h: Tensor) -> Tensor:
            self.last = self.n(h)
            return self.last

    model = Norms().train()
    graph, plan = traced(model)
    small = pr.prune(graph, plan)
    assert small.last is None
    assert small.n.num_batches_tracked.item() == 0
    assert torch.equal(small.n.running_mean, torch.zeros(8))
    assert not small.a._forward_hooks
    model(PICTURE)  # leaves a tensor with a history, of which copy.deepcopy would complain
    assert pr.prune(graph, plan).last.requires_grad is False


def test_locks_are_shared() -> None:
    """deepcopy refuses them, though nothing of a network is in them."""

    class Locked(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def forward(self, x: Tensor) -> Tensor:
            with self.lock:
                return super().forward(x)

    torch.manual_seed(0)
    model = Locked().to(PICTURE.dtype).eval()
    graph = pr.trace(model, PICTURE)
    assert list(graph.units) == ["a:out", "b:out"]
    keep = {"a:out": [0, 3, 5]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    with proof.masked(model, graph, keep):
        want = proof.outputs(model, PICTURE)
    assert proof.relative_error(proof.outputs(small, PICTURE), want) < 1e-5


def test_a_network_that_cannot_be_copied() -> None:
    """Its units are frozen, and the reason is that."""

    class Counting(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.numbers = (number for number in range(3))

    graph = pr.trace(Counting().eval(), PICTURE)
    assert not graph.units
    assert "cannot be copied" in graph.frozen["a"]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ([{"c"}], ["c"]),
        ([{"a"}, {"f"}, {"g"}], ["a", "f", "g"]),
        ([{"b", "g"}], ["g"]),  # only together: without the second, the first does no harm
        ([{name} for name in "abcdefg"], list("abcdefg")),
    ],
)
def test_bisection_finds_the_fewest(bad: list[set[str]], expected: list[str]) -> None:
    tried = []

    def fails(names: Sequence[str]) -> bool:
        tried.append(list(names))
        return any(group <= set(names) for group in bad)

    assert culprits(list("abcdefg"), fails) == expected
    assert len(tried) <= 13  # every node of a tree with seven leaves, once


def test_trial_plans_leave_an_output_to_every_layer() -> None:
    """Two layers write the halves of a stream, which one layer reads. Without the first half of the stream, one layer
    would have no output, which is no reason to freeze it."""
    model = Network(
        lambda m, x: m.e(F.relu(m.d(F.relu(torch.cat([m.a(x), m.b(x)], 1) + m.c(x))))),
        **{"a": nn.Conv2d(3, 8, 1), "b": nn.Conv2d(3, 8, 1), "c": nn.Conv2d(3, 16, 1)},
        **{"d": nn.Conv2d(16, 4, 1), "e": nn.Conv2d(4, 2, 1)},
    )
    units = pr.trace(model.eval(), PICTURE).units
    assert {name: unit.width for name, unit in units.items()} == {"d:in": 16, "d:out": 4}


def test_trace_without_the_check_by_running_only_follows_labels() -> None:
    """The code asks a layer for its width, which labels cannot see: only running finds it."""
    torch.manual_seed(0)
    model = Plain(lambda m, h: h / m.b.out_channels).eval()
    assert "b:out" in pr.trace(model, PICTURE, check=False).units
    assert "b:out" not in pr.trace(model, PICTURE).units
