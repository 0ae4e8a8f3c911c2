"""From labels to units, each step against a plain computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.fx
from torch import Tensor, nn

import prunus as pr
from prunus.graph.discover import components
from prunus.graph.traced import named_modules
from prunus.graph.units import Places, Streams
from tests import proof
from tests.graph.checks import IMAGE, is_exact, pruned_exactly
from tests.nets import NETS


def test_components_are_numbered_by_their_first_node() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        count, edges = int(rng.integers(1, 30)), int(rng.integers(0, 30))
        a, b = rng.integers(0, count, edges), rng.integers(0, count, edges)
        least = np.arange(count)  # the least node that can be reached
        for _ in range(count):
            for i, j in zip(a, b, strict=True):
                least[i] = least[j] = min(least[i], least[j])
        got, number = components(count, a, b)
        assert number == len(np.unique(least))
        assert got.tolist() == np.searchsorted(np.unique(least), least).tolist()
    empty = np.zeros(0, np.int64)
    assert components(0, empty, empty)[1] == 0


@pytest.mark.parametrize("only", [None, "b"])
def test_places_of_channels(only: str | None) -> None:
    """Every occurrence of a channel is listed once, by layer, with its positions in order."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        channels = 12
        vectors = {name: rng.integers(-2, channels, int(rng.integers(1, 15))) for name in ("a", "b", "c")}
        some = np.sort(rng.choice(channels, 5, replace=False))
        want = {
            (name, int(c)): np.flatnonzero(vector == c).tolist()
            for name, vector in vectors.items()
            for c in some
            if (only is None or name == only) and (vector == c).any()
        }
        got = [
            ((name, int(some[i])), row.tolist())
            for name, which, positions in (Places(vectors, channels).of(some, only) if want else [])
            for i, row in zip(which, positions, strict=True)
        ]
        assert len(got) == len(want) and dict(got) == want


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_a_channel_is_alive_while_a_layer_reads_it(name: str, streams: Streams) -> None:
    """Of a unit that keeps one channel per block, readers read these, and writers keep what some layer reads."""
    torch.manual_seed(0)
    case = NETS[name]
    graph = pr.trace(case.build().eval(), case.example(), streams)
    for unit in graph.units.values():
        kept = [int(np.flatnonzero(unit.blocks == block)[0]) for block in range(unit.granule)]
        live = graph.liveness({unit.name: kept})
        numbers = graph.grouped.channels[unit.name]
        frozen = set(graph.grouped.frozen)
        gone = {int(c) for i, c in enumerate(numbers) if i not in kept}
        readers = {reader.module for reader in unit.readers}
        for channel in gone:
            others = [n for n, vector in graph.analysis.reads.items() if channel in vector and n not in readers]
            assert live.alive[channel] == bool(others or channel in frozen)
        assert live.alive[numbers[kept]].all()


def test_modules_are_walked_as_torch_does() -> None:
    model = NETS["residual"].build()
    model.again = model.stem  # a module with two names is listed once
    assert named_modules(model) == list(model.named_modules())


class TokenMixer(nn.Module):
    """A block of an MLP-Mixer: `t1` and `t2` mix the 16 positions of each channel, `c1` and `c2` the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.n1, self.n2 = nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8), nn.LayerNorm(8)
        self.t1, self.t2 = nn.Linear(16, 12), nn.Linear(12, 16)
        self.c1, self.c2, self.head = nn.Linear(8, 10), nn.Linear(10, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.t2(self.t1(self.n1(x).transpose(1, 2)).sigmoid()).transpose(1, 2)
        x = x + self.c2(self.c1(self.n2(x)).sigmoid())
        return self.head(x.mean(1))


def test_a_layer_that_keeps_its_inputs_still_loses_outputs() -> None:
    torch.manual_seed(0)
    widths = {"t1:out": (12, 1), "c1:in": (8, 1), "c1:out": (10, 1), "head:in": (8, 1)}
    graph = is_exact(TokenMixer(), IMAGE, widths)
    small = pruned_exactly(graph, {"t1:out": [2, 3, 11]})
    assert (small.t1.weight.shape, small.t2.weight.shape) == ((3, 16), (16, 3))
    assert graph.frozen["t2"] == "add joins channels of different axes"


class OtherHead(nn.Module):
    """Another head for another argument, which the example does not give; and a layer that no code names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 4, 1)
        self.other, self.left_over = nn.Conv2d(8, 4, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor, other: bool = False) -> Tensor:
        h = torch.relu(self.a(x))
        return self.other(h) if other else self.c(torch.relu(self.b(h)))


def test_what_a_layer_could_read_with_other_arguments_is_kept() -> None:
    graph = pr.trace(OtherHead().eval(), torch.randn(1, 3, 8, 8))
    assert list(graph.units) == ["b:out"]
    assert graph.frozen["a"] == "other, which no trace reaches, could read it"
    small = pr.prune(graph, pr.Plan.of(graph, {"b:out": [1]}))
    assert small(torch.randn(1, 3, 8, 8), other=True).shape == (1, 4, 6, 6)


# -- channels that cannot be removed evenly


class Shuffled(nn.Module):
    """As in ShuffleNetV2: one half of the channels goes on as it is, and is mixed with the other half."""

    def __init__(self, inputs: int, half: int, down: bool) -> None:
        super().__init__()
        each, stride = (inputs, 2) if down else (half, 1)
        self.skip = nn.Sequential(nn.Conv2d(each, each, 3, 2, 1, groups=each), nn.Conv2d(each, half, 1), nn.ReLU())
        self.inner = nn.Sequential(
            *(nn.Conv2d(each, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()),
            *(nn.Conv2d(half, half, 3, stride, 1, groups=half), nn.Conv2d(half, half, 1), nn.ReLU()),
        )
        if not down:
            self.skip = nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        kept, worked = (x, x) if len(self.skip) else x.chunk(2, dim=1)
        x = torch.cat([self.skip(kept), self.inner(worked)], dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, -1, h, w)


def shuffled() -> nn.Module:
    blocks = (Shuffled(8, 6, True), Shuffled(12, 6, False), Shuffled(12, 6, False))
    torch.manual_seed(0)
    for norm in (block.inner[1] for block in blocks):
        nn.init.normal_(norm.bias)  # type: ignore[arg-type]
    head = (nn.Conv2d(12, 10, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 4))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, *head).double().eval()


OUTPUTS = {"0:out": 8, "1.inner.0:out": 6, "2.inner.0:out": 6, "3.inner.0:out": 6, "4:out": 10}
INPUTS = {"2.inner.0:in": 6, "3.inner.0:in": 6, "4:in": 12}  # of the half that each block works on, and of the end


@pytest.mark.parametrize(("streams", "units"), [("select", OUTPUTS | INPUTS), ("coupled", OUTPUTS)])
def test_readers_select_what_a_shuffle_keeps(streams: Streams, units: dict[str, int], tmp_path: Path) -> None:
    """After a shuffle, each half of a tensor has channels of several layers. No plan could keep all halves equal, so
    these layers keep their filters; channels inside of a block may go."""
    model = shuffled()
    graph = pr.trace(model, IMAGE, streams)
    assert {name: unit.width for name, unit in graph.units.items()} == units
    for seed in range(2):
        keep = proof.random_keep(graph, seed, 0.2, 0.8)
        first = pr.Plan.of(graph, keep)
        small = pruned_exactly(graph, keep)
        assert graph.cost(keep).macs * 2 == proof.counted_macs(small, IMAGE)
        written = [small[i].inner[4].out_channels for i in (1, 2, 3)]  # type: ignore[index]
        assert [*written, small[1].skip[1].out_channels] == [6, 6, 6, 6]  # type: ignore[index]
        again = pr.trace(small, IMAGE, streams)
        keep = proof.random_keep(again, seed, 0.2, 0.8)
        second = pr.Plan.of(again, keep)
        smaller = pruned_exactly(again, keep)
        pr.save(smaller, first.then(second), tmp_path / str(seed))
        assert proof.same_state(pr.load(tmp_path / str(seed), shuffled()), smaller)
