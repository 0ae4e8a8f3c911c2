"""Networks that deceive whoever follows their channels: pruned exactly, left alone or refused, and never changed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.errors import PrunusError
from tests import proof
from tests.graph.wrong_nets import WIDTH, WRONG, Plain, Recurrent, Remembers

EXACT = 1e-12


def everything_in(model: nn.Module) -> dict[str, Any]:
    """All attributes of all modules, with copies of tensors and containers."""
    return {
        f"{name}.{key}": (id(value), copied(value))
        for name, module in model.named_modules()
        for key, value in module.__dict__.items()
    }


def copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return [(key, id(part), copied(part)) for key, part in value.items()]
    if isinstance(value, list):
        return [(id(part), copied(part)) for part in value]
    return None


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def keeps(graph: sc.ChannelGraph) -> list[dict[str, list[int]]]:
    """The last halves of all units, all but the first channel of each block, and unequal random cuts."""
    halves = {name: list(range(unit.width // 2, unit.width)) for name, unit in graph.units.items()}
    firsts = {}
    for name, unit in graph.units.items():
        first = {int(np.flatnonzero(unit.blocks == block)[0]) for block in range(unit.granule)}
        firsts[name] = [i for i in range(unit.width) if i not in first]
    return [halves, firsts, proof.random_keep(graph, 0, 0.2, 0.8), proof.random_keep(graph, 1, 0.2, 0.8)]


@pytest.mark.parametrize("mode", ["select", "coupled"])
@pytest.mark.parametrize("name", WRONG)
def test_exact_or_refused_and_unchanged(name: str, mode: str) -> None:
    torch.manual_seed(0)
    model = WRONG[name].build().double().eval()
    example = WRONG[name].example()
    before = everything_in(model)
    try:
        graph = sc.trace(model, example, streams=mode)
    except PrunusError:
        assert same(everything_in(model), before)
        return
    assert same(everything_in(model), before)
    for keep in keeps(graph):
        try:
            plan = sc.Plan.of(graph, graph.balance(keep))
            small = sc.prune(graph, plan)
        except PrunusError:
            assert same(everything_in(model), before)
            continue
        assert same(everything_in(model), before)
        assert_exact(graph, plan, small, example)


def assert_exact(graph: sc.ChannelGraph, plan: sc.Plan, small: nn.Module, example: Any) -> None:
    """In eval and in training mode, on copies, because a network may remember what it has seen."""
    for training in (False, True):
        got = proof.outputs(copy.deepcopy(small).train(training), example)
        with sc.zeroed(graph, plan):
            whole = copy.deepcopy(graph.model)
        assert proof.relative_error(got, proof.outputs(whole.train(training), example)) < EXACT


FROZEN = {
    "forward hook": "hook",
    "parametrised PReLU": "computed from other parameters",
    "scaled ReLU": "does not act like",
}


@pytest.mark.parametrize("name", FROZEN)
def test_the_reason_is_said(name: str) -> None:
    graph = sc.trace(WRONG[name].build().double().eval(), WRONG[name].example())
    assert any(FROZEN[name] in reason for reason in graph.frozen.values()), graph.frozen


def test_layers_of_one_class_are_told_apart() -> None:
    """Only the layer with the flag keeps its inputs, whatever the other two have in common with it."""
    graph = sc.trace(WRONG["flag outside repr"].build().double().eval(), WRONG["flag outside repr"].example())
    cost = graph.cost({"a:out": [0], "b:out": [1]})
    assert (cost.layers["b"].inputs, cost.layers["b"].outputs, cost.layers["c"].inputs) == (1, 1, WIDTH)


@pytest.mark.parametrize("name", ["out_channels", "running_var", "width only in training", "rows by width"])
def test_only_what_is_concerned_is_frozen(name: str) -> None:
    """What the rules do not see is found by running, unit by unit."""
    graph = sc.trace(WRONG[name].build().double().eval(), WRONG[name].example())
    assert list(graph.units) == ["a:out"]
    assert "b" in graph.frozen


def test_attributes_and_state_after_tracing() -> None:
    image = torch.randn(1, 3, 16, 16)
    remembers = Remembers().eval()
    sc.trace(remembers, image)
    assert remembers.last is None
    assert remembers.seen == []
    recurrent = Recurrent().eval()
    first = copy.deepcopy(recurrent)(image)
    graph = sc.trace(recurrent, image)
    small = sc.prune(graph, sc.Plan.of(graph, {}))
    assert recurrent.state is None
    assert small.state is None
    assert torch.equal(recurrent(image), first)


def test_an_error_changes_nothing() -> None:
    class Fails(Remembers):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            raise ArithmeticError("on purpose")

    model = Fails().train()
    before = everything_in(model)
    with pytest.raises(PrunusError, match="on purpose"):
        sc.trace(model, torch.randn(1, 3, 16, 16))
    assert same(everything_in(model), before)


def test_a_plain_network_is_not_frozen() -> None:
    """The networks above are frozen for their oddities, and not for what they share."""
    assert list(sc.trace(Plain().eval(), torch.randn(1, 3, 16, 16)).units) == ["a:out", "b:out"]
