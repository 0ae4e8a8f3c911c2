"""Solved layers beside dense least squares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.repair.repair import repair
from tests.repair.test_least_squares import naive

KEEP = [0, 2, 5]


def pictures(count: int = 12, side: int = 6, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, side, side, generator=draw, dtype=torch.float64)


def chain() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
    ).double()
    nn.init.uniform_(net[3].running_var, 0.5, 2.0)
    nn.init.normal_(net[3].running_mean)
    return net.eval()


@torch.no_grad()
def test_a_chain_is_solved_front_to_back() -> None:
    """Unfold, lstsq; put it in; unfold what the pruned network now computes, lstsq again."""
    model, images, ridge = chain(), pictures(), 0.03
    graph = trace(model, pictures(1))
    plan = Plan.of(graph, {"0:out": KEEP})
    got = repair(graph, plan, images, ridge=ridge)

    inner = F.relu(model[0](images))
    columns = F.unfold(inner[:, KEEP], 3).transpose(1, 2).reshape(-1, 27).numpy()
    middle = model[2](inner)
    want = naive(
        columns,
        middle.permute(0, 2, 3, 1).reshape(-1, 4).numpy(),
        model[2].weight[:, KEEP].flatten(1).numpy(),
        ridge,
        True,
    )
    np.testing.assert_allclose(got[2].weight.flatten(1), want[:, :27], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(got[3].running_mean, model[3].running_mean.numpy() - want[:, 27], rtol=1e-8)

    weight, c = torch.tensor(want[:, :27]).view(4, 3, 3, 3), torch.tensor(want[:, 27]).view(1, 4, 1, 1)
    changed = F.relu(model[3](F.conv2d(inner[:, KEEP], weight) + c))
    target = model(images).permute(0, 2, 3, 1).reshape(-1, 2).numpy()
    last = naive(
        changed.permute(0, 2, 3, 1).reshape(-1, 4).numpy(), target, model[5].weight.flatten(1).numpy(), ridge, True
    )
    np.testing.assert_allclose(got[5].weight.flatten(1), last[:, :4], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got[5].bias, last[:, 4], rtol=1e-7)


class Residual(nn.Module):
    """Two blocks; the shortcut is called after the branch, as many networks do."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.stem, self.shortcut, self.inplace = nn.Conv2d(3, 4, 1), nn.Identity(), inplace
        self.a1, self.a2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.b1, self.b2 = nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.na, self.nb = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = F.relu(self.na(self.a2(F.relu(self.a1(x)))) + self.shortcut(x), inplace=self.inplace)
        y = self.nb(self.b2(F.relu(self.b1(x), inplace=self.inplace)))
        if self.inplace:
            y += x
            return y
        return y + self.shortcut(x)


@pytest.mark.parametrize("inplace", [False, True])
@torch.no_grad()
def test_a_branch_makes_up_for_the_error_of_its_stream(inplace: bool) -> None:
    """The second branch is fitted to (stream behind the addition - stream of the pruned network), through its norm."""
    torch.manual_seed(0)
    model = Residual(inplace).double().eval()
    for norm in (model.na, model.nb):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    images, ridge = pictures(), 0.02
    graph = trace(model, pictures(1))
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
    columns = F.unfold(inner[1], 3, padding=1).transpose(1, 2).reshape(-1, 27).numpy()
    start = model.b2.weight[:, KEEP].flatten(1).numpy()
    want = naive(columns, target.permute(0, 2, 3, 1).reshape(-1, 4).numpy(), start, ridge, True)
    np.testing.assert_allclose(got.b2.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.nb.running_mean, model.nb.running_mean.numpy() - want[:, 27], rtol=1e-7)


@torch.no_grad()
def test_readers_of_a_stream_are_solved_behind_their_selection() -> None:
    """b1 stops reading stream channel 1; its weights are fitted on channels 0, 2 and 3."""
    torch.manual_seed(0)
    model = Residual().double().eval()
    images, ridge = pictures(), 0.05
    graph = trace(model, pictures(1))
    unit = next(n for n, u in graph.units.items() if n.startswith("b1:in"))
    got = repair(graph, Plan.of(graph, {unit: [0, 2, 3]}), images, ridge=ridge, layers="cut")
    stem = model.stem(images)
    stream = F.relu(model.na(model.a2(F.relu(model.a1(stem)))) + stem)
    columns = F.unfold(stream[:, [0, 2, 3]], 3, padding=1).transpose(1, 2).reshape(-1, 27).numpy()
    target = model.b1(stream).permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    want = naive(columns, target, model.b1.weight[:, [0, 2, 3]].flatten(1).numpy(), ridge, True)
    np.testing.assert_allclose(got.b1.weight.flatten(1), want[:, :27], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(got.b1.bias, want[:, 27], rtol=1e-7)
