"""Norms and means over channels that lose channels: they count as zeros, and the divisor stays."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus
from prunus.graph.norms import compensate
from prunus.tasks.partial_forward import PartialForward
from tests import proof
from tests.exporting import onnx_error
from tests.nets import GlobalResponseNorm

WIDTH, HIDDEN = 6, 10
IMAGE = torch.randn(2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GONE = [1, 4, 5, 9]
KEPT = [i for i in range(HIDDEN) if i not in GONE]


def random_parameters(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    return model.double().eval()


class Responding(nn.Module):
    """Two convolutions with a global response norm between them, beside a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up = nn.Conv2d(3, WIDTH, 1), nn.Conv2d(WIDTH, HIDDEN, 3, padding=1)
        self.norm, self.down = GlobalResponseNorm(HIDDEN), nn.Conv2d(HIDDEN, WIDTH, 1)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.down(self.norm(F.gelu(self.up(x))))
        return self.head(x.mean((2, 3)))

    @torch.no_grad()
    def by_hand(self, x: Tensor, gone: Sequence[int]) -> Tensor:
        """Channels that are gone are zeros for the mean of the norm and for the second convolution."""
        stream = self.stem(x)
        hidden = F.gelu(self.up(stream))
        lengths = hidden.square().sum((2, 3), keepdim=True).sqrt()
        counted = [lengths[:, i : i + 1] for i in range(HIDDEN) if i not in gone]
        share = lengths / (sum(counted) / HIDDEN + self.norm.eps)
        out = self.norm.weight.view(-1, 1, 1) * hidden * share + self.norm.bias.view(-1, 1, 1) + hidden
        out[:, list(gone)] = 0
        return self.head((stream + self.down(out)).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_a_mean_over_channels_keeps_its_divisor(streams: Any) -> None:
    model = random_parameters(Responding())
    graph = prunus.trace(model, IMAGE, streams, norms="compensated")
    unit = graph.units["up:out"]
    assert [(norm.module, norm.inputs.reshape(-1).tolist()) for norm in unit.norms] == [
        ("norm.prunus_mean_0", list(range(HIDDEN)))
    ]
    plan = prunus.Plan.of(graph, {"up:out": KEPT})
    small = prunus.prune(graph, plan)
    want = [model.by_hand(IMAGE, GONE)]  # type: ignore[operator]
    assert proof.relative_error(proof.outputs(small, IMAGE), want) < 1e-12
    assert proof.relative_error(proof.outputs(model, IMAGE), want) > 1e-3  # the cut matters
    with prunus.zeroed(graph, plan):
        assert proof.relative_error(proof.outputs(model, IMAGE), want) < 1e-12
    assert small.norm.weight.shape == (len(KEPT),)
    assert set(small.state_dict()) == set(model.state_dict())
    assert type(model.norm) is GlobalResponseNorm
    assert not list(model.norm.children())


def test_one_unit_after_the_other_is_zeroed_as_in_the_network() -> None:
    model = random_parameters(Responding())
    graph = prunus.trace(model, IMAGE, norms="compensated")
    forward = PartialForward(graph)
    forward.whole(IMAGE)
    with torch.no_grad():
        got = forward.without("up:out", KEPT)
    assert proof.relative_error([got], [model.by_hand(IMAGE, GONE)]) < 1e-12  # type: ignore[operator]


def test_it_is_pruned_twice_saved_copied_and_exported(tmp_path: Any) -> None:
    model = random_parameters(Responding())
    graph = prunus.trace(model, IMAGE, norms="compensated")
    first = prunus.Plan.of(graph, {"up:out": KEPT})
    small = prunus.prune(graph, first)
    again = prunus.trace(small, IMAGE, norms="compensated")
    second = prunus.Plan.of(again, {"up:out": [0, 2, 3]})
    smaller = prunus.prune(again, second)
    gone = [i for i in range(HIDDEN) if i not in (KEPT[0], KEPT[2], KEPT[3])]
    want = proof.outputs(smaller, IMAGE)
    assert proof.relative_error(want, [model.by_hand(IMAGE, gone)]) < 1e-12  # type: ignore[operator]
    both = first.then(second)
    prunus.save(smaller, both, tmp_path)
    file = io.BytesIO()
    torch.save(smaller, file)
    file.seek(0)
    loaded = prunus.load(tmp_path, random_parameters(Responding()))
    for other in (loaded, copy.deepcopy(smaller), torch.load(file, weights_only=False), prunus.prune(graph, both)):
        assert torch.equal(proof.outputs(other, IMAGE)[0], want[0])
    program = torch.export.export(smaller.float(), (IMAGE.float(),)).module()
    assert proof.relative_error(proof.outputs(program, IMAGE.float()), [want[0].float()]) < 1e-4
    assert onnx_error(smaller, IMAGE, dynamo=True) < 1e-4


class Beside(Responding):
    """The mean is taken of a stream, too."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.up(x)
        return self.head(x * x.mean(1, keepdim=True))


def test_a_mean_of_a_stream_keeps_it_whole() -> None:
    model = random_parameters(Beside())
    model.up, model.head = nn.Conv2d(WIDTH, WIDTH, 1).double(), nn.Conv2d(WIDTH, 4, 1).double()
    graph = prunus.trace(model, IMAGE, "coupled")
    assert not graph.units
    assert graph.frozen["stem"] == "mean runs over all channels"
    compensated = prunus.trace(model, IMAGE, "coupled", norms="compensated")
    (unit,) = compensated.units.values()
    small = prunus.prune(compensated, prunus.Plan.of(compensated, {unit.name: [0, 2, 3]}))
    with torch.no_grad():
        x = model.stem(IMAGE)
        x = x.index_fill(1, torch.tensor([1, 4, 5]), 0)
        x = (x + model.up(x)).index_fill(1, torch.tensor([1, 4, 5]), 0)
        want = model.head(x * x.sum(1, keepdim=True) / WIDTH)
    assert proof.relative_error(proof.outputs(small, IMAGE), [want]) < 1e-12


# -- norms that are layers

NORMS = {
    "layer norm": (nn.LayerNorm(HIDDEN), -1, (2, 3, HIDDEN)),
    "layer norm without parameters": (nn.LayerNorm(HIDDEN, elementwise_affine=False), -1, (2, 3, HIDDEN)),
    "without bias": (nn.LayerNorm(HIDDEN, bias=False), -1, (2, HIDDEN)),
    "rms norm": (nn.RMSNorm(HIDDEN), -1, (2, 3, HIDDEN)),
    "group norm": (nn.GroupNorm(1, HIDDEN), -3, (2, HIDDEN, 3, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_counts_what_is_gone_as_zeros(name: str) -> None:
    """Beside the whole norm of an input with zeros: first with six of ten channels, then with three of these."""
    norm, axis, shape = copy.deepcopy(NORMS[name])
    whole = random_parameters(norm)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.7
    kept, small = torch.tensor(KEPT), copy.deepcopy(whole)
    for chosen in (KEPT, [0, 2, 5]):
        before = len(small.weight) if small.weight is not None else len(kept)
        for parameter in small.parameters():
            parameter.data = parameter.data[chosen]
        compensate(small, len(chosen), HIDDEN if chosen is KEPT else before, axis)
        kept = kept if chosen is KEPT else kept[chosen]
        zeros = torch.zeros_like(x).index_copy(axis, kept, x.index_select(axis, kept))
        with torch.no_grad():
            got, want = small(x.index_select(axis, kept)), whole(zeros).index_select(axis, kept)
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)
        assert len(small.state_dict()) == len(whole.state_dict())


class Transformer(nn.Module):
    """Patches, one block with attention in front of an MLP, and a classifier; the norms are of one kind."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 1)
        self.first, self.qkv, self.proj = norm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second, self.up, self.down = norm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.inner, self.last, self.head = norm(HIDDEN), norm(WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.down(self.inner(F.gelu(self.up(self.second(x)))))
        return self.head(self.last(x).mean(1))


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_streams_lose_channels_in_front_of_compensated_norms(kind: Any, tmp_path: Any) -> None:
    """The network in which hooks set channels to zero wherever a norm or a layer reads them."""
    model = random_parameters(Transformer(kind))
    graph = prunus.trace(model, IMAGE, "coupled", norms="compensated")
    stream = {"first", "second", "last", "qkv", "up", "head"}
    assert {norm.module for norm in graph.units["patches:out"].norms} == {"first", "second", "last"}
    assert {reader.module for reader in graph.units["patches:out"].readers} == {"qkv", "up", "head"}
    plan = prunus.Plan.of(graph, {"patches:out": [0, 3, 4], "up:out": KEPT})
    small = prunus.prune(graph, plan)
    want = copy.deepcopy(model)
    for name, gone in [*((name, [1, 2, 5]) for name in stream), ("inner", GONE), ("down", GONE)]:
        places = torch.tensor(gone)
        want.get_submodule(name).register_forward_pre_hook(lambda m, args, at=places: (args[0].index_fill(-1, at, 0),))
    expected = proof.outputs(want, IMAGE)
    assert proof.relative_error(proof.outputs(small, IMAGE), expected) < 1e-12
    assert small.patches.out_channels == 3
    assert small.last.normalized_shape == (3,)
    assert type(model.last) is kind
    prunus.save(small, plan, tmp_path)
    loaded = prunus.load(tmp_path, random_parameters(Transformer(kind)))
    assert torch.equal(proof.outputs(loaded, IMAGE)[0], proof.outputs(small, IMAGE)[0])
    again = prunus.trace(small, IMAGE, "coupled", norms="compensated")
    second = prunus.Plan.of(again, {"patches:out": [0, 2], "up:out": [1, 2, 3]})
    smaller = prunus.prune(again, second)
    both = prunus.prune(graph, plan.then(second))
    assert torch.equal(proof.outputs(both, IMAGE)[0], proof.outputs(smaller, IMAGE)[0])
    file = io.BytesIO()
    torch.save(smaller, file)
    file.seek(0)
    assert torch.equal(proof.outputs(torch.load(file, weights_only=False), IMAGE)[0], proof.outputs(smaller, IMAGE)[0])
    assert onnx_error(smaller, IMAGE, dynamo=True) < 1e-4


class AsksForItsClass(GlobalResponseNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x + x.mean(dim=1, keepdim=True)
        return x * 2 if self.training and type(self) is AsksForItsClass else x


def test_a_norm_that_asks_for_its_class_in_training_stays_whole() -> None:
    """A mean that is a module is in a subclass of it."""
    model = random_parameters(Responding())
    model.norm = AsksForItsClass(HIDDEN).double().eval()
    graph = prunus.trace(model, IMAGE, norms="compensated")
    assert graph.model is model
    assert graph.frozen["up"] == "mean runs over all channels"


class Flattening(nn.Module):
    """The norm and the mean see images in eval mode, and sequences in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Conv2d(3, HIDDEN, 1), nn.GroupNorm(1, HIDDEN)
        self.down = nn.Conv2d(HIDDEN, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        x = self.norm(hidden.flatten(2) if self.training else hidden)
        return self.down((x / (x.abs().mean(1, keepdim=True) + 1)).view_as(hidden))

    @torch.no_grad()
    def by_hand(self, x: Tensor, gone: Sequence[int]) -> Tensor:
        """Channels that are gone are zeros for the norm, the mean and the second convolution."""
        places = torch.tensor(gone)
        x = self.norm(self.up(x).index_fill(1, places, 0)).index_fill(1, places, 0)
        return self.down(x / (x.abs().sum(1, keepdim=True) / HIDDEN + 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("images", [2, 12])  # fewer than the positions of the channels, and more
def test_channels_are_on_the_second_axis_of_images_and_sequences(images: int, training: bool) -> None:
    """Also where channels go in two rounds."""
    model, image = random_parameters(Flattening()), IMAGE.repeat(images // 2, 1, 1, 1)
    graph = prunus.trace(model, IMAGE, norms="compensated")
    plan = prunus.Plan.of(graph, {"up:out": KEPT})
    small = prunus.prune(graph, plan)
    again = prunus.trace(small, IMAGE, norms="compensated")
    smaller = prunus.prune(again, prunus.Plan.of(again, {"up:out": [0, 2, 3]}))
    want = [model.by_hand(image, GONE)]  # type: ignore[operator]
    assert proof.relative_error(proof.outputs(small.train(training), image), want) < 1e-12
    with prunus.zeroed(graph, plan):
        assert proof.relative_error(proof.outputs(model.train(training), image), want) < 1e-12
    gone = [i for i in range(HIDDEN) if i not in (KEPT[0], KEPT[2], KEPT[3])]
    want = [model.by_hand(image, gone)]  # type: ignore[operator]
    model.eval()
    assert proof.relative_error(proof.outputs(smaller.train(training), image), want) < 1e-12


class Listed(nn.LayerNorm):
    """A norm that keeps a list of its classes."""

    known: list[type] = []  # noqa: RUF012

    def __init_subclass__(cls) -> None:
        Listed.known.append(cls)


def test_norms_whose_subclasses_run_code_stay_whole() -> None:
    graph = prunus.trace(random_parameters(Transformer(Listed)), IMAGE, "coupled", norms="compensated")
    assert graph.frozen["patches"] == "Listed first normalises over channels"
    assert not Listed.known


class Clamped(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if x.shape[1] < 100 else out.clamp(-0.5, 0.5)


class OfForms(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1) if x.dim() == 4 else super().forward(x)


def test_norms_whose_path_depends_on_a_size_stay_whole() -> None:
    """Trials on small images do not see the other path. How many dimensions there are may be asked for."""
    graph = prunus.trace(random_parameters(Transformer(Clamped)), IMAGE, "coupled", norms="compensated")
    assert graph.frozen["patches"] == "Clamped first normalises over channels"
    graph = prunus.trace(random_parameters(Transformer(OfForms)), IMAGE, "coupled", norms="compensated")
    assert "patches:out" in graph.units


def test_by_default_norms_stay_whole() -> None:
    model = random_parameters(Transformer(nn.LayerNorm))
    graph = prunus.trace(model, IMAGE, "coupled")
    assert set(graph.units) == set()
    assert graph.frozen["patches"] == "LayerNorm first normalises over channels"
    selecting = prunus.trace(model, IMAGE, "select", norms="compensated")
    assert set(selecting.units) == {"qkv:in", "up:in", "up:out", "head:in"}  # streams stay, hidden channels may go


def test_a_plan_says_how_norms_are_treated() -> None:
    model = random_parameters(Transformer(nn.LayerNorm))
    whole, compensated = (prunus.trace(model, IMAGE, "coupled", norms=norms) for norms in ("whole", "compensated"))
    plan = prunus.Plan.of(compensated, {"up:out": KEPT})
    assert prunus.Plan.from_json(plan.to_json()) == plan
    assert '"norms"' not in prunus.Plan.of(whole, {}).to_json()
    with pytest.raises(prunus.PlanError, match="norms='compensated'"):
        prunus.prune(whole, plan)
    with pytest.raises(prunus.PlanError, match="cannot be followed"):
        plan.then(prunus.Plan.of(whole, {}))
    with pytest.raises(prunus.FileError, match='"norms" must be'):
        prunus.Plan.from_json(plan.to_json().replace('"compensated"', '"other"'))
    with pytest.raises(prunus.TraceError, match="norms"):
        prunus.trace(model, IMAGE, norms="other")  # type: ignore[arg-type]


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_training_goes_on(streams: Any) -> None:
    """Gradients are those of the network with zeros, for what is left."""
    model = random_parameters(Responding())
    graph = prunus.trace(model, IMAGE, streams, norms="compensated")
    small = prunus.prune(graph, prunus.Plan.of(graph, {"up:out": KEPT}))
    small.train()(IMAGE).square().sum().backward()
    with prunus.zeroed(graph, prunus.Plan.of(graph, {"up:out": KEPT})):
        model(IMAGE).square().sum().backward()
    assert torch.allclose(small.norm.weight.grad, model.norm.weight.grad[KEPT], rtol=1e-9)
    assert torch.allclose(small.up.weight.grad, model.up.weight.grad[KEPT], rtol=1e-9)


@pytest.mark.parametrize("streams", ["select", "coupled"])
def test_a_python_file_of_the_class_is_refused(streams: Any, tmp_path: Any) -> None:
    """The code of the class divides by the channels that are left."""
    model = random_parameters(Transformer(nn.LayerNorm))
    graph = prunus.trace(model, IMAGE, streams, norms="compensated")
    small = prunus.prune(graph, prunus.Plan.of(graph, {"up:out": KEPT}))
    with pytest.raises(prunus.ModelError, match=r"inner \(LayerNorm\) computes with a number of channels"):
        prunus.export(small, IMAGE, tmp_path / "small.py", original=Transformer)


class Gated(nn.Module):
    """Attention whose code has a mean, over tokens, and takes the width of its input for that of its heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 2
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x * x.mean(1, keepdim=True))


class Both(Responding):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Gated()

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.down(self.norm(F.gelu(self.up(x))))
        x = x.flatten(2).transpose(1, 2)
        return self.head((x + self.attention(x)).mean(1))


def test_heads_go_beside_means_over_channels() -> None:
    model = random_parameters(Both())
    graph = prunus.trace(model, IMAGE, norms="compensated")
    heads = graph.units["attention.qkv:out"]
    assert (heads.width, graph.units["up:out"].width) == (2, HIDDEN)
    small = prunus.prune(graph, prunus.Plan.of(graph, {"attention.qkv:out": [1], "up:out": KEPT}))
    want = copy.deepcopy(model)
    with torch.no_grad():
        want.attention.proj.weight[:, : WIDTH // 2] = 0
        want.down.weight[:, GONE] = 0
    mean = want.norm.forward

    def with_fewer(x: Tensor) -> Tensor:  # the norm with a mean that is smaller by what is gone
        length = x.norm(p=2, dim=(2, 3), keepdim=True)
        share = length.index_fill(1, torch.tensor(GONE), 0).mean(1, keepdim=True) / length.mean(1, keepdim=True)
        whole = (mean(x) - x - want.norm.bias.view(-1, 1, 1)) * (length.mean(1, keepdim=True) + want.norm.eps)
        return x + want.norm.bias.view(-1, 1, 1) + whole / (length.mean(1, keepdim=True) * share + want.norm.eps)

    want.norm.forward = with_fewer
    assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(want, IMAGE)) < 1e-12
