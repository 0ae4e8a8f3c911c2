"""One share for all units, as large as the cost that is to be left asks for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prunus as sc
from prunus.decide.amounts import Cutter
from prunus.decide.candidates import WidthLimits
from prunus.decide.splits.uniform import uniform_within
from prunus.errors import DecideError
from tests.decide.toys import random_scores, seeded, without_weakest
from tests.proof import counted_macs

WIDTHS = (8, 20, 30)
EXAMPLE = torch.zeros(1, 3, 8, 8)


def net() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *WIDTHS), (*WIDTHS, 4), strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("share_left", [0.9, 0.5, 0.2])
def test_the_smallest_share_that_meets_the_goal(share_left: float) -> None:
    """Beside a search through all shares in steps of 1/1000, MACs counted by PyTorch's own counter."""
    model = seeded(net)
    graph = sc.trace(model, EXAMPLE)
    scores = random_scores(graph)
    names = list(graph.units)
    goal = share_left * counted_macs(model, EXAMPLE)

    def macs(removed: list[int]) -> int:
        a, b, c = (width - gone for width, gone in zip(WIDTHS, removed, strict=True))
        return 9 * 64 * (3 * a + a * b + b * c + 4 * c)

    floors = [2, 2, 3]
    for step in range(1001):
        removed = [min(round(step / 1000 * w), w - f) for w, f in zip(WIDTHS, floors, strict=True)]
        if macs(removed) <= goal:
            break
    plan = uniform_within(Cutter(graph, scores), names, goal)
    found = [plan.removed()[name] for name in names]
    assert all(0 <= most - got <= 1 for most, got in zip(removed, found, strict=True))  # a step may be given back
    small = sc.prune(graph, plan)
    assert counted_macs(small, EXAMPLE) == macs(found) <= goal
    for i in range(3):  # and no more can be given back
        less = [got - (i == j) for j, got in enumerate(found)]
        assert found[i] < removed[i] or less[i] < 0 or macs(less) > goal
    for name in names:
        kept = without_weakest(graph.units[name], scores.values[name], plan.removed()[name])
        assert list(plan.keep[name]) == kept


def test_what_cannot_be_reached_and_widths_in_steps() -> None:
    graph = sc.trace(seeded(net), EXAMPLE)
    scores = random_scores(graph)
    with pytest.raises(DecideError, match=r"removing 99\.9% of the macs is out of reach: with every unit at its floor"):
        uniform_within(Cutter(graph, scores), list(graph.units), 0.001 * graph.macs)
    plan = uniform_within(Cutter(graph, scores, WidthLimits(4)), list(graph.units), 0.5 * graph.macs)
    assert all(len(kept) % 4 == 0 or len(kept) == graph.units[name].width for name, kept in plan.keep.items())
    assert graph.cost(plan).macs <= 0.5 * graph.macs
