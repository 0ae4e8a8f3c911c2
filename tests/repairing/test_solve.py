"""Solved layers beside dense least squares; what can be given back exactly is given back exactly."""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.graph.traced import TRANSPOSED, is_depthwise
from prunus.repairing.repair import repair
from prunus.scoring.rows import acts_plainly, grid_of, inputs_at, outputs_at, rows_of_weight, spots_of, weight_of_rows
from tests.repairing.toys import (
    KEEP,
    READERS,
    Residual,
    conv,
    half_of,
    naive,
    pictures,
    refitted,
    seeded,
    traced,
    twins,
)
from tests.scoring.toys import Scaled, chain
from tests.train.toys import same_tensors, state_of

KEPT = [0, 2, 4, 5]  # of 8; each half of the channels keeps as many


@torch.no_grad()
def test_a_chain_is_solved_front_to_back() -> None:
    """Unfold, lstsq; put it in; unfold what the pruned network now computes, lstsq again."""
    model, images, ridge = chain(), pictures(12, 6), 0.03
    graph = trace(model, pictures(1, 6))
    plan = Plan.of(graph, {"0:out": KEEP})
    got = repair(graph, plan, images, ridge=ridge)

    inner = F.relu(model[0](images))
    want = refitted(inner[:, KEEP], model[2](inner), model[2].weight[:, KEEP], ridge)
    np.testing.assert_allclose(got[2].weight.flatten(1), want[:, :27], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(got[3].running_mean, model[3].running_mean.numpy() - want[:, 27], rtol=1e-8)

    weight, c = torch.tensor(want[:, :27]).view(4, 3, 3, 3), torch.tensor(want[:, 27]).view(1, 4, 1, 1)
    changed = F.relu(model[3](F.conv2d(inner[:, KEEP], weight) + c))
    last = refitted(changed, model(images), model[5].weight, ridge)
    np.testing.assert_allclose(got[5].weight.flatten(1), last[:, :4], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got[5].bias, last[:, 4], rtol=1e-7)


@pytest.mark.parametrize("inplace", [False, True])
@torch.no_grad()
def test_a_branch_makes_up_for_the_error_of_its_stream(inplace: bool) -> None:
    """The second branch is fitted to (stream behind the addition - stream of the pruned network), through its norm."""
    torch.manual_seed(0)
    model = Residual(inplace).double().eval()
    for norm in (model.na, model.nb):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    images, ridge = pictures(12, 6), 0.02
    graph = trace(model, pictures(1, 6))
    plan = Plan.of(graph, {"a1:out": KEEP, "b1:out": KEEP})
    got = repair(graph, plan, images, ridge=ridge, layers="cut")

    pruned = prune(graph, plan)
    pruned.a2.weight.copy_(got.a2.weight)  # the first block as it was repaired
    pruned.na.running_mean.copy_(got.na.running_mean)
    streams, inner = [], []
    for net in (model, pruned):
        stem = net.stem(images)
        stream = F.relu(net.na(net.a2(F.relu(net.a1(stem)))) + stem)
        streams.append(stream)
        inner.append(F.relu(net.b1(stream)))
    assert (streams[0] - streams[1]).abs().max() > 0.1
    scale = (model.nb.weight / (model.nb.running_var + model.nb.eps).sqrt()).view(1, 4, 1, 1)
    target = model.b2(inner[0]) + (streams[0] - streams[1]) / scale
    want = refitted(inner[1], target, model.b2.weight[:, KEEP], ridge, padding=1)
    np.testing.assert_allclose(got.b2.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.nb.running_mean, model.nb.running_mean.numpy() - want[:, 27], rtol=1e-7)


@torch.no_grad()
def test_readers_of_a_stream_are_solved_behind_their_selection() -> None:
    """b1 stops reading stream channel 1; its weights are fitted on channels 0, 2 and 3."""
    torch.manual_seed(0)
    model = Residual().double().eval()
    images, ridge = pictures(12, 6), 0.05
    graph = trace(model, pictures(1, 6))
    unit = next(n for n, u in graph.units.items() if n.startswith("b1:in"))
    got = repair(graph, Plan.of(graph, {unit: [0, 2, 3]}), images, ridge=ridge, layers="cut")
    stem = model.stem(images)
    stream = F.relu(model.na(model.a2(F.relu(model.a1(stem)))) + stem)
    want = refitted(stream[:, [0, 2, 3]], model.b1(stream), model.b1.weight[:, [0, 2, 3]], ridge, padding=1)
    np.testing.assert_allclose(got.b1.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.b1.bias, want[:, 27], rtol=1e-7)


@pytest.mark.parametrize("name", READERS)
def test_channels_that_say_nothing_new_are_given_back_exactly(name: str) -> None:
    model = seeded(READERS[name])
    if name == "depthwise":  # the filters of twins must be twins for the next layer to see nothing new
        with torch.no_grad():
            model[2].weight[4:] = model[2].weight[:4]  # type: ignore[index]
    graph = traced(model)
    plan = half_of(graph, next(iter(graph.units)))
    fresh = pictures(seed=1)
    with torch.no_grad():
        want, cut = model(fresh), prune(graph, plan)(fresh)
        got = repair(graph, plan, pictures(70), ridge=1e-12)(fresh)
    assert (cut - want).abs().max() > 0.05  # there was something to repair
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


def test_only_what_was_cut_is_solved_if_asked() -> None:
    model = seeded(READERS["two readers in a row"])
    graph = traced(model)
    plan = Plan.of(graph, {"0:out": range(3)})
    seen: list[tuple[int, int]] = []
    cut = repair(graph, plan, pictures(), layers="cut", progress=lambda *step: seen.append(step))
    everything = repair(graph, plan, pictures(), progress=lambda *step: seen.append(step))
    assert seen == [(1, 1), (1, 2), (2, 2)]
    assert torch.equal(cut[6].weight, model[6].weight)  # type: ignore[index]
    with torch.no_grad():
        errors = [float((m(pictures()) - model(pictures())).square().mean()) for m in (cut, everything)]
    assert errors[1] < 0.9 * errors[0]


def test_a_layer_that_computes_something_else_is_only_pruned(caplog: pytest.LogCaptureFixture) -> None:
    model = seeded(lambda: nn.Sequential(twins(conv(3, 8)), nn.ReLU(), Scaled(8, 5, 3)))
    graph = traced(model)
    plan = half_of(graph, "0:out")
    with caplog.at_level(logging.WARNING):
        got = repair(graph, plan, pictures())
    assert "2 (Scaled) is not a linear map" in caplog.text
    assert same_tensors(state_of(got), state_of(prune(graph, plan)))


def test_too_few_images_are_said_and_met_with_a_larger_ridge(caplog: pytest.LogCaptureFixture) -> None:
    """4 of 8 channels x 9 taps = 36 weights per filter; 2 rows for each are 72, and an image gives 16."""
    model = seeded(lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 5)))
    graph = traced(model)
    plan = half_of(graph, "0:out")
    cut = prune(graph, plan)
    with caplog.at_level(logging.WARNING):
        few = repair(graph, plan, pictures(2))
    assert (
        "2 images are too few for 1 of the layers: 2 has 36 weights per filter, an image gives it 16 rows, and it "
        "needs at least 5 images. A larger ridge is used there."
    ) in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        repair(graph, plan, pictures(5))
    assert caplog.text == ""
    small = repair(graph, plan, pictures(2), ridge=1e-6)  # as asked, though it fits noise
    moved = [float((m[2].weight - cut[2].weight).detach().norm()) for m in (few, small)]  # type: ignore[index]
    assert moved[0] < 0.5 * moved[1]
    with torch.no_grad():
        fresh = pictures(100, seed=5)
        errors = [float((m(fresh) - model(fresh)).square().mean()) for m in (few, cut)]
    assert errors[0] < errors[1]  # even two images help


class SamePadding(nn.Conv2d):
    """Pads as TensorFlow does, one more at the end, and then convolves without padding."""

    def forward(self, x: Tensor) -> Tensor:
        size, stride, kernel = x.shape[-1], self.stride[0], self.kernel_size[0]
        around = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        x = F.pad(x, [around // 2, around - around // 2] * 2)
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


LAYERS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "pads by itself": (2, lambda: SamePadding(8, 4, 3, stride=2)),
    "pads by itself, depthwise": (2, lambda: SamePadding(8, 8, 3, stride=2, groups=8)),
    "even kernel, same": (2, lambda: nn.Conv2d(8, 4, (2, 3), padding="same", dilation=(1, 2))),
    "circular": (2, lambda: nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular")),
    "grouped": (2, lambda: nn.Conv2d(8, 4, 3, padding=1, groups=2)),
    "depthwise": (2, lambda: nn.Conv2d(8, 16, 3, padding=1, groups=8)),
    "transposed 1-D": (1, lambda: nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1)),
    "transposed 2-D": (2, lambda: nn.ConvTranspose2d(8, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=2)),
    "transposed, grouped": (2, lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1, groups=2)),
    "transposed, depthwise": (2, lambda: nn.ConvTranspose2d(8, 8, 3, stride=2, padding=1, groups=8)),
    "transposed 3-D": (3, lambda: nn.ConvTranspose3d(8, 4, 2, stride=2, padding=1)),
}


def network(name: str) -> tuple[nn.Sequential, Callable[[int], Tensor]]:
    dims, build = LAYERS[name]
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = build()
    # A depthwise layer loses its inputs only with its outputs. So it has the changed output of another layer in front.
    between = [conv(8, 8, 1), nn.Tanh()] if is_depthwise(layer) else []
    size = (4, 5, 3) if dims == 3 else (6,) * dims

    def pictures(count: int) -> Tensor:
        return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    return nn.Sequential(conv(3, 8, 1), nn.Tanh(), *between, layer).double().eval(), pictures


def columns_of(layer: Any, x: Tensor) -> Tensor:
    """[rows, outputs, n]: what each output would be if one weight of its filter were 1 and the others 0."""
    probe = copy.deepcopy(layer)
    probe.bias.zero_()
    inputs = layer.in_channels // layer.groups
    found = []
    for i, *tap in itertools.product(range(inputs), *(range(k) for k in layer.kernel_size)):
        probe.weight.zero_()
        if isinstance(layer, TRANSPOSED):
            probe.weight[(slice(i, None, inputs), slice(None), *tap)] = 1  # input i of each group
        else:
            probe.weight[(slice(None), i, *tap)] = 1
        found.append(probe(x).movedim(1, -1).flatten(0, -2))
    return torch.stack(found, -1)


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_solved_weights_equal_dense_least_squares_and_rows_times_weights_are_the_layer(name: str) -> None:
    model, pictures = network(name)
    images, ridge = pictures(9), 0.02
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": KEPT})
    got: Any = repair(graph, plan, images, ridge=ridge, positions=10_000)
    start = rows_of_weight(prune(graph, plan)[-1]).flatten(0, 1)  # type: ignore[index]  # [O, n]
    weights = rows_of_weight(got[-1]).flatten(0, 1)

    columns = columns_of(got[-1], got[:-1](images))
    target = model(images).movedim(1, -1).flatten(0, -2)
    assert len(start) == len(weights) == target.shape[1]
    for o, (before, weight) in enumerate(zip(start.numpy(), weights.numpy(), strict=True)):
        want = naive(columns[:, o].numpy(), target[:, o : o + 1].numpy(), before[None], ridge, True)[0]
        np.testing.assert_allclose([*weight, float(got[-1].bias[o])], want, rtol=1e-6, atol=1e-8)
    assert (weights - start).abs().max() > 1e-3  # there was something to solve

    layer: Any = model[-1]
    x = model[:-1](pictures(3))
    y = layer(x)
    where = spots_of(range(3), grid_of(layer, y), 5, (0,))
    rows = inputs_at(layer, x, where).flatten(3)
    mine = torch.einsum("ipgn,gon->ipgo", rows, rows_of_weight(layer)).flatten(2) + layer.bias
    torch.testing.assert_close(mine, outputs_at(layer, y, where))
    assert acts_plainly(layer, x)
    assert torch.equal(weight_of_rows(layer, rows_of_weight(layer)), layer.weight)
