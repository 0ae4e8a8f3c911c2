"""Random networks: what is pruned equals what is zeroed, whatever the network looks like.

`PRUNUS_EXAMPLES=20000` looks further than the suite's 300, and elsewhere each time.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import prunus as pr
from tests import proof
from tests.graph.dags import BATCH, Dag, dags

EXAMPLES = int(os.environ.get("PRUNUS_EXAMPLES", "300"))
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize="PRUNUS_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
IMAGE = torch.randn(BATCH, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
EXACT = 1e-12


def exact(got: list[torch.Tensor], want: list[torch.Tensor], scale: list[torch.Tensor]) -> None:
    """Equal to 1e-12 of the larger of the two outputs, the zeroed and the whole one."""
    for one, other, whole in zip(got, want, scale, strict=True):
        assert one.shape == other.shape
        size = max(other.abs().max().item(), whole.abs().max().item(), 1e-6)
        assert (one - other).abs().max().item() <= EXACT * size


@FUZZ
@given(dags(), st.sampled_from(("select", "coupled")), st.sampled_from(("whole", "compensated")), st.integers(0, 2**16))
def test_pruned_is_zeroed(net: Dag, mode: str, norms: str, seed: int) -> None:
    net.eval()
    note(f"streams={mode!r}, norms={norms!r}, seed={seed}\n{net}")
    whole = proof.outputs(net, IMAGE)
    before = copy.deepcopy(net.state_dict())
    graph = pr.trace(net, IMAGE, streams=mode, norms=norms)
    keep = proof.random_keep(graph, seed, 0.2, 0.7)
    note(f"keep {keep}")
    plan = pr.Plan.of(graph, keep)
    with pr.zeroed(graph, plan):
        zeroed = proof.outputs(net, IMAGE)
    with proof.masked(graph.model, graph, keep):
        exact(proof.outputs(graph.model, IMAGE), zeroed, whole)
    small = pr.prune(graph, plan)
    exact(proof.outputs(small, IMAGE), zeroed, whole)

    cost = graph.cost(plan)
    assert cost.macs * BATCH == proof.counted_macs(small, IMAGE)
    assert graph.macs * BATCH == proof.counted_macs(net, IMAGE)
    assert cost.params == weights_of(small, (name for name in cost.layers if graph.layers[name].kind != "product"))
    assert small.state_dict().keys() <= net.state_dict().keys()
    # What can be done with a pruned network, in turns: most of the time of this test is spent here.
    if seed % 4 == 0:
        save_and_load(net, small, plan)
    elif seed % 4 == 1:
        trains_like_the_whole(net, small)
    elif seed % 4 == 2:
        prune_again(small, graph, plan, {"streams": mode, "norms": norms}, seed)
    else:  # selection layers of a first cut must not fool a second one that treats streams the other way
        other = "coupled" if mode == "select" else "select"
        prune_again(small, graph, None, {"streams": other, "norms": norms}, seed)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def weights_of(model: torch.nn.Module, layers: Iterable[str]) -> int:
    """Weights of these layers (or bare parameters that work as one), those that two share counted once. Blurs have
    none: their filters are fixed."""
    modules, tensors = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    names = [name for name in layers if not name.startswith("conv2d")]  # the calls of blurs, and not of layers
    found = [modules[name].weight if name in modules else tensors[name] for name in names]  # also a computed weight
    return sum({id(tensor): tensor.numel() for tensor in found}.values())


def prune_again(
    small: torch.nn.Module, graph: pr.ChannelGraph, first: pr.Plan | None, ways: dict[str, Any], seed: int
) -> None:
    """A second round is exact. With a first plan, both plans are one."""
    again = pr.trace(small, IMAGE, **ways)
    second = pr.Plan.of(again, proof.random_keep(again, seed + 1))
    smaller = pr.prune(again, second)
    want = proof.outputs(smaller, IMAGE)
    with pr.zeroed(again, second):
        exact(want, proof.outputs(small, IMAGE), proof.outputs(smaller, IMAGE))
    if first is not None:
        composed = first.then(second)
        direct = pr.prune(graph, composed)
        assert proof.same_state(direct, smaller)
        exact(proof.outputs(direct, IMAGE), want, want)
        assert pr.Plan.from_json(composed.to_json()).to_json() == composed.to_json()


def save_and_load(net: Dag, small: torch.nn.Module, plan: pr.Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pr.save(small, plan, Path(folder) / "net")
        loaded = pr.load(Path(folder) / "net", copy.deepcopy(net))
    assert proof.same_state(loaded, small)
    want = proof.outputs(small, IMAGE)
    for same in (loaded, copy.deepcopy(small)):
        assert all(torch.equal(a, b) for a, b in zip(proof.outputs(same, IMAGE), want, strict=True))


def trains_like_the_whole(net: Dag, small: torch.nn.Module) -> None:
    """A gradient reaches the same parameters as in the whole network, where that one trains at all.

    (It does not where a program works in place on what the backward pass needs.)
    """
    try:
        wanted = proof.train_step(copy.deepcopy(net), IMAGE)
    except (RuntimeError, ValueError):
        return
    assert proof.train_step(copy.deepcopy(small), IMAGE) == wanted & set(dict(small.named_parameters()))


@settings(FUZZ, max_examples=max(EXAMPLES // 10, 1))
@given(dags(), st.integers(0, 2**16))
def test_one_unit_alone(net: Dag, seed: int) -> None:
    """Each unit on its own, cut to the bone: one channel a block."""
    net.eval()
    note(f"seed={seed}\n{net}")
    graph = pr.trace(net, IMAGE)
    whole = proof.outputs(net, IMAGE)
    for name, kept in proof.random_keep(graph, seed, 1.0, 1.0).items():
        note(f"keep {name} {kept}")
        plan = pr.Plan.of(graph, {name: kept})
        with pr.zeroed(graph, plan):
            zeroed = proof.outputs(net, IMAGE)
        exact(proof.outputs(pr.prune(graph, plan), IMAGE), zeroed, whole)
        assert graph.cost(plan).macs < graph.macs or graph.units[name].width == graph.units[name].granule


@settings(FUZZ, max_examples=max(EXAMPLES // 5, 1))
@given(dags(deceiving=True), st.sampled_from(("select", "coupled")), st.integers(0, 2**16))
def test_deceiving_networks(net: Dag, mode: str, seed: int) -> None:
    """Hooks, patched layers and widths in disguise: exact or refused, and the network is as it was."""
    net.eval()
    note(f"streams={mode!r}, seed={seed}\n{net}")
    whole = proof.outputs(net, IMAGE)
    before = copy.deepcopy(net.state_dict())
    try:
        graph = pr.trace(net, IMAGE, streams=mode)
        plan = pr.Plan.of(graph, proof.random_keep(graph, seed, 0.2, 0.7))
        small = pr.prune(graph, plan)
    except pr.PrunusError as error:
        note(f"refused: {error}")
    else:
        with pr.zeroed(graph, plan):
            zeroed = proof.outputs(net, IMAGE)
        exact(proof.outputs(small, IMAGE), zeroed, whole)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(torch.equal(a, b) for a, b in zip(proof.outputs(net, IMAGE), whole, strict=True))
