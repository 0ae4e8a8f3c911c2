"""Pruned models on disk: what is saved is what is loaded, with a new trace or with a graph that is already proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import prunus as pr
from tests import proof
from tests.graph.checks import IMAGE, unchanged
from tests.nets import Residual, TwoImages

FLOAT = IMAGE.float()


def residual(seed: int = 0) -> Residual:
    torch.manual_seed(seed)
    return Residual().eval()


@pytest.mark.parametrize(
    "example",
    [
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8)),
        {"y": torch.zeros(1, 2, 8, 8), "x": torch.zeros(1, 3, 8, 8)},
    ],
)
def test_files_remember_the_example(example: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph = pr.trace(TwoImages().eval(), example)
    plan = pr.Plan.of(graph, {"a:out": [0, 3], "b:out": [1, 2, 5]})
    small = pr.prune(graph, plan)
    pr.save(small, plan, tmp_path / "deep" / "folder")
    assert sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir()) == ["model.safetensors", "plan.json"]
    torch.manual_seed(1)
    fresh = TwoImages()
    with unchanged(fresh):
        loaded = pr.load(tmp_path / "deep" / "folder", fresh)
    assert isinstance(loaded, TwoImages)
    assert proof.same_state(loaded, small)


def test_saving_again_replaces(tmp_path: Path) -> None:
    graph = pr.trace(residual(), FLOAT)
    for kept in ([0, 1, 2], [5]):
        plan = pr.Plan.of(graph, {"conv1:out": kept})
        small = pr.prune(graph, plan)
        pr.save(small, plan, tmp_path)
    loaded = pr.load(tmp_path, residual(3))
    assert proof.same_state(loaded, small) and loaded.get_parameter("conv1.weight").shape[0] == 1


@pytest.mark.parametrize("place", [0.3, 0.6, 0.99])
def test_a_flipped_bit_is_noticed(place: float, tmp_path: Path) -> None:
    graph = pr.trace(residual(), FLOAT)
    plan = pr.Plan.of(graph, {"conv1:out": [0, 5]})
    pr.save(pr.prune(graph, plan), plan, tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")  # the tensors follow a header
    content[start + int(place * (len(content) - start))] ^= 0x10
    (tmp_path / "model.safetensors").write_bytes(bytes(content))
    with pytest.raises(pr.FileError, match=r"model\.safetensors is damaged"):
        pr.load(tmp_path, residual())


def test_retrained_weights_are_what_is_loaded(tmp_path: Path) -> None:
    graph = pr.trace(residual(), FLOAT)
    plan = pr.Plan.of(graph, {"conv1:out": [0, 5], "conv1:in": [1]})
    small = pr.prune(graph, plan)
    proof.train_step(small, torch.randn(4, 3, 8, 8))
    pr.save(small, plan, tmp_path)
    loaded = pr.load(tmp_path, residual(4))
    assert proof.same_state(loaded, small)
    assert not torch.equal(loaded.get_parameter("stem.weight"), graph.model.get_parameter("stem.weight"))


@pytest.mark.parametrize("mode", ["select", "coupled"])
def test_a_graph_that_is_proven_is_not_proven_again(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = pr.trace(residual(), FLOAT, streams=mode)
    plan = pr.Plan.of(graph, proof.random_keep(graph, 1))
    small = pr.prune(graph, plan).train()
    proof.train_step(small, FLOAT)
    pr.save(small, plan, tmp_path)
    plainly = pr.load(tmp_path, residual(2))
    runs: list[None] = []
    graph.model.register_forward_pre_hook(lambda module, args: runs.append(None))
    with unchanged(graph.model):
        loaded = pr.load(tmp_path, graph.model, graph=graph)
    assert not runs  # neither traced nor compared
    assert proof.same_state(loaded, plainly)
    assert torch.equal(proof.outputs(loaded.eval(), FLOAT)[0], proof.outputs(plainly.eval(), FLOAT)[0])
