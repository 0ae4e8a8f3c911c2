"""Copies of models, selections in front of layers, and layers that keep all of their inputs."""

from __future__ import annotations

import copy
import warnings
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.prune import random_unstructured

import prunus as pr
from prunus.graph.layer_surgery import shrink_mixing
from prunus.graph.selection import select, unselect
from prunus.graph.surgery import copy_sharing
from tests import proof
from tests.exporting import onnx_error
from tests.graph.checks import IMAGE


class Own(nn.Module):
    """A class that says how it is copied."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        twin = Own()
        twin.copied = True
        return twin


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.tied = nn.Conv2d(3, 4, 3, padding=1)
        self.tied.weight = self.conv.weight
        self.own = Own()
        self.sizes, self.notes, self.names = (1, 2), [{"a": 1}], {"x"}
        self.above: list[nn.Module] = [self]  # a cycle
        self.same = self.notes
        self.conv.register_forward_hook(self.watch)

    def watch(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) + self.tied(x)


def test_a_copy_is_what_deepcopy_makes() -> None:
    model = nn.Sequential(Block(), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    shared = [model[0].conv.weight, model[2].weight]
    twin, plain = copy_sharing(model, shared), copy.deepcopy(model)
    for (name, module), (_, other), (_, old) in zip(
        twin.named_modules(), plain.named_modules(), model.named_modules(), strict=True
    ):
        assert type(module) is type(other), name
        assert list(module.__dict__) == list(other.__dict__), name
        assert module is not old
    block, before = twin[0], model[0]
    assert block.conv.weight is block.tied.weight is not before.conv.weight
    assert block.conv.weight.data_ptr() == before.conv.weight.data_ptr()
    assert block.conv.bias is not before.conv.bias
    assert torch.equal(block.conv.bias, before.conv.bias)
    assert block.norm.running_mean is not before.norm.running_mean
    assert block.own.copied
    assert block.above[0] is block
    assert block.same is block.notes
    assert block.notes is not before.notes
    assert block.names == {"x"}
    (hook,) = block.conv._forward_hooks.values()
    assert hook.__self__ is block
    x = torch.randn(1, 3, 5, 5)
    assert torch.equal(twin(x), model(x))
    block.norm.running_mean.add_(1.0)
    assert before.norm.running_mean.sum() == 0


def test_a_selection_keeps_the_layout_of_images() -> None:
    layer = nn.Conv2d(5, 2, 1)
    seen: list[Tensor] = []
    select(layer, torch.tensor([4, 0, 2]), 1)
    layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    layer.weight = nn.Parameter(layer.weight[:, :3])
    images = torch.randn(2, 5, 6, 4)
    for layout in (torch.contiguous_format, torch.channels_last):
        given = images.to(memory_format=layout).requires_grad_()
        layer(given)
        assert torch.equal(seen[-1], images[:, [4, 0, 2]])
        assert seen[-1].is_contiguous(memory_format=layout)
        (slope,) = torch.autograd.grad(seen[-1].sum(), given)
        assert slope[0, :, 0, 0].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]


def test_print_shows_selections(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(5, 2, 1), nn.Conv2d(2, 2, 1))
    own = str(model)
    select(model[0], torch.tensor([4, 0, 2]), 1)
    shown = "(0): Conv2d(5, 2, kernel_size=(1, 1), stride=(1, 1), channels=[4, 0, 2])"
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "whole.pt")
    for other in (model, twin, copy_sharing(model), torch.load(tmp_path / "whole.pt", weights_only=False)):
        assert shown in str(other) and str(other[1]) == str(nn.Conv2d(2, 2, 1))
        assert [*other.state_dict()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    twin[0].in_channels = 3
    assert "Conv2d(3, 2" in str(twin) and "Conv2d(5, 2" in str(model)
    select(model[0], torch.arange(0, 40, 3), 1)
    assert "channels=[0, 3, 6, 9, ..., 39] (14)" in str(model)
    select(model[1], torch.tensor([0, 2, 1, 2]), 1, filled=True)
    assert "channels=[0, zeros, 1, zeros]" in str(model)
    for layer in model:
        unselect(layer)
    assert str(model) == own
    dead = weakref.ref(twin[0])
    del twin, other
    assert dead() is None  # it is freed at once, not by the garbage collector


# -- layers that keep all of their inputs: they lose outputs, and zeros take the places of channels that are gone


class StandardConv(nn.Conv2d):
    """A weight-standardised convolution with a gain for each filter."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1) -> None:
        super().__init__(inputs, outputs, 3, padding=1, groups=groups)
        self.gain = nn.Parameter(torch.rand(outputs, 1, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.std_mean(self.weight, (1, 2, 3), keepdim=True)
        return F.conv2d(x, self.gain * (self.weight - mean) / spread, self.bias, 1, 1, groups=self.groups)


class CentredLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


class Standard(nn.Module):
    """All layers are standardised: a -> norm -> b (two groups) -> c -> fc."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = StandardConv(3, 8), StandardConv(8, 12, groups=2), StandardConv(12, 6)
        self.norm, self.fc = nn.BatchNorm2d(8), CentredLinear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.b(F.relu(self.norm(self.a(x)))))
        return self.fc(F.relu(self.c(h)).mean((2, 3)))


class Stream(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = StandardConv(3, 8), StandardConv(8, 6), StandardConv(6, 8), StandardConv(8, 4)
        self.e = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.e(F.relu(self.d(F.relu(h + self.c(F.relu(self.b(h)))))))


def built(kind: type[nn.Module] = Standard) -> nn.Module:
    torch.manual_seed(0)
    return kind().double().eval()


KEEP = {"a:out": [1, 2, 6], "b:out": [0, 3, 4, 7, 8, 11], "c:out": [0, 5]}


def test_outputs_go_and_inputs_are_filled_with_zeros() -> None:
    model = built()
    graph = pr.trace(model, IMAGE)
    assert {name: (unit.width, unit.granule) for name, unit in graph.units.items()} == {
        "a:out": (8, 1),
        "b:out": (12, 2),
        "c:out": (6, 1),
    }
    assert graph.frozen == {"fc": "it is an output of the network"}
    small = pr.prune(graph, pr.Plan.of(graph, KEEP))
    with proof.masked(model, graph, KEEP):
        masked = proof.outputs(model, IMAGE)
    with pr.zeroed(graph, KEEP):
        zeroed = proof.outputs(model, IMAGE)
    assert proof.relative_error(zeroed, masked) < 1e-12
    assert proof.relative_error(proof.outputs(small, IMAGE), masked) < 1e-12
    assert [tuple(layer.weight.shape) for layer in (small.a, small.b, small.c, small.fc)] == [
        (3, 3, 3, 3),
        (6, 4, 3, 3),
        (2, 12, 3, 3),
        (5, 6),
    ]
    assert [len(layer.gain) for layer in (small.a, small.b, small.c)] == [3, 6, 2]
    assert small.norm.num_features == 3
    assert graph.cost(KEEP).macs * 2 == proof.counted_macs(small, IMAGE)
    assert graph.cost(KEEP).macs == 64 * (3 * 27 + 6 * 4 * 9 + 2 * 12 * 9) + 5 * 6


def test_rounds_compose_and_are_saved(tmp_path: Path) -> None:
    model = built()
    graph = pr.trace(model, IMAGE)
    plan = pr.Plan.of(graph, KEEP)
    small = pr.prune(graph, plan)
    again = pr.trace(small, IMAGE)
    assert {name: unit.width for name, unit in again.units.items()} == {"a:out": 3, "b:out": 6, "c:out": 2}
    second = pr.Plan.of(again, {"a:out": [0, 2], "b:out": [1, 2, 4, 5], "c:out": [1]})
    smaller = pr.prune(again, second)
    both = plan.then(second)
    kept = {"a:out": [1, 6], "b:out": [3, 4, 8, 11], "c:out": [5]}
    assert {name: list(both.keep[name]) for name in kept} == kept
    with proof.masked(model, graph, kept):
        masked = proof.outputs(model, IMAGE)
    assert proof.relative_error(proof.outputs(smaller, IMAGE), masked) < 1e-12
    pr.save(smaller, both, tmp_path / "net")
    loaded = pr.load(tmp_path / "net", built())
    assert proof.relative_error(proof.outputs(loaded, IMAGE), masked) < 1e-12
    assert proof.train_step(copy.deepcopy(smaller), IMAGE) == {name for name, _ in model.named_parameters()}


def test_streams_are_cut_if_they_are_coupled() -> None:
    """In select mode a stream is read whole, because a layer that keeps all inputs gains nothing by selecting."""
    model = built(Stream)
    assert list(pr.trace(model, IMAGE).units) == ["b:out", "d:out"]
    graph = pr.trace(model, IMAGE, streams="coupled")
    keep = {"a:out": [0, 3, 4], "b:out": [1, 5], "d:out": [2]}
    assert set(keep) == set(graph.units)
    with proof.masked(model, graph, keep):
        masked = proof.outputs(model, IMAGE)
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    assert proof.relative_error(proof.outputs(small, IMAGE), masked) < 1e-12
    assert (small.a.out_channels, small.c.out_channels, small.d.in_channels) == (3, 3, 8)


def test_without_a_batch_dimension() -> None:
    model = nn.Sequential(StandardConv(3, 8), nn.ReLU(), StandardConv(8, 4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    graph = pr.trace(model.double().eval(), IMAGE[0])
    keep = {"0:out": [0, 5], "2:out": [3]}
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    with pr.zeroed(graph, keep):
        zeroed = proof.outputs(model, IMAGE[0])
    assert proof.relative_error(proof.outputs(small, IMAGE[0]), zeroed) < 1e-12
    assert small[0].out_channels == 2


class Called(nn.Module):
    """A standardised layer that is called by keyword, or has a hook: nothing can be put in front of it."""

    def __init__(self, keyword: bool) -> None:
        super().__init__()
        self.a, self.b, self.c, self.keyword = nn.Conv2d(3, 8, 1), StandardConv(8, 8), nn.Conv2d(8, 2, 1), keyword
        if not keyword:
            self.b.register_forward_pre_hook(lambda module, args: (args[0] * args[0].shape[1],))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.c(self.b(input=h) if self.keyword else self.b(h))


@pytest.mark.parametrize("keyword", [True, False])
def test_what_cannot_be_filled_is_frozen(keyword: bool) -> None:
    torch.manual_seed(0)
    model = Called(keyword).double().eval()
    if keyword:
        model.b.forward = lambda input: StandardConv.forward(model.b, input)
    assert set(pr.trace(model, IMAGE).frozen) >= {"a", "b"}


def test_export() -> None:
    graph = pr.trace(built().float(), IMAGE.float())
    assert onnx_error(pr.prune(graph, pr.Plan.of(graph, KEEP)), IMAGE.float(), dynamo=True) < 1e-5


class Pyramid(nn.Module):
    """One head on two levels, which are both streams."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, 2, 1)
        self.k, self.m, self.head = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        fine = F.relu(self.k(a + F.interpolate(b, scale_factor=2)))
        coarse = F.relu(self.m(b + F.max_pool2d(fine, 2)))
        return self.head(fine), self.head(coarse)


def test_a_shared_head_selects_the_same_in_a_second_round() -> None:
    """What the head no longer reads of one level goes only if it goes from the other level too."""
    torch.manual_seed(0)
    model = Pyramid().double().eval()
    graph = pr.trace(model, IMAGE)
    first = pr.prune(graph, pr.Plan.of(graph, {"head:in": [1, 2, 3]}))
    graph = pr.trace(first, IMAGE)
    keep = {name: [1, 2, 3] for name in ("b:in", "k:in", "m:in")}
    second = pr.prune(graph, pr.Plan.of(graph, keep))
    assert (second.a.out_channels, second.k.out_channels, second.m.out_channels) == (3, 3, 3)
    with proof.masked(first, graph, keep):
        assert proof.relative_error(proof.outputs(second, IMAGE), proof.outputs(first, IMAGE)) < 1e-12


class Computed(nn.Module):
    """The weights of the middle layer are computed from other parameters."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.a, self.n = nn.Conv2d(3, 6, 3), wrap(nn.Conv2d(6, 8, 3))
        self.b = nn.Conv2d(8, 2, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(torch.rand_like(parameter))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.n(F.relu(self.a(x)))))


@pytest.mark.parametrize(
    ("wrap", "inputs"),
    [
        (nn.utils.weight_norm, 6),
        (nn.utils.parametrizations.weight_norm, 6),
        (lambda conv: random_unstructured(conv, "weight", 0.5), 3),
        (nn.utils.spectral_norm, None),
        (nn.utils.parametrizations.spectral_norm, None),
    ],
)
def test_weights_that_are_computed(wrap: Any, inputs: int | None, tmp_path: Path) -> None:
    """A weight norm divides by the length of each filter, so outputs go; a mask has an entry for each weight, so both
    sides go; a spectral norm divides by a number of all weights, so nothing goes."""
    torch.manual_seed(0)
    model = Computed(wrap).double().eval()
    graph = pr.trace(model, IMAGE)
    if inputs is None:
        assert not graph.units and "computed from all of its parameters together" in graph.frozen["n"]
        return
    keep = {"a:out": [0, 2, 5], "n:out": [1, 6]}
    plan = pr.Plan.of(graph, keep)
    small = pr.prune(graph, plan)
    assert small(IMAGE).shape == (2, 2, 4, 4) and small.n.weight.shape == (2, inputs, 3, 3)
    with proof.masked(model, graph, keep):
        assert proof.relative_error(proof.outputs(small, IMAGE), proof.outputs(model, IMAGE)) < 1e-12
    pr.save(small, plan, tmp_path)
    loaded = pr.load(tmp_path, Computed(wrap).double().eval())
    assert torch.equal(proof.outputs(loaded, IMAGE)[0], proof.outputs(small, IMAGE)[0])


@pytest.mark.parametrize("old", [True, False])
def test_norms_that_would_not_fit_their_directions_are_refused(old: bool) -> None:
    """A transposed convolution has a norm for each input: cut like outputs, torch would read beyond the tensor."""
    wrap = nn.utils.weight_norm if old else nn.utils.parametrizations.weight_norm
    with pytest.warns(FutureWarning) if old else nullcontext():
        layer = wrap(nn.ConvTranspose2d(8, 8, 3))
    with pytest.raises(ValueError, match="do not fit directions"):
        shrink_mixing(layer, np.arange(8), np.arange(4))
