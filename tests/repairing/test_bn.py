"""Corrected batch-norm statistics beside plain means and variances."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunus.graph.channel_graph import prune, trace
from prunus.graph.plan import Plan
from prunus.repairing.repair import repair
from tests.repairing.toys import KEEP, Residual, pictures


@torch.no_grad()
def test_a_norm_that_carries_a_selection_is_corrected_for_what_it_selects() -> None:
    torch.manual_seed(0)

    class PreActivation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)
            self.n, self.c, self.d = nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.Conv2d(5, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = x + self.b(F.relu(self.a(x)))
            return x + self.d(self.c(F.relu(self.n(x))))

    model, images = PreActivation().double().eval(), pictures(12, 6)
    graph = trace(model, pictures(1, 6))
    (unit,) = (n for n in graph.units if n.startswith("c:in"))
    plan = Plan.of(graph, {"a:out": [0, 1, 2], unit: [1, 2]})
    got = repair(graph, plan, images, how="bn")
    cut = prune(graph, plan)
    streams = [net.stem(images) + net.b(F.relu(net.a(net.stem(images)))) for net in (model, cut)]
    means = [s.mean((0, 2, 3))[[1, 2]].numpy() for s in streams]
    np.testing.assert_allclose(got.n.running_mean, means[1] - means[0], rtol=1e-9)


@torch.no_grad()
def test_statistics_shift_by_the_difference_of_the_two_networks() -> None:
    """The second norm sees what the first one, corrected, lets through."""
    torch.manual_seed(0)
    model = Residual().double().eval()
    images = pictures(90, 6)
    graph = trace(model, images[:1])
    got = repair(graph, Plan.of(graph, {"a1:out": KEEP}), images, how="bn")
    stem = model.stem(images)
    first = [net.a2(F.relu(net.a1(stem))) for net in (model, got)]
    streams = [F.relu(net.na(x) + stem) for net, x in zip((model, got), first, strict=True)]
    second = [net.b2(F.relu(net.b1(x))) for net, x in zip((model, got), streams, strict=True)]
    assert (streams[0] - streams[1]).abs().max() > 0.05
    for name, (before, after) in (("na", first), ("nb", second)):
        norm, old = got.get_submodule(name), model.get_submodule(name)
        shift = after.mean((0, 2, 3)) - before.mean((0, 2, 3))
        ratio = after.var((0, 2, 3), correction=0) / before.var((0, 2, 3), correction=0)
        torch.testing.assert_close(norm.running_mean, old.running_mean + shift)
        torch.testing.assert_close(norm.running_var, old.running_var * ratio)
    assert all(torch.equal(a, got.get_parameter(name)) for name, a in model.named_parameters() if name[0] == "b")
