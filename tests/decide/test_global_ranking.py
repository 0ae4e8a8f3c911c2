"""One ranking of all channels, beside a loop that removes them one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import prunus as sc
from prunus.decide.amounts import Cutter
from prunus.decide.goal import Goal
from prunus.decide.settings import SplitSettings
from prunus.decide.splits import SPLITS, SplitTask
from prunus.decide.splits.global_ranking import global_ranking
from prunus.errors import DecideError
from prunus.score.scores import Scores
from tests.decide.toys import random_scores, seeded
from tests.proof import counted_macs

WIDTHS = (8, 20, 30)
FLOORS = (2, 2, 3)
EXAMPLE = torch.zeros(1, 3, 8, 8)


def net() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *WIDTHS), (*WIDTHS, 4), strict=True):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.2])
def test_channels_go_from_the_lowest_score_until_the_goal_is_met(share: float) -> None:
    model = seeded(net)
    graph = sc.trace(model, EXAMPLE)
    draw, names = np.random.default_rng(0), list(graph.units)
    scores = Scores("drawn", {name: draw.normal(size=graph.units[name].width) for name in names})
    goal = share * counted_macs(model, EXAMPLE)
    kept = {name: set(range(width)) for name, width in zip(names, WIDTHS, strict=True)}

    def macs() -> int:
        a, b, c = (len(kept[name]) for name in names)
        return 9 * 64 * (3 * a + a * b + b * c + 4 * c)

    every = sorted((float(v), name, i) for name in names for i, v in enumerate(scores.values[name]))
    for _, name, channel in every:
        if macs() <= goal:
            break
        if len(kept[name]) > FLOORS[names.index(name)]:
            kept[name].discard(channel)
    plan = global_ranking(Cutter(graph, scores), names, goal)
    assert {name: set(plan.keep[name]) for name in names} == kept
    assert counted_macs(sc.prune(graph, plan), EXAMPLE) == macs() <= goal


def test_the_default_is_the_threshold_of_network_slimming() -> None:
    """|scale| of the batch norms over the whole network, one threshold; what is below it goes."""
    model = seeded(net)
    graph = sc.trace(model, EXAMPLE)
    split = SPLITS["global_ranking"]
    assert split.metric == "bn_scale" and not split.ranks
    scores = sc.score(graph, metric="bn_scale")
    budget = Goal(target=0.4).budget(graph)
    task = SplitTask(graph, scores, budget, SplitSettings(), lambda _: pytest.fail("ranks nothing"))
    plan = split.plan(task)
    scales = [model[place].weight.detach().abs().numpy() for place in (1, 4, 7)]
    gone = np.concatenate([np.delete(s, list(plan.keep[n])) for s, n in zip(scales, graph.units, strict=True)])
    stay = np.concatenate([s[list(plan.keep[n])] for s, n in zip(scales, graph.units, strict=True)])
    assert gone.max() < stay.min()  # no floor is in the way here
    assert graph.cost(plan).macs <= 0.6 * graph.macs


def test_what_it_refuses() -> None:
    graph = sc.trace(seeded(net), EXAMPLE)
    with pytest.raises(DecideError, match="out of reach"):
        global_ranking(Cutter(graph, random_scores(graph)), list(graph.units), 0.001 * graph.macs)
    plain = sc.trace(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), EXAMPLE)
    scores = sc.score(plain, metric="bn_scale")
    task = SplitTask(plain, scores, Goal(target=0.4).budget(plain), SplitSettings(), lambda _: pytest.fail("ranks"))
    with pytest.raises(DecideError, match="no unit has a batch norm of its own"):
        SPLITS["global_ranking"].plan(task)
