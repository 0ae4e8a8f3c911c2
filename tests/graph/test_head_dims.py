"""Dimensions inside of heads: as many of each head, those of queries, keys and values together; the scale stays."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.graph.runner import GraphRunner
from prunus.tasks.partial_forward import PartialForward
from tests import proof
from tests.exporting import onnx_error

HEADS, SIZE, WIDTH, TOKENS = 2, 6, 12, 9
KEPT = [0, 1, 3, 5, 6, 8, 9, 11]  # of two heads of six: places 0, 1, 3, 5 of the first, 0, 2, 3, 5 of the second
GONE = [i for i in range(WIDTH) if i not in KEPT]
IMAGE = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Fused(nn.Module):
    """One layer for queries, keys and values; PyTorch chooses the scale. Position biases belong to whole heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, SIZE
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.zeros(HEADS, TOKENS, TOKENS))

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=self.table)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Written(Fused):
    """The products are written out, with a scale of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = SIZE**-0.5

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        weights = ((q * self.scale) @ k.transpose(-2, -1) + self.table).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Separate(Fused):
    """Three layers."""

    def __init__(self) -> None:
        super().__init__()
        del self.qkv
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        size = C // self.num_heads
        q, k, v = (each(x).view(B, N, self.num_heads, size).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=self.table)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class PyTorchs(nn.Module):
    """nn.MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Network(nn.Module):
    """Pixels as tokens, an attention beside a stream, and a classifier of their mean."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.stem, self.attention, self.head = nn.Conv2d(3, WIDTH, 1), attention, nn.Linear(WIDTH, 4)

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image).flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x)).mean(1))


KINDS = [Fused, Written, Separate, PyTorchs]


def network(kind: Any) -> Network:
    model = Network(kind())
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    return model.double().eval()


@torch.no_grad()
def by_zeros(model: Network, gone: list[int]) -> Network:
    """Rows of queries, keys and values, and columns of the projection, are zeros. Nothing else is changed."""
    twin = copy.deepcopy(model)
    inner: Any = twin.attention
    if isinstance(inner, Separate):
        parts = [(layer.weight, layer.bias, gone) for layer in (inner.q, inner.k, inner.v)]
    else:
        rows = [part * WIDTH + i for part in range(3) for i in gone]
        pytorchs = isinstance(inner, PyTorchs)
        inner = inner.attention if pytorchs else inner
        parts = [(inner.in_proj_weight, inner.in_proj_bias, rows)] if pytorchs else []
        parts = parts or [(inner.qkv.weight, inner.qkv.bias, rows)]
    for weight, bias, rows in parts:
        weight[rows] = 0
        bias[rows] = 0
    (inner.out_proj if hasattr(inner, "out_proj") else inner.proj).weight[:, gone] = 0
    return twin


def dims_of(graph: prunus.ChannelGraph) -> str:
    (name,) = (name for name, unit in graph.units.items() if unit.granule == HEADS)
    return name


@pytest.mark.parametrize("streams", ["select", "coupled"])
@pytest.mark.parametrize("kind", KINDS)
def test_dimensions_go_and_the_scale_stays(kind: Any, streams: Any) -> None:
    model = network(kind)
    graph = prunus.trace(model, IMAGE, streams, attention="dims")
    name = dims_of(graph)
    unit = graph.units[name]
    assert unit.width == WIDTH
    assert unit.blocks.tolist() == [0] * SIZE + [1] * SIZE
    plan = prunus.Plan.of(graph, {name: KEPT})
    small = prunus.prune(graph, plan)
    want = proof.outputs(by_zeros(model, GONE), IMAGE)
    assert proof.relative_error(proof.outputs(small, IMAGE), want) < 1e-12
    assert proof.relative_error(proof.outputs(model, IMAGE), want) > 1e-3  # the cut matters
    with prunus.zeroed(graph, plan):
        assert proof.relative_error(proof.outputs(graph.model, IMAGE), want) < 1e-12
    assert set(small.state_dict()) == set(model.state_dict())
    products = [layer for each, layer in graph.cost(plan).layers.items() if graph.layers[each].kind == "product"]
    assert [layer.macs for layer in products] == [TOKENS * TOKENS * len(KEPT)] * 2
    # The recorded calls of the original, with the modules of the pruned network.
    runner = GraphRunner(graph.traced_for(IMAGE), small)
    with torch.no_grad():
        assert proof.relative_error([runner.run(runner.bind(IMAGE))], want) < 1e-12
    forward = PartialForward(graph)
    forward.whole(IMAGE)
    with torch.no_grad():
        assert proof.relative_error([forward.without(name, KEPT)], want) < 1e-12


@pytest.mark.parametrize("kind", [Fused, PyTorchs])
def test_they_go_twice_and_are_saved_copied_and_exported(kind: Any, tmp_path: Any) -> None:
    model = network(kind)
    graph = prunus.trace(model, IMAGE, attention="dims")
    first = prunus.Plan.of(graph, {dims_of(graph): KEPT})
    again = prunus.trace(prunus.prune(graph, first), IMAGE, attention="dims")
    second = prunus.Plan.of(again, {dims_of(again): [0, 2, 4, 7]})
    small = prunus.prune(again, second)
    gone = [i for i in range(WIDTH) if i not in (KEPT[0], KEPT[2], KEPT[4], KEPT[7])]
    want = proof.outputs(by_zeros(model, gone), IMAGE)
    got = proof.outputs(small, IMAGE)
    assert proof.relative_error(got, want) < 1e-12
    both = first.then(second)
    prunus.save(small, both, tmp_path)
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    loaded = prunus.load(tmp_path, network(kind))
    for other in (loaded, copy.deepcopy(small), torch.load(file, weights_only=False), prunus.prune(graph, both)):
        assert torch.equal(proof.outputs(other, IMAGE)[0], got[0])
    assert prunus.Plan.from_json(both.to_json()) == both
    assert onnx_error(small, IMAGE, dynamo=True) < 1e-4


def test_heads_first_and_dimensions_of_the_others_later() -> None:
    """Of the second head, dimensions 0, 2 and 3 are left."""
    model = network(Fused)
    graph = prunus.trace(model, IMAGE)
    heads = prunus.prune(graph, prunus.Plan.of(graph, {dims_in(graph): [1]}))
    again = prunus.trace(heads, IMAGE, attention="dims")
    small = prunus.prune(again, prunus.Plan.of(again, {dims_in(again): [0, 2, 3]}))
    want = proof.outputs(by_zeros(model, [i for i in range(WIDTH) if i - SIZE not in (0, 2, 3)]), IMAGE)
    assert proof.relative_error(proof.outputs(small, IMAGE), want) < 1e-12
    assert small.attention.num_heads == 1
    assert small.attention.head_dim == 3
    with pytest.raises(prunus.PlanError, match="attention='heads'"):
        prunus.Plan.of(graph, {}).then(prunus.Plan.of(again, {}))


def dims_in(graph: prunus.ChannelGraph) -> str:
    (name,) = (u.name for u in graph.units.values() if any(r.module == "attention.proj" for r in u.readers))
    return name


class Computed(Fused):
    """The scale is computed from the number of dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5 + self.table).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(2))


class Literal(Fused):
    """The size of a head is a number in the code."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, 6).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Called(Fused):
    """The queries have no name, so the scale cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q + 0, k, v).transpose(1, 2).flatten(2))


class Normed(Fused):
    """Queries and keys are normalised within each head."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SIZE)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.norm(q), self.norm(k)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Computed, "number of channels is used as a value"),
        (Literal, "reshape fixes the number of channels, 6"),
        (Called, "computes its scale from the number of channels"),
        (Normed, "can only be removed all together"),
    ],
)
def test_what_cannot_follow_is_frozen(kind: Any, reason: str) -> None:
    graph = prunus.trace(network(kind), IMAGE, attention="dims")
    assert reason in graph.frozen["attention.qkv"]
    plan = prunus.Plan.of(graph, {"head:in": [0, 2, 3, 4]})
    assert prunus.prune(graph, plan).attention.qkv.out_features == 3 * WIDTH
