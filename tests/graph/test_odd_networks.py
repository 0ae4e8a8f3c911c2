"""Odd corners and networks that deceive: pruned exactly, left alone or refused, and never changed."""

from __future__ import annotations

import copy
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.errors import PlanError, PrunusError
from tests import proof
from tests.graph.checks import IMAGE, pruned_exactly, unchanged
from tests.graph.dags import randomised
from tests.graph.odd_nets import CORNERS, WIDTH, WRONG, Plain, Remembers, Stateful, Through

WITH_STREAMS = ("both", "gated shuffle", "residual conv", "shift and add", "eca")
MODES = [*((name, "select") for name in CORNERS), *((name, "coupled") for name in WITH_STREAMS)]


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_a_corner(name: str, mode: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = CORNERS[name]().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase):
            randomised(module)
    whole = proof.outputs(model, IMAGE)
    graph = pr.trace(model, IMAGE, streams=mode)
    for seed, share in ((0, 0.5), (1, 1.0)):
        keep = proof.random_keep(graph, seed, share, share)
        small = pruned_exactly(graph, keep)
    assert all(torch.equal(a, b) for a, b in zip(proof.outputs(model, IMAGE), whole, strict=True))
    pr.save(small, pr.Plan.of(graph, keep), tmp_path)
    assert proof.same_state(pr.load(tmp_path, copy.deepcopy(model)), small)


def test_an_unbatched_image() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).double()
    graph = pr.trace(model, IMAGE[0])
    assert graph.macs == 6 * 3 * 9 * 36 + 4 * 6 * 9 * 16
    pruned_exactly(graph, {"0:out": [0, 5]}, IMAGE[0])


class Squeezed(Through):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.b(self.a(x)).mean((2, 3), keepdim=True).squeeze())


def test_a_plain_squeeze_wants_two_channels() -> None:
    """squeeze() would take the channel axis away with the rest, so a cut to one channel is refused, and says where."""
    torch.manual_seed(0)
    model = Squeezed(nn.Identity()).double().eval()
    graph = pr.trace(model, IMAGE)
    pruned_exactly(graph, {"b:out": [1, 4]})
    with pytest.raises(PlanError, match=r"squeeze.*keep two"):
        pr.Plan.of(graph, {"b:out": [4]})


def test_a_large_batch_and_another_size_work_too() -> None:
    """A network traced on one shape runs on any other that the original runs on."""
    torch.manual_seed(0)
    model = CORNERS["both"]().double().eval()
    graph = pr.trace(model, IMAGE[:1, :, :4, :4])
    for image in (IMAGE, torch.randn(5, 3, 11, 7, dtype=torch.float64)):
        pruned_exactly(graph, proof.random_keep(graph, 0), image)


def test_no_warnings_of_our_own() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = pr.trace(CORNERS["both"]().eval(), IMAGE.float())
        pr.prune(graph, pr.Plan.of(graph, proof.random_keep(graph, 0)))


EXACT = 1e-12
PICTURE = torch.randn(2, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def keeps(graph: pr.ChannelGraph) -> list[dict[str, list[int]]]:
    """The last halves of all units, all but the first channel of each block, and unequal random cuts."""
    halves = {name: list(range(unit.width // 2, unit.width)) for name, unit in graph.units.items()}
    firsts = {}
    for name, unit in graph.units.items():
        first = {int(np.flatnonzero(unit.blocks == block)[0]) for block in range(unit.granule)}
        firsts[name] = [i for i in range(unit.width) if i not in first]
    return [halves, firsts, proof.random_keep(graph, 0, 0.2, 0.8)]


@pytest.mark.parametrize("name", WRONG)
def test_exact_or_refused_and_unchanged(name: str) -> None:
    torch.manual_seed(0)
    model = WRONG[name]().double().eval()
    graph = None
    with unchanged(model, ignoring="memory"), suppress(PrunusError):
        graph = pr.trace(model, PICTURE)
    for keep in [] if graph is None else keeps(graph):
        small = None
        with unchanged(model, ignoring="memory"), suppress(PrunusError):
            plan = pr.Plan.of(graph, graph.balance(keep))
            small = pr.prune(graph, plan)
        if small is not None:
            assert_exact(graph, plan, small)


def assert_exact(graph: pr.ChannelGraph, plan: pr.Plan, small: nn.Module) -> None:
    """In eval and in training mode, on copies, because a network may remember what it has seen."""
    for training in (False, True):
        got = proof.outputs(copy.deepcopy(small).train(training), PICTURE)
        with pr.zeroed(graph, plan):
            whole = copy.deepcopy(graph.model)
        assert proof.relative_error(got, proof.outputs(whole.train(training), PICTURE)) < EXACT


FROZEN = {
    "forward hook": "hook",
    "parametrised PReLU": "computed from other parameters",
    "scaled ReLU": "does not act like",
}


@pytest.mark.parametrize("name", FROZEN)
def test_the_reason_is_said(name: str) -> None:
    graph = pr.trace(WRONG[name]().double().eval(), PICTURE)
    assert any(FROZEN[name] in reason for reason in graph.frozen.values()), graph.frozen


def test_layers_of_one_class_are_told_apart() -> None:
    """Only the layer with the flag keeps its inputs, whatever the other two have in common with it."""
    graph = pr.trace(WRONG["flag outside repr"]().double().eval(), PICTURE)
    cost = graph.cost({"a:out": [0], "b:out": [1]})
    assert (cost.layers["b"].inputs, cost.layers["b"].outputs, cost.layers["c"].inputs) == (1, 1, WIDTH)


@pytest.mark.parametrize("name", ["out_channels", "running_var", "width only in training", "rows by width"])
def test_only_what_is_concerned_is_frozen(name: str) -> None:
    """What the rules do not see is found by running, unit by unit."""
    graph = pr.trace(WRONG[name]().double().eval(), PICTURE)
    assert list(graph.units) == ["a:out"]
    assert "b" in graph.frozen


def test_attributes_and_state_after_tracing() -> None:
    image = torch.randn(1, 3, 16, 16)
    remembers = Remembers().eval()
    graph = pr.trace(remembers, image)
    assert (remembers.last, remembers.seen, remembers.total.item()) == (None, [], 0)
    assert not remembers.a._forward_hooks and list(graph.units) == ["a:out", "b:out"]
    recurrent = Stateful().eval()
    first = copy.deepcopy(recurrent)(image)
    graph = pr.trace(recurrent, image)
    small = pr.prune(graph, pr.Plan.of(graph, {}))
    assert recurrent.state is None
    assert small.state is None
    assert torch.equal(recurrent(image), first)


def test_an_error_changes_nothing() -> None:
    class Fails(Remembers):
        def forward(self, x: Tensor) -> Any:
            super().forward(x)
            raise ArithmeticError("on purpose")

    model = Fails().train()
    with unchanged(model), pytest.raises(PrunusError, match="on purpose"):
        pr.trace(model, PICTURE.float())


def test_a_plain_network_is_not_frozen() -> None:
    """The networks above are frozen for their oddities, and not for what they share."""
    assert list(pr.trace(Plain().eval(), torch.randn(1, 3, 16, 16)).units) == ["a:out", "b:out"]
