"""Repair around branches that are gone: layers in front of a gap make up for what the branch added."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import prunus as pr

IMAGE = torch.zeros(1, 3, 6, 6)


class Net(nn.Module):
    """Two blocks with an identity and one with a projection in the shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.a1, self.a2, self.norm = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6)
        self.b1, self.b2 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.c1, self.c2, self.project = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 8, 1), nn.Conv2d(6, 8, 1)
        self.head = nn.Linear(8, 4)

    def a(self, x: Tensor) -> Tensor:
        return F.relu(self.a1(x))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.norm(self.a2(self.a(x))))
        x = F.relu(x + self.b2(F.relu(self.b1(x))))
        x = self.project(x) + self.c2(F.relu(self.c1(x)))
        return self.head(x.mean((2, 3)))


def made() -> Net:
    torch.manual_seed(1)
    net = Net().eval()
    nn.init.uniform_(net.norm.weight, 0.5, 1.5)
    nn.init.uniform_(net.norm.bias, -0.5, 0.5)
    net.norm.running_mean.uniform_(-0.2, 0.2)
    net.norm.running_var.uniform_(0.5, 2.0)
    return net


def repaired(net: Net, unit: str, images: Tensor) -> Net:
    graph = pr.trace(net, IMAGE)
    return pr.repair(graph, pr.Plan.of(graph, {unit: ()}), images, ridge=1e-8, progress=False).eval()  # type: ignore[return-value]


def rows(x: Tensor) -> Tensor:
    """[N, C, H, W] -> [N H W, C]."""
    return x.movedim(1, -1).flatten(0, 2)


def least_squares_error(inputs: Tensor, target: Tensor) -> float:
    """The smallest mean square error of a 1x1 convolution with a bias, by a dense solver."""
    x = torch.cat([rows(inputs), torch.ones(rows(inputs).shape[0], 1)], 1).double()
    y = rows(target).double()
    return float((x @ torch.linalg.lstsq(x, y).solution - y).square().mean())


@torch.no_grad()
def test_a_projection_beside_the_gap_is_solved_for_the_whole_sum() -> None:
    net, images = made(), torch.randn(400, 3, 6, 6)
    small = repaired(net, "c1:out", images)
    x = F.relu(net.stem(images))
    x = F.relu(x + net.norm(net.a2(net.a(x))))
    x = F.relu(x + net.b2(F.relu(net.b1(x))))
    target = net.project(x) + net.c2(F.relu(net.c1(x)))
    best = least_squares_error(x, target)
    assert float((small.project(x) - target).square().mean()) == pytest.approx(best, rel=0.02)
    assert float((net.project(x) - target).square().mean()) > 3 * best


@torch.no_grad()
def test_the_block_in_front_of_the_gap_is_solved_for_the_sum_behind_it() -> None:
    net, images = made(), torch.randn(400, 3, 6, 6)
    small = repaired(net, "b1:out", images)
    x = F.relu(net.stem(images))
    y = F.relu(x + net.norm(net.a2(net.a(x))))
    target = y + net.b2(F.relu(net.b1(y)))  # behind the gap, before its activation
    best = least_squares_error(net.a(x), target - x)  # a2 and its norm, an affine map, make up for the rest
    assert float((x + small.norm(small.a2(small.a(x))) - target).square().mean()) == pytest.approx(best, rel=0.02)
    torch.testing.assert_close(small.a1.weight, net.a1.weight)  # in front of it, nothing has changed


@torch.no_grad()
@pytest.mark.parametrize("how", ["solve", "bn"])
def test_networks_with_gaps_are_repaired(how: str) -> None:
    net, images, others = made(), torch.randn(400, 3, 6, 6), torch.randn(400, 3, 6, 6)
    graph = pr.trace(net, IMAGE)
    plan = pr.Plan.of(graph, {"a1:out": (), "c1:out": (), "b1:out": (0, 2, 3)})
    cut = pr.prune(graph, plan).eval()
    small = pr.repair(graph, plan, images, how=how, progress=False).eval()
    before, after = (float((each(others) - net(others)).square().mean()) for each in (cut, small))
    assert after < (0.3 if how == "solve" else 1.01) * before
