"""Attention whose code takes the width of its input for that of its heads, or lends its weights to F.linear."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from tests import proof
from tests.exporting import onnx_error
from tests.graph.checks import pruned_exactly

HEADS, SIZE, SIDE = 4, 3, 4
WIDTH = HEADS * SIZE


class Tokens(nn.Module):
    """One layer for queries, keys and values; sizes are those of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.scale = HEADS, SIZE**-0.5
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C))


class Separate(Tokens):
    """Three layers, `size()`, and the stream itself is reshaped to its width."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        del self.qkv

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.size()
        x = x.view(B, SIDE, SIDE, C).transpose(1, 2).reshape(B, N, C)
        q = self.q(x).reshape(B, N, self.num_heads, C // self.num_heads).permute(0, 2, 1, 3)
        kv = self.kv(x).reshape(B, -1, 2, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, kv[0], kv[1])
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Pixels(nn.Module):
    """Convolutions, so that the channels are the second of four sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q, self.k, self.v = (nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(3))
        self.proj = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).unflatten(2, (SIDE, SIDE))
        B, C, H, W = x.shape
        q, k, v = (each(x).reshape(B, self.num_heads, C // self.num_heads, H * W) for each in (self.q, self.k, self.v))
        weights = (q.transpose(-2, -1) @ k).softmax(-1)
        x = (v @ weights.transpose(-2, -1)).reshape(B, C, H, W)
        return self.proj(x).flatten(2).transpose(1, 2)


class Lent(Tokens):
    """The bias is put together from three, and F.linear gets it with the layer's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.register_buffer("k_bias", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        bias = torch.cat((self.q_bias, self.k_bias, self.v_bias))
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=bias).reshape(B, N, 3, self.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class LentTwice(Lent):
    """The same weight for a second purpose."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.qkv.weight.mean()


class Wider(Tokens):
    """A number that is computed from the width, and not divided by the heads: nothing says what it counts."""

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, SIZE).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(B, N, C + 1 - 1))


def without_source() -> type[Tokens]:
    """A class whose code is in no file, so that it cannot be read."""
    found: dict[str, Any] = {"Tokens": Tokens}
    text = "class Made(Tokens):\n def forward(self, x):\n  B, N, C = x.shape\n"
    text += "  q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)\n"
    text += "  return self.proj(((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))\n"
    exec(text, found)
    return found["Made"]  # type: ignore[no-any-return]


class Network(nn.Module):
    """Patches, an attention and an MLP beside a stream, and a classifier of the mean over tokens."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, WIDTH, 2, stride=2), attention
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = x + self.attention(self.first(x))
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return self.head(x.mean(1))


IMAGE = torch.randn(2, 3, 2 * SIDE, 2 * SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
KINDS = [Tokens, Separate, Pixels, Lent]


def network(kind: Callable[[], nn.Module]) -> Network:
    torch.manual_seed(0)
    return Network(kind()).double().eval()


def heads_of(graph: prunus.ChannelGraph) -> str:
    (name,) = (u.name for u in graph.units.values() if any(r.module == "attention.proj" for r in u.readers))
    return name


def without_heads(model: Network, gone: list[int]) -> nn.Module:
    """The network in which a hook sets the channels of some heads to zero in front of the projection."""
    twin = copy.deepcopy(model)
    places = torch.tensor([head * SIZE + i for head in gone for i in range(SIZE)])
    axis = 1 if isinstance(twin.attention.proj, nn.Conv2d) else -1
    twin.attention.proj.register_forward_pre_hook(lambda module, args: (args[0].index_fill(axis, places, 0.0),))
    return twin


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_heads_go_where_code_takes_the_width_of_its_input(kind: type[nn.Module], streams: str) -> None:
    model = network(kind)
    graph = prunus.trace(model, IMAGE, streams=streams)
    assert graph.units[heads_of(graph)].width == HEADS
    small = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph): [0, 3]}))
    want = without_heads(model, [1, 2])
    for training in (False, True):
        got, expected = (proof.outputs(each.train(training), IMAGE) for each in (small, want))
        assert proof.relative_error(got, expected) < 1e-12
    assert small.attention.proj.weight.shape[:2] == (WIDTH, 2 * SIZE)
    assert isinstance(small.attention, kind)
    assert type(model.attention) is kind
    assert vars(model.attention).keys() == vars(kind()).keys()
    assert small.attention.num_heads == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_everything_at_once_and_a_second_time(kind: type[nn.Module], streams: str) -> None:
    model = network(kind)
    graph = prunus.trace(model, IMAGE, streams=streams)
    keep = {**proof.random_keep(graph, seed=1), heads_of(graph): [0, 2, 3]}
    plan, small = prunus.Plan.of(graph, keep), pruned_exactly(graph, keep, IMAGE)
    again = prunus.trace(small.eval(), IMAGE, streams=streams)
    later = prunus.Plan.of(again, {**proof.random_keep(again, seed=2), heads_of(again): [1, 2]})
    smaller, both = prunus.prune(again, later), prunus.prune(graph, plan.then(later))
    assert smaller.attention.num_heads == 2
    assert proof.relative_error(proof.outputs(both, IMAGE), proof.outputs(smaller, IMAGE)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_saved_copied_pickled_and_exported(kind: type[nn.Module], tmp_path: Any) -> None:
    model = network(kind).float()
    image = IMAGE.float()
    graph = prunus.trace(model, image)
    plan = prunus.Plan.of(graph, {heads_of(graph): [1, 2], "up:out": [0, 1, 2]})
    small = prunus.prune(graph, plan)
    want = proof.outputs(small, image)
    prunus.save(small, plan, tmp_path)
    loaded = prunus.load(tmp_path, network(kind).float())
    assert proof.same_state(loaded, small)
    file = io.BytesIO()
    torch.save(small, file)
    file.seek(0)
    for other in (loaded, copy.deepcopy(small), torch.load(file, weights_only=False)):
        assert torch.equal(proof.outputs(other, image)[0], want[0])
    program = torch.export.export(small, (image,)).module()
    assert proof.relative_error(proof.outputs(program, image), want) < 1e-5
    assert onnx_error(small, image, dynamo=True) < 1e-4


def test_sizes_of_images_stay_free() -> None:
    """What is fixed is the number of channels: images of another size have other numbers of tokens."""
    model = network(Tokens)
    graph = prunus.trace(model, IMAGE)
    small = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph): [0, 3]}))
    larger = torch.randn(3, 3, 10, 14, dtype=torch.float64)
    got, want = (proof.outputs(each, larger) for each in (small, without_heads(model, [1, 2])))
    assert proof.relative_error(got, want) < 1e-12


def test_biases_that_are_put_together_lose_the_same_heads() -> None:
    model = network(Lent)
    graph = prunus.trace(model, IMAGE)
    small = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph): [0, 3]})).attention
    rows = torch.tensor([0, 1, 2, 9, 10, 11])
    assert torch.equal(small.q_bias, model.attention.q_bias[rows])
    assert torch.equal(small.v_bias, model.attention.v_bias[rows])
    assert small.k_bias.shape == (2 * SIZE,)
    assert torch.equal(small.qkv.weight, model.attention.qkv.weight[torch.cat([rows, rows + WIDTH, rows + 2 * WIDTH])])


class Listed:
    """A base that keeps a list of its classes."""

    known: list[type] = []  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        Listed.known.append(cls)


class ListedTokens(Tokens, Listed):
    pass


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (LentTwice, "linear is called on parameters that are no layer's alone"),
        (Wider, "reshape does not work with fewer channels"),
        (without_source(), "reshape does not work with fewer channels"),
        (ListedTokens, "reshape does not work with fewer channels"),
    ],
)
def test_what_cannot_be_followed_keeps_its_heads(kind: type[nn.Module], reason: str) -> None:
    model = network(kind)
    graph = prunus.trace(model, IMAGE)
    assert not any(r.module == "attention.proj" for u in graph.units.values() for r in u.readers)
    reasons = [*graph.frozen.values(), *(why for _, why in graph.analysis.record.frozen)]
    assert any(reason in why for why in reasons), set(reasons)
    assert "up:out" in graph.units
    pruned_exactly(graph, proof.random_keep(graph, seed=1), IMAGE)
    assert Listed.known == [ListedTokens]


@pytest.mark.parametrize("kind", [Tokens, Separate, Pixels])
def test_heads_stay_where_only_the_input_becomes_narrower(kind: type[nn.Module]) -> None:
    """Channels of the stream are zeros wherever a norm or a layer reads them; the attention keeps its width."""
    model = network(kind)
    graph = prunus.trace(model, IMAGE, "coupled", norms="compensated")
    gone = [1, 2, 7]
    kept = [i for i in range(WIDTH) if i not in gone]
    small = prunus.prune(graph, prunus.Plan.of(graph, {"patches:out": kept}))
    want = copy.deepcopy(model)
    names = {
        "first",
        "second",
        "up",
        "head",
        "attention.qkv",
        "attention.q",
        "attention.kv",
        "attention.k",
        "attention.v",
    }
    for name, module in want.named_modules():
        if name in names:
            axis = 1 if isinstance(module, nn.Conv2d) else -1
            module.register_forward_pre_hook(lambda m, args, d=axis: (args[0].index_fill(d, torch.tensor(gone), 0.0),))
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
    assert small.patches.out_channels == len(kept)
    assert small.attention.num_heads == HEADS
