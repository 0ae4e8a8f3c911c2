"""Each unit repaired by itself: beside `repair` of the same cut, and beside dense least squares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prunus as pr
from prunus.repairing.least_squares import RIDGES
from tests.repairing.toys import KEEP, READERS, Residual, conv, part_of_each_block, pictures, refitted, seeded
from tests.scoring.toys import chain
from tests.train.toys import same_tensors, state_of

BUILDS: dict[str, Callable[[], nn.Module]] = {
    **{name: READERS[name] for name in ("plain", "strided, padded, dilated", "reflected", "linear", "sizes looked at")},
    "residual": Residual,
    "grouped": lambda: nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6, groups=2), nn.BatchNorm2d(6)),
}


@pytest.mark.parametrize("name", BUILDS)
@torch.no_grad()
def test_every_unit_comes_out_as_the_whole_repair_gives_it(name: str) -> None:
    """`repair(layers="cut")` prunes, runs both networks and solves; here one pass served all units."""
    model = seeded(BUILDS[name])
    graph = pr.trace(model, pictures(1))
    images, fresh = pictures(70), pictures(9, seed=1)
    units = pr.repair_each(graph, images)
    for unit in graph.units.values():
        kept = part_of_each_block(unit, slice(None, None, 2))
        plan = pr.Plan.of(graph, {unit.name: kept})
        want, cut = pr.repair(graph, plan, images, layers="cut")(fresh), pr.prune(graph, plan)(fresh)
        with units(unit.name, kept):
            got = model(fresh)
        assert torch.allclose(got, want, rtol=1e-7, atol=1e-9)
        assert (cut - want).abs().max() > 1e-3  # the repair did something


@torch.no_grad()
def test_one_reader_beside_lstsq_and_a_naive_choice_of_the_ridge() -> None:
    model, images = chain(), pictures(12, side=6)
    graph = pr.trace(model, images[:1])
    inner = F.relu(model[0](images))
    x, y, start = inner[:, KEEP], model[2](inner), model[2].weight[:, KEEP]
    out = torch.arange(12) % 5 == 4
    errors = []
    for ridge in RIDGES:
        fit = torch.from_numpy(refitted(x[~out], y[~out], start, ridge))
        gap = y[out] - F.conv2d(x[out], fit[:, :27].view(4, 3, 3, 3), fit[:, 27])
        errors.append(float((gap.square().mean((0, 2, 3)) / y[out].var((0, 2, 3), correction=0)).mean()))
    want = refitted(x, y, start, RIDGES[int(np.argmin(errors))])
    mean = model[3].running_mean.clone()
    with pr.repair_each(graph, images)("0:out", KEEP):
        np.testing.assert_allclose(model[2].weight[:, KEEP].flatten(1), want[:, :27], rtol=1e-6, atol=1e-9)
        assert not model[2].weight[:, [1, 3, 4]].any()
        np.testing.assert_allclose(model[3].running_mean, mean.numpy() - want[:, 27], rtol=1e-6)


def test_everything_is_put_back_on_errors_too() -> None:
    model = seeded(READERS["two readers in a row"])
    model.train()
    before, state = state_of(model), torch.random.get_rng_state()
    graph = pr.trace(model, pictures(1))
    units = pr.repair_each(graph, pictures(20))
    with pytest.raises(ZeroDivisionError), units("0:out", [0, 1, 2]):
        assert not same_tensors(state_of(model), before)
        raise ZeroDivisionError
    assert same_tensors(state_of(model), before) and all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)
