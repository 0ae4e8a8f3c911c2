"""Attention: heads are removed whole, tokens are not channels, and numbers that modules keep follow."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.graph.runner import GraphRunner
from tests import proof
from tests.graph.checks import pruned_exactly

HEADS, SIZE, WIDTH, TOKENS = 4, 3, 10, 6


class Attention(nn.Module):
    """Four heads of three channels each, for tokens of ten; the ways to write it are `way`."""

    def __init__(self, way: str = "fused") -> None:
        super().__init__()
        self.way, self.num_heads, self.head_dim, self.inner = way, HEADS, SIZE, HEADS * SIZE
        self.qkv = nn.Linear(WIDTH, 3 * self.inner)
        self.proj = nn.Linear(self.inner, WIDTH)
        self.table = nn.Parameter(torch.randn(2 * TOKENS, HEADS))
        self.bias_shape = (TOKENS, TOKENS, HEADS)
        places = torch.arange(TOKENS)
        self.register_buffer("places", places[:, None] - places[None] + TOKENS)
        self.temperature = nn.Parameter(1 + torch.rand(HEADS, 1, 1))
        self.norm = nn.LayerNorm(SIZE)

    def bias(self) -> Tensor:
        return self.table[self.places.view(-1)].view(self.bias_shape).permute(2, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv, way = self.qkv(x), self.way
        if way == "einsum":
            q, k, v = (part.view(b, n, self.num_heads, -1) for part in qkv.chunk(3, -1))
            weights = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
            return self.proj(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2))
        if way == "heads first":  # [H, 3, D]
            q, k, v = qkv.view(b, n, self.num_heads, 3 * SIZE).transpose(1, 2).split([SIZE, SIZE, SIZE], 3)
        else:
            q, k, v = qkv.reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        if way == "fused":
            x = F.scaled_dot_product_attention(q, k, v)
        elif way == "bias":
            x = F.scaled_dot_product_attention(self.norm(q), self.norm(k), v, attn_mask=self.bias()[None])
        elif way == "channels":  # attention among the channels of a head
            q, k = F.normalize(q.transpose(-2, -1), dim=-1), F.normalize(k.transpose(-2, -1), dim=-1)
            x = (((q @ k.transpose(-2, -1)) * self.temperature).softmax(-1) @ v.transpose(-2, -1)).transpose(-2, -1)
        else:
            x = (q @ k.transpose(-2, -1) * SIZE**-0.5).softmax(-1) @ v
        x = x.transpose(1, 2)
        if way == "width of the input":
            return self.proj(F.pad(x, (0, 0)).reshape(b, n, c + 2))
        return self.proj(x.reshape(b, n, self.num_heads * self.head_dim if way == "product" else self.inner))


class Transformer(nn.Module):
    """A class token, positions, one block, and a classifier on the class token."""

    def __init__(self, way: str = "fused") -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, TOKENS, WIDTH))
        self.first, self.attention = nn.LayerNorm(WIDTH), Attention(way)
        self.second, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = x + self.attention(self.first(x))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return self.head(self.last(x)[:, 0])


IMAGE = torch.randn(2, 3, 2, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WAYS = ["fused", "products", "product", "heads first", "einsum", "bias", "channels"]


def network(way: str) -> Transformer:
    torch.manual_seed(0)
    return Transformer(way).double().eval()


def heads_of(graph: prunus.ChannelGraph) -> str:
    (name,) = (u.name for u in graph.units.values() if any(r.module == "attention.proj" for r in u.readers))
    return name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_heads_are_removed_whole(way: str, streams: str) -> None:
    """Keeping heads 0 and 3 is the network whose projection has zeros for the channels of heads 1 and 2."""
    model = network(way)
    graph = prunus.trace(model, IMAGE, streams=streams)
    name = heads_of(graph)
    unit = graph.units[name]
    assert unit.width == HEADS
    assert {(r.module, r.inputs.shape) for r in unit.readers} == {("attention.proj", (HEADS, SIZE))}
    assert ("attention.qkv", (HEADS, 3 * SIZE)) in {(w.module, w.outputs.shape) for w in unit.writers}
    small = prunus.prune(graph, prunus.Plan.of(graph, {name: [0, 3]}))
    want = copy.deepcopy(model)
    with torch.no_grad():
        want.attention.proj.weight[:, SIZE : 3 * SIZE] = 0
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
    assert small.attention.qkv.weight.shape == (2 * 3 * SIZE, WIDTH)
    assert small.attention.proj.weight.shape == (WIDTH, 2 * SIZE)
    assert type(small.attention.num_heads) is type(small.attention.inner) is int
    assert small.attention.num_heads == 2
    if way in ("fused", "products", "bias", "channels"):
        assert small.attention.inner == 2 * SIZE
    if way == "bias":
        assert torch.equal(small.attention.table, model.attention.table[:, [0, 3]])
        assert small.attention.bias_shape == (TOKENS, TOKENS, 2)
    if way == "channels":
        assert torch.equal(small.attention.temperature, model.attention.temperature[[0, 3]])
    assert model.attention.num_heads == HEADS
    assert model.attention.bias_shape == (TOKENS, TOKENS, HEADS)


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_everything_at_once_is_exact_and_can_be_pruned_again(streams: str) -> None:
    model = network("bias")
    graph = prunus.trace(model, IMAGE, streams=streams)
    keep = proof.random_keep(graph, seed=1)
    plan = prunus.Plan.of(graph, keep)
    small = pruned_exactly(graph, keep, IMAGE)
    again = prunus.trace(small, IMAGE, streams=streams)
    later = prunus.Plan.of(again, proof.random_keep(again, seed=2))
    both = prunus.prune(graph, plan.then(later))
    smaller = prunus.prune(again, later)
    assert proof.relative_error(proof.outputs(both, IMAGE), proof.outputs(smaller, IMAGE)) < 1e-12


@pytest.mark.parametrize("way", WAYS)
def test_products_are_counted(way: str) -> None:
    """Queries by keys and weights by values, of each head: tokens x tokens x size, or size x size x tokens."""
    model = network(way)
    graph = prunus.trace(model, IMAGE)
    products = [layer for layer in graph.layers.values() if layer.kind == "product"]
    each = SIZE * SIZE * TOKENS if way == "channels" else TOKENS * TOKENS * SIZE
    assert [(layer.macs, layer.params) for layer in products] == [(HEADS * each, 0)] * 2
    assert graph.macs * len(IMAGE) == proof.counted_macs(model, IMAGE)
    plan = prunus.Plan.of(graph, {heads_of(graph): [0, 3], "up:out": [1, 2, 5]})
    cost = graph.cost(plan)
    assert sum(cost.layers[layer.name].macs for layer in products) == 2 * 2 * each
    assert cost.macs * len(IMAGE) == proof.counted_macs(prunus.prune(graph, plan), IMAGE)
    assert not any(layer.name in graph.prunable for layer in products)


@torch.no_grad()
@pytest.mark.parametrize("way", WAYS)
def test_the_graph_runs_with_the_heads_of_the_pruned_network(way: str) -> None:
    """Numbers in its calls are those of the model that it runs with, as in the repair."""
    model = network(way)
    graph = prunus.trace(model, IMAGE)
    small = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph): [0, 3]}))
    runner = GraphRunner(graph.analysis.traced, small)
    assert proof.relative_error([runner.run(runner.bind(IMAGE))], proof.outputs(small, IMAGE)) < 1e-12


def test_a_class_token_has_the_channels_of_the_patches() -> None:
    """Without norms, the stream can be cut: token, positions, patches and both layers lose the same channels."""
    model = network("fused")
    model.first = model.second = model.last = nn.Identity()
    graph = prunus.trace(model, IMAGE, streams="coupled")
    unit = graph.units["patches:out"]
    assert {w.module for w in unit.writers} == {"patches", "attention.proj", "down"}
    assert {r.module for r in unit.readers} == {"attention.qkv", "up", "head"}
    small = prunus.prune(graph, prunus.Plan.of(graph, {"patches:out": [1, 2, 5]}))
    assert torch.equal(small.token, model.token[..., [1, 2, 5]])
    assert torch.equal(small.positions, model.positions[..., [1, 2, 5]])
    dead = [c for c in range(WIDTH) if c not in (1, 2, 5)]
    want = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (want.attention.qkv, want.up, want.head):
            layer.weight[:, dead] = 0
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12


def test_layers_read_parts_of_a_stream_of_tokens() -> None:
    graph = prunus.trace(network("fused"), IMAGE)
    assert {"attention.qkv:in", "attention.qkv:out", "up:in", "up:out", "head:in"} == set(graph.units)
    coupled = prunus.trace(network("fused"), IMAGE, streams="coupled")
    assert set(coupled.units) == {"attention.qkv:out", "up:out"}
    assert coupled.frozen["patches"] == "LayerNorm first normalises over channels"


def test_code_that_takes_the_width_of_its_input_keeps_its_heads() -> None:
    model = network("width of the input")
    graph = prunus.trace(model, IMAGE)
    assert not any(r.module == "attention.proj" for u in graph.units.values() for r in u.readers)
    assert "reshape does not work with fewer channels" in graph.frozen["attention.qkv"]
    assert "up:out" in graph.units


def test_plans_restore_numbers_on_loading(tmp_path: object) -> None:
    model = network("bias")
    graph = prunus.trace(model, IMAGE)
    plan = prunus.Plan.of(graph, {heads_of(graph): [1], "up:out": [0, 1, 2]})
    small = prunus.prune(graph, plan)
    prunus.save(small, plan, tmp_path)
    loaded = prunus.load(tmp_path, network("bias"))
    assert (loaded.attention.num_heads, loaded.attention.bias_shape) == (1, (TOKENS, TOKENS, 1))
    assert proof.same_state(loaded, small)


def test_one_head_gives_its_values_away_but_keeps_queries_and_keys() -> None:
    """Self-attention over pixels, as in SAGAN: the values' channels pass the product, those of queries and keys end."""

    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 8, 1)
            self.q, self.k, self.v = nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 6, 1)
            self.out = nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            q, k, v = self.q(x).flatten(2), self.k(x).flatten(2), self.v(x).flatten(2)
            weights = torch.bmm(q.transpose(1, 2), k).softmax(-1)
            return self.out(torch.bmm(v, weights.transpose(1, 2)).view(x.shape[0], -1, x.shape[2], x.shape[3]))

    torch.manual_seed(0)
    model = Pixels().double()
    graph = prunus.trace(model, IMAGE)
    assert {"first:out", "v:out"} == set(graph.units)
    assert "bmm runs over all channels" in graph.frozen["q"]
    pruned_exactly(graph, {"v:out": [1, 4], "first:out": [0, 7]}, IMAGE)


def test_a_selection_among_equal_labels_stays() -> None:
    """A stream of one channel, padded with zeros, has one label at every place: what was selected is selected again."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 5, 1)
            self.last = nn.Conv2d(5, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last(self.second(x) + F.pad(x, (0, 0, 0, 0, 1, 2)))

    torch.manual_seed(0)
    image = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    graph = prunus.trace(Padded().double().eval(), image)
    small = prunus.prune(graph, prunus.Plan.of(graph, {"second:in": [0], "last:in": [0, 3]}))
    again = prunus.trace(small, image)
    same = prunus.prune(again, prunus.Plan.of(again, {}))
    assert proof.relative_error(proof.outputs(same, image), proof.outputs(small, image)) < 1e-12
