"""Pruned models on disk: what is saved is what is loaded, with a new trace or with a graph that is already proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import FileError
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


class Remembering(nn.Module):
    """Uses something of the first call in later ones: features, a width, or a buffer that it makes then."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 3), nn.Conv2d(6, 4, 1)
        self.where = where
        self.seen: dict[str, Tensor] = {}
        self.bank: list[Tensor] = []
        self.width: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        f = self.a(x)
        before = f
        if self.where == "dict":
            before, self.seen["f"] = self.seen.get("f", f), f.detach()
        elif self.where == "list":
            before, self.bank = (self.bank or [f])[-1], [*self.bank, f.detach()][-2:]
        elif self.where == "width" and self.width is None:
            self.width = f.shape[1]
        elif self.where == "missing width" and not hasattr(self, "first"):
            self.first = f.shape[1]
        elif self.where == "buffer" and not hasattr(self, "rows"):
            self.register_buffer("rows", torch.ones(x.shape[2] - 2, 1))
        if self.where == "buffer":
            f = f * self.rows
        elif "width" in self.where:
            f = f / (self.width or self.first)
        return self.c(torch.relu(self.b(torch.relu(f + before))))


@pytest.mark.parametrize("where", ["dict", "list", "buffer", "width", "missing width"])
def test_what_a_first_call_leaves_behind_is_not_saved(tmp_path: Path, where: str) -> None:
    """A new network has not been called: it has other units, or lacks a tensor."""
    torch.manual_seed(0)
    model = Remembering(where).eval()
    model(torch.randn(2, 3, 8, 8))
    graph = pr.trace(model, torch.randn(2, 3, 8, 8))
    plan = pr.Plan.of(graph, {"b:out": [0, 1, 4]})
    small = pr.prune(graph, plan)
    with pytest.raises(FileError, match="is not saved"):
        pr.save(small, plan, tmp_path / "small")
    assert not (tmp_path / "small").exists()


class Merging(nn.Linear):
    """eval() adds a low-rank product to the weight, train() takes it back, as loralib does."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.low, self.merged = nn.Parameter(torch.randn(8, 1)), False

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.low.detach() @ self.low.detach().T
            self.merged = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0 if self.merged else x @ self.low @ self.low.T)


def test_merged_weights_are_saved_as_they_are_trained(tmp_path: Path) -> None:
    """`load` returns a network in training mode, whose weights are not merged yet."""

    def network(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(5, 8), Merging(), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)
        ).double()

    x, model = torch.randn(4, 5, dtype=torch.float64), network(0).eval()
    graph = pr.trace(model, x)
    plan = pr.Plan.of(graph, {"3:out": [0, 2]})
    small = pr.prune(graph, plan)
    want = small(x)
    pr.save(small, plan, tmp_path)
    assert torch.equal(small(x), want) and small[1].merged
    loaded = pr.load(tmp_path, network(1))
    assert not loaded[1].merged
    assert torch.allclose(loaded.eval()(x), want, atol=1e-12) and loaded[1].merged
