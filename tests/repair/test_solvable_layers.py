"""Every kind of convolution is solved: the weights equal dense least squares on columns that the layer itself makes."""

from __future__ import annotations

import copy
import itertools
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
from prunus.repair.repair import repair
from prunus.score.rows import acts_plainly, grid_of, inputs_at, outputs_at, rows_of_weight, spots_of, weight_of_rows
from tests.repair.test_least_squares import naive

KEEP = [0, 2, 4, 5]  # of 8; each half of the channels keeps as many


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
def test_solved_weights_equal_dense_least_squares(name: str) -> None:
    model, pictures = network(name)
    images, ridge = pictures(9), 0.02
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": KEEP})
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


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_rows_times_weights_are_the_layer(name: str) -> None:
    model, pictures = network(name)
    layer: Any = model[-1]
    x = model[:-1](pictures(3))
    y = layer(x)
    where = spots_of(range(3), grid_of(layer, y), 5, (0,))
    mine = (
        torch.einsum("ipgn,gon->ipgo", inputs_at(layer, x, where).flatten(3), rows_of_weight(layer)).flatten(2)
        + layer.bias
    )
    torch.testing.assert_close(mine, outputs_at(layer, y, where))
    assert acts_plainly(layer, x)
    assert torch.equal(weight_of_rows(layer, rows_of_weight(layer)), layer.weight)
