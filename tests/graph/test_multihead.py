"""nn.MultiheadAttention: heads are removed whole. PyTorch's own module, with zeros in its output projection for the
channels of the heads that are gone, says what is right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.scoring.gradients import collect_gradients
from tests import proof
from tests.exporting import onnx_error
from tests.graph.checks import pruned_exactly, unchanged

HEADS, SIZE, TOKENS = 4, 3, 6
WIDTH = HEADS * SIZE
IMAGE = torch.randn(2, 3, 2, 2 * TOKENS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(TOKENS, TOKENS).triu(1).bool()
PADDING = torch.tensor([[False] * 5 + [True], [False] * 3 + [True] * 3])
NUMBERS = torch.linspace(-1, 1, TOKENS * TOKENS, dtype=torch.float64).view(TOKENS, TOKENS)

Attend = Callable[[nn.MultiheadAttention, Tensor, Tensor], Tensor]


class Tokens(nn.Module):
    """Two sets of tokens from an image, an attention, and a layer that reads the sum."""

    def __init__(self, attend: Attend, **settings: Any) -> None:
        super().__init__()
        self.attend = attend
        self.patches, self.context = nn.Conv2d(3, WIDTH, 2, stride=2), nn.Conv2d(3, settings.get("kdim", WIDTH), 2, 2)
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True, **settings})
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = x + self.attend(self.attention, self.norm(x), self.context(image).flatten(2).transpose(1, 2))
        return self.head(x)


def itself(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    return attention(x, x, x, need_weights=False)[0]


def with_weights(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    return attention(x, x, x)[0]


def another(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    return attention(x, other, other, need_weights=False)[0]


def tokens_first(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return attention(x, x, x, need_weights=False)[0].transpose(0, 1)


def masked_with(**masks: Any) -> Attend:
    return lambda attention, x, other: attention(x, x, x, **masks)[0]


def one_image(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    last = x[1]
    return torch.stack([attention(x[0], x[0], x[0])[0], attention(last, last, last, need_weights=False)[0]])


CASES: dict[str, tuple[Attend, dict[str, Any]]] = {
    "itself": (itself, {}),
    "with weights that nobody uses": (with_weights, {}),
    "without biases": (itself, {"bias": False}),
    "tokens first": (tokens_first, {"batch_first": False}),
    "one image": (one_image, {}),
    "another": (another, {}),
    "another, without biases": (another, {"bias": False}),
    "weights of their own": (another, {"kdim": 7, "vdim": 7}),
    "weights of their own, without biases": (another, {"kdim": 7, "vdim": 7, "bias": False}),
    "causal": (masked_with(attn_mask=CAUSAL, is_causal=True, need_weights=False), {}),
    "mask": (masked_with(attn_mask=CAUSAL), {}),
    "mask of numbers": (masked_with(attn_mask=NUMBERS, need_weights=False), {}),
    "padding": (masked_with(key_padding_mask=PADDING, need_weights=False), {}),
    "mask and padding": (masked_with(attn_mask=CAUSAL, key_padding_mask=PADDING), {}),
    "dropout": (itself, {"dropout": 0.2}),
}


CROSSING = ("another", "weights of their own")


def randomised(model: nn.Module) -> Any:
    """No biases of zeros, which would hide that they are cut."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return model.double().eval()


def network(case: str) -> Any:
    attend, settings = CASES[case]
    return randomised(Tokens(attend, **settings))


def without_heads(model: nn.Module, gone: list[int], name: str = "attention") -> Any:
    """The network, with zeros where its output projection reads these heads."""
    zeroed = copy.deepcopy(model)
    weight = zeroed.get_submodule(name).out_proj.weight
    with torch.no_grad():
        weight.view(len(weight), -1, SIZE)[:, gone] = 0
    return zeroed


def heads_of(graph: prunus.ChannelGraph, reader: str = "attention.out_proj") -> Any:
    (unit,) = (u for u in graph.units.values() if any(r.module == reader for r in u.readers))
    return unit


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_heads_are_removed_whole(case: str, streams: str) -> None:
    """Without gradients PyTorch computes most of these in one call of its own, with gradients in several."""
    model = network(case)
    graph = prunus.trace(model, IMAGE, streams=streams)
    unit = heads_of(graph)
    assert unit.width == HEADS
    assert {(r.module, r.inputs.shape) for r in unit.readers} == {("attention.out_proj", (HEADS, SIZE))}
    small = prunus.prune(graph, prunus.Plan.of(graph, {unit.name: [0, 3]}))
    want = without_heads(model, [1, 2])
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
    assert proof.relative_error([small(IMAGE).detach()], [want(IMAGE).detach()]) < 1e-12
    if not model.attention.dropout:
        assert proof.relative_error([small.train()(IMAGE).detach()], [want.train()(IMAGE).detach()]) < 1e-12
    assert small.attention.num_heads == 2
    assert isinstance(small.attention, nn.MultiheadAttention)
    before, after = ({n: tuple(p.shape) for n, p in m.named_parameters()} for m in (model, small))
    half = {"in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
    halved = {n: (s[0] // 2, *s[1:]) if n.split(".")[-1] in half else s for n, s in before.items()}
    assert after == halved | {"attention.out_proj.weight": (WIDTH, WIDTH // 2)}
    assert list(after) == list(before)
    assert list(small.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("case", ["itself", "with weights that nobody uses", "another", "weights of their own"])
@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_everything_at_once_is_exact_and_can_be_pruned_again(case: str, streams: str, tmp_path: Path) -> None:
    model = network(case)
    model.norm = nn.Identity()  # the stream may be cut too
    graph = prunus.trace(model, IMAGE, streams=streams)
    keep = proof.random_keep(graph, seed=1)
    plan = prunus.Plan.of(graph, keep)
    assert {"patches", "attention.out_proj"} <= set(graph.prunable)
    small = pruned_exactly(graph, keep, IMAGE)
    prunus.save(small, plan, tmp_path)
    attend, settings = CASES[case]
    fresh = Tokens(attend, **settings).double().eval()
    fresh.norm = nn.Identity()
    loaded = prunus.load(tmp_path, fresh)
    assert proof.same_state(loaded, small)
    assert proof.relative_error(proof.outputs(loaded, IMAGE), proof.outputs(small, IMAGE)) == 0.0
    again = prunus.trace(small, IMAGE, streams=streams)
    later = prunus.Plan.of(again, proof.random_keep(again, seed=2))
    smaller, both = prunus.prune(again, later), prunus.prune(graph, plan.then(later))
    assert proof.relative_error(proof.outputs(both, IMAGE), proof.outputs(smaller, IMAGE)) < 1e-12
    assert proof.relative_error(proof.outputs(copy.deepcopy(small), IMAGE), proof.outputs(small, IMAGE)) == 0.0
    trained = proof.train_step(small, IMAGE)
    assert trained == {name for name, _ in model.named_parameters() if case in CROSSING or "context" not in name}


@pytest.mark.parametrize("case", ["itself", "with weights that nobody uses", "another", "mask"])
def test_work_is_counted(case: str) -> None:
    """Projections of queries, keys and values, two products, and the output: tokens x width x width each, for heads
    tokens x tokens x size."""
    model = network(case)
    graph = prunus.trace(model, IMAGE)
    inside = {n: x.macs for n, x in graph.layers.items() if n not in ("patches", "context", "head")}
    assert sum(inside.values()) == 4 * TOKENS * WIDTH * WIDTH + 2 * TOKENS * TOKENS * WIDTH
    plan = prunus.Plan.of(graph, {heads_of(graph).name: [2]})
    small = prunus.prune(graph, plan)
    counted = {n: x for n, x in graph.cost(plan).layers.items() if n in inside}
    assert sum(x.macs for x in counted.values()) == sum(inside.values()) // HEADS
    assert graph.cost(plan).macs * len(IMAGE) == proof.counted_macs(small, IMAGE)


def test_weights_that_are_used_keep_their_heads() -> None:
    """They are the mean of all heads."""

    def attend(attention: Any, x: Tensor, other: Tensor) -> Tensor:
        out, weights = attention(x, x, x)
        return out + weights.sum(-1, keepdim=True)

    graph = prunus.trace(randomised(Tokens(attend)), IMAGE)
    assert graph.frozen["attention.in_proj"] == "HeadAverage attention.average is the mean of all heads"
    assert not any(r.module == "attention.out_proj" for u in graph.units.values() for r in u.readers)


def test_a_mask_for_each_head_keeps_all_heads() -> None:
    """All heads are computed; the output projection selects among them."""
    mask = torch.randn(len(IMAGE) * HEADS, TOKENS, TOKENS, dtype=torch.float64)
    model = randomised(Tokens(masked_with(attn_mask=mask)))
    graph = prunus.trace(model, IMAGE)
    small = prunus.prune(graph, prunus.Plan.of(graph, {"attention.out_proj:in": [0, 3]}))
    assert small.attention.num_heads == HEADS
    assert small.attention.out_proj.in_features == 2 * SIZE
    want = without_heads(model, [1, 2])
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12


@pytest.mark.parametrize("setting", ["add_bias_kv", "add_zero_attn"])
def test_sequences_that_are_extended_are_frozen(setting: str) -> None:
    graph = prunus.trace(randomised(Tokens(itself, **{setting: True})), IMAGE)
    assert setting in graph.frozen["attention"]
    assert not any(w.module.startswith("attention") for u in graph.units.values() for w in u.writers)


def test_weights_that_are_shared_are_frozen() -> None:
    class Shared(Tokens):
        def __init__(self) -> None:
            super().__init__(itself)
            self.second = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.second.in_proj_weight = self.attention.in_proj_weight

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            return self.head(itself(self.second, itself(self.attention, x, x), x))

    graph = prunus.trace(randomised(Shared()), IMAGE)
    assert "is shared with" in graph.frozen["attention.in_proj"]
    assert "is shared with" in graph.frozen["second.in_proj"]


@pytest.mark.parametrize("kind", ["hook", "class"])
def test_an_output_projection_with_code_of_its_own_is_frozen(kind: str) -> None:
    """PyTorch's attention takes its weights and never calls it. In eval mode the two agree."""

    class Louder(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if self.training else 1)

    model = network("itself")
    if kind == "hook":
        model.attention.out_proj.register_forward_hook(lambda module, args, out: out * (2 if module.training else 1))
    else:
        model.attention.out_proj = Louder(WIDTH, WIDTH).double().eval()
    graph = prunus.trace(model, IMAGE)
    assert graph.model is model
    assert "never calls" in graph.frozen["attention"]


def test_the_network_is_left_as_it_was() -> None:
    """Its twin in the graph has the same parameters, sees new ones, and has the modes of now."""
    model = network("itself").train()
    with unchanged(model):
        graph = prunus.trace(model, IMAGE)
    assert type(model.attention) is nn.MultiheadAttention
    assert [id(p) for p in graph.model.parameters()] == [id(p) for p in model.parameters()]
    model.eval().attention.in_proj_weight = nn.Parameter(torch.randn(3 * WIDTH, WIDTH).double())
    with unchanged(model):
        small = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph).name: [1]}))
    assert not any(module.training for module in small.modules())
    want = without_heads(model, [0, 2, 3])
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12


@pytest.mark.parametrize("training", [False, True])
def test_zeroed_holds_for_the_network_itself(training: bool) -> None:
    """Not only for the twin that the graph follows; and in the mode that the network has inside the block."""
    model = Tokens(itself).double().eval()
    graph = prunus.trace(model, IMAGE)
    assert graph.model is not model
    plan = prunus.Plan.of(graph, proof.random_keep(graph, 0))
    small = prunus.prune(graph, plan).train(training)
    with torch.no_grad():
        whole = model(IMAGE)
        with prunus.zeroed(graph, plan):
            zeroed = model.train(training)(IMAGE)
        assert torch.allclose(zeroed, small(IMAGE), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(zeroed, whole)
        assert torch.equal(model.eval()(IMAGE), whole)
    assert "forward" not in vars(model)


def test_blocks_of_two_graphs_may_end_in_any_order() -> None:
    """As in threads. The network has a patched forward, which it keeps."""
    model = Tokens(itself).double().eval()
    graphs = [prunus.trace(model, IMAGE, streams) for streams in ("select", "coupled")]
    plans = [prunus.Plan.of(graph, proof.random_keep(graph, 0)) for graph in graphs]
    small = [prunus.prune(graph, plan)(IMAGE) for graph, plan in zip(graphs, plans, strict=True)]
    patched = model.__dict__["forward"] = model.forward
    first, second = (prunus.zeroed(graph, plan) for graph, plan in zip(graphs, plans, strict=True))
    with torch.no_grad():
        whole = model(IMAGE)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert torch.allclose(model(IMAGE), small[1], rtol=1e-12, atol=1e-12)
        second.__exit__(None, None, None)
        assert torch.equal(model(IMAGE), whole)
    assert vars(model)["forward"] is patched


@pytest.mark.parametrize("case", ["with weights that nobody uses", "another", "weights of their own"])
def test_a_head_that_equals_another_costs_nothing_after_repair(case: str) -> None:
    """Where two heads compute the same, the output projection of one can do for both."""
    model = network(case)
    with torch.no_grad():
        for name, tensor in model.attention.named_parameters():
            if "out_proj" not in name:
                heads = tensor.view(-1, HEADS, SIZE, *tensor.shape[1:])
                heads[:, 1] = heads[:, 0]
    graph = prunus.trace(model, IMAGE)
    unit = heads_of(graph).name
    images = torch.randn(40, *IMAGE.shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    errors = prunus.score(graph, images, "rebuilt").values[unit]
    assert int(errors.argmin()) in (0, 1)
    assert errors.min() < 0.2 * sorted(errors)[1]
    repaired = prunus.repair(graph, prunus.Plan.of(graph, {unit: [0, 2, 3]}), images, ridge=1e-12)
    assert proof.relative_error(proof.outputs(repaired, IMAGE), proof.outputs(model, IMAGE)) < 1e-6
    assert proof.relative_error(proof.outputs(without_heads(model, [1]), IMAGE), proof.outputs(model, IMAGE)) > 1e-2


@pytest.mark.parametrize("case", ["itself", "another"])
def test_gradients_of_heads_are_those_of_their_rows(case: str) -> None:
    """Also where queries, keys and values are layers of their own with rows of one matrix."""

    class Pooled(Tokens):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image).mean(1)

    attend, settings = CASES[case]
    model, labels = randomised(Pooled(attend, **settings)), torch.tensor([1, 3])
    graph = prunus.trace(model, IMAGE)
    unit = heads_of(graph).name
    found = collect_gradients(graph, [(IMAGE, labels)])[unit].weight_gradients
    F.cross_entropy(model(IMAGE), labels).backward()
    rows = model.attention.in_proj_weight.grad.view(3, HEADS, SIZE * WIDTH)
    torch.testing.assert_close(found.square().sum(1), rows.square().sum((0, 2)))


# -- PyTorch's transformers, which compute a layer in one call in eval mode


class Encoder(nn.Module):
    def __init__(self, padded: bool = False, **settings: Any) -> None:
        super().__init__()
        self.padded = padded
        self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, **{"batch_first": True, **settings})
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=padded)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        return self.head(self.encoder(x, src_key_padding_mask=PADDING if self.padded else None))


@pytest.mark.parametrize("settings", [{}, {"norm_first": True, "activation": "gelu"}, {"bias": False}])
def test_heads_and_hidden_channels_of_encoders(settings: dict[str, Any]) -> None:
    model = randomised(Encoder(**settings))
    graph = prunus.trace(model, IMAGE)
    first = "encoder.layers.0"
    plan = {heads_of(graph, f"{first}.self_attn.out_proj").name: [1, 2], f"{first}.linear1:out": [0, 5, 9]}
    small = prunus.prune(graph, prunus.Plan.of(graph, plan))
    want = without_heads(model, [0, 3], f"{first}.self_attn")
    gone = [i for i in range(16) if i not in plan[f"{first}.linear1:out"]]
    with torch.no_grad():
        want.encoder.layers[0].linear2.weight[:, gone] = 0
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
    assert proof.relative_error([small(IMAGE).detach()], [want(IMAGE).detach()]) < 1e-12


def test_encoders_that_leave_out_padding_are_frozen() -> None:
    """In eval mode they give zeros for padded tokens, with gradients other numbers."""
    graph = prunus.trace(randomised(Encoder(padded=True)), IMAGE)
    assert "TransformerEncoder encoder has no rule" in graph.frozen["encoder"]


def test_a_decoder_reads_an_encoder() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, WIDTH, 2, stride=2)
            self.queries = nn.Parameter(torch.randn(1, 5, WIDTH))
            self.transformer = nn.Transformer(WIDTH, HEADS, 1, 1, 16, batch_first=True)
            self.head = nn.Linear(WIDTH, 5)

        def forward(self, image: Tensor) -> Tensor:
            x = self.patches(image).flatten(2).transpose(1, 2)
            return self.head(self.transformer(x, self.queries.expand(x.shape[0], -1, -1)))

    model = randomised(Both())
    graph = prunus.trace(model, IMAGE)
    layers = ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn")
    names = [f"transformer.{layer}" for layer in layers]
    plan = {heads_of(graph, f"{name}.out_proj").name: [0, 2] for name in names}
    small = prunus.prune(graph, prunus.Plan.of(graph, plan))
    want = model
    for name in names:
        want = without_heads(want, [1, 3], name)
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
    pruned_exactly(graph, proof.random_keep(graph, seed=3), IMAGE)


# -- what becomes of the pruned network


@pytest.mark.parametrize(("case", "dynamo"), [("itself", True), ("another", False)])
def test_exports(case: str, dynamo: bool) -> None:
    model = network(case)
    graph = prunus.trace(model, IMAGE)
    small = prunus.prune(graph, prunus.Plan.of(graph, proof.random_keep(graph, seed=0)))
    assert onnx_error(copy.deepcopy(small), IMAGE, dynamo) < 1e-5
    exported = torch.export.export(small, (IMAGE,)).module()
    assert proof.relative_error(proof.outputs(exported, IMAGE), proof.outputs(small, IMAGE)) < 1e-12


def test_masks_for_each_head_must_fit_the_heads_that_are_left() -> None:
    graph = prunus.trace(network("itself"), IMAGE)
    small: Any = prunus.prune(graph, prunus.Plan.of(graph, {heads_of(graph).name: [0, 1]}))
    x = torch.randn(1, TOKENS, WIDTH, dtype=torch.float64)
    with pytest.raises(RuntimeError):
        small.attention(x, x, x, attn_mask=torch.zeros(HEADS, TOKENS, TOKENS).bool())
    mask = torch.randn(2, TOKENS, TOKENS, dtype=torch.float64)
    _, weights = small.attention(x, x, x, attn_mask=mask, average_attn_weights=False)
    rows = F.linear(x[0], small.attention.in_proj_weight, small.attention.in_proj_bias).view(TOKENS, 3, 2, SIZE)
    products = torch.einsum("nhd,mhd->hnm", rows[:, 0], rows[:, 1]) / SIZE**0.5
    assert torch.allclose(weights[0], (products + mask).softmax(-1))
