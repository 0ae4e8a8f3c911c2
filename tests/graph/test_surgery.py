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
from prunus.graph.selection import select, unselect
from prunus.graph.surgery import copy_sharing, shrink_mixing
from tests import proof
from tests.exporting import onnx_error
from tests.graph.checks import IMAGE, pruned_exactly
from tests.graph.odd_nets import Network, StandardConv, with_forward
from tests.nets import conv


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


class Standard(nn.Module):
    """All layers are standardised: a -> norm -> b (two groups) -> c -> fc."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = StandardConv(3, 8), StandardConv(8, 12, groups=2), StandardConv(12, 6)
        self.norm, self.fc = nn.BatchNorm2d(8), with_forward(nn.Linear, centred_linear, 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.b(F.relu(self.norm(self.a(x)))))
        return self.fc(F.relu(self.c(h)).mean((2, 3)))


def centred_linear(self: Any, x: Tensor) -> Tensor:
    return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


def stream() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.a(x)
        return m.e(F.relu(m.d(F.relu(h + m.c(F.relu(m.b(h)))))))

    layers = {"a": StandardConv(3, 8), "b": StandardConv(8, 6), "c": StandardConv(6, 8), "d": StandardConv(8, 4)}
    return Network(forward, **layers, e=nn.Conv2d(4, 2, 1))


def built(kind: Any = Standard) -> nn.Module:
    torch.manual_seed(0)
    return kind().double().eval()


KEEP = {"a:out": [1, 2, 6], "b:out": [0, 3, 4, 7, 8, 11], "c:out": [0, 5]}


def test_outputs_go_and_inputs_are_filled_with_zeros() -> None:
    graph = pr.trace(built(), IMAGE)
    widths = {name: (unit.width, unit.granule) for name, unit in graph.units.items()}
    assert widths == {"a:out": (8, 1), "b:out": (12, 2), "c:out": (6, 1)}
    assert graph.frozen == {"fc": "it is an output of the network"}
    small = pruned_exactly(graph, KEEP)
    shapes = [tuple(layer.weight.shape) for layer in (small.a, small.b, small.c, small.fc)]
    assert shapes == [(3, 3, 3, 3), (6, 4, 3, 3), (2, 12, 3, 3), (5, 6)]
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
    model = built(stream)
    assert list(pr.trace(model, IMAGE).units) == ["b:out", "d:out"]
    graph = pr.trace(model, IMAGE, streams="coupled")
    keep = {"a:out": [0, 3, 4], "b:out": [1, 5], "d:out": [2]}
    assert set(keep) == set(graph.units)
    small = pruned_exactly(graph, keep)
    assert (small.a.out_channels, small.c.out_channels, small.d.in_channels) == (3, 3, 8)


def test_without_a_batch_dimension() -> None:
    model = nn.Sequential(StandardConv(3, 8), nn.ReLU(), StandardConv(8, 4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    graph = pr.trace(model.double().eval(), IMAGE[0])
    keep = {"0:out": [0, 5], "2:out": [3]}
    assert pruned_exactly(graph, keep, IMAGE[0])[0].out_channels == 2


@pytest.mark.parametrize("keyword", [True, False])
def test_what_cannot_be_filled_is_frozen(keyword: bool) -> None:
    """A standardised layer that is called by keyword, or has a hook: nothing can be put in front of it."""
    torch.manual_seed(0)
    model = Network(
        lambda m, x: m.c(m.b(input=m.a(x)) if keyword else m.b(m.a(x))),
        **{"a": nn.Conv2d(3, 8, 1), "b": StandardConv(8, 8), "c": nn.Conv2d(8, 2, 1)},
    )
    if keyword:
        model.b.forward = lambda input: StandardConv.forward(model.b, input)
    else:
        model.b.register_forward_pre_hook(lambda module, args: (args[0] * args[0].shape[1],))
    assert set(pr.trace(model.double().eval(), IMAGE).frozen) >= {"a", "b"}


def test_export() -> None:
    graph = pr.trace(built().float(), IMAGE.float())
    assert onnx_error(pr.prune(graph, pr.Plan.of(graph, KEEP)), IMAGE.float(), dynamo=True) < 1e-5


def pyramid(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """One head on two levels, which are both streams."""
    a = F.relu(m.a(x))
    b = F.relu(m.b(a))
    fine = F.relu(m.k(a + F.interpolate(b, scale_factor=2)))
    coarse = F.relu(m.m(b + F.max_pool2d(fine, 2)))
    return m.head(fine), m.head(coarse)


def test_a_shared_head_selects_the_same_in_a_second_round() -> None:
    """What the head no longer reads of one level goes only if it goes from the other level too."""
    torch.manual_seed(0)
    layers = {"a": conv(3, 4), "b": conv(4, 4, stride=2), "k": conv(4, 4), "m": conv(4, 4), "head": conv(4, 2, 1)}
    model = Network(pyramid, **layers).double().eval()
    graph = pr.trace(model, IMAGE)
    first = pr.prune(graph, pr.Plan.of(graph, {"head:in": [1, 2, 3]}))
    graph = pr.trace(first, IMAGE)
    keep = {name: [1, 2, 3] for name in ("b:in", "k:in", "m:in")}
    second = pruned_exactly(graph, keep)
    assert (second.a.out_channels, second.k.out_channels, second.m.out_channels) == (3, 3, 3)


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
        (nn.utils.parametrizations.orthogonal, 3),  # each 3 x 3 kernel by itself
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
    small = pruned_exactly(graph, keep)
    assert small(IMAGE).shape == (2, 2, 4, 4) and small.n.weight.shape == (2, inputs, 3, 3)
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
