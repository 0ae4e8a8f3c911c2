"""Goals in numbers, budgets of single rounds, and goals in bytes of activations (the largest sum of all calls)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.costs import PeakCost, cost_function
from prunus.deciding.goal import Budget, Goal, parse_number
from prunus.deciding.optimiser import keep_within, least_cost
from prunus.deciding.widths import Cutter, WidthLimits
from prunus.errors import DecideError
from prunus.scoring.scores import Scores
from tests import nets


def test_budgets() -> None:
    found = pr.trace(nets.Chain().eval(), torch.zeros(1, 3, 8, 8))
    assert Goal(target=0.25).budget(found) == Budget("macs", 0.75 * found.macs, found.macs)
    assert Goal(params=100).budget(found) == Budget("params", 100.0, found.params)
    assert Goal(macs=200.0, max_drop=1.0).budget(found) == Budget("macs", 200.0, found.macs)
    assert Goal(max_drop=1.0).budget(found).left is None and Goal(ratio=0.5).budget(found).left is None


def test_a_budget_is_met_within_half_a_per_cent_of_the_whole_in_even_steps() -> None:
    budget = Budget("macs", 400.0, 1000.0)
    assert budget.met(405) and not budget.met(406) and not Budget("macs", None, 1000.0).met(1)
    assert [budget.aim(1000.0, 3).left, budget.aim(800.0, 2).left, budget.aim(600.0, 1).left] == [800, 600, 400]
    assert budget.aim(600.0, -1).left == 400  # more rounds than planned: the goal itself


@pytest.mark.parametrize("text, number", [("63M", 63e6), ("400k", 4e5), ("2.3G", 2.3e9), ("1B", 1e9), ("17", 17.0)])
def test_numbers_with_suffixes(text: str, number: float) -> None:
    assert parse_number(text) == pytest.approx(number)


class Hourglass(nn.Module):
    """Three maps of 8, 6 and 8 channels, 8 x 8 pixels each: the peaks are at the second and third convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 1)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c(self.b(self.a(x))))  # type: ignore[no-any-return]


PIXELS = 8 * 8 * 4


def scored(graph: pr.ChannelGraph, seed: int) -> Scores:
    draw = np.random.default_rng(seed)
    values = {n: np.sort(draw.uniform(0.1, 1, u.width)).cumsum() for n, u in graph.units.items()}
    return Scores("test", values)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("channels", [12, 9])
def test_the_plan_is_within_the_memory_and_close_to_the_best(seed: int, channels: int) -> None:
    graph = pr.trace(Hourglass(), torch.zeros(1, 1, 8, 8))
    names, scores = list(graph.units), scored(graph, seed)
    cost = cost_function(graph, "memory")
    assert isinstance(cost, PeakCost) and cost({}) == 14 * PIXELS == graph.memory.peak()
    keep = keep_within(Cutter(graph, scores, WidthLimits(1)), names, cost, channels * PIXELS)
    assert keep is not None
    small = pr.prune(graph, pr.Plan.of(graph, graph.balance(keep))).eval()
    assert pr.trace(small, torch.zeros(1, 1, 8, 8)).memory.peak() <= channels * PIXELS

    def error(widths: Any) -> float:
        lost = {n: graph.units[n].width - w for n, w in zip(names, widths, strict=True)}
        return sum(float(np.sort(scores.values[n])[count - 1]) if count else 0.0 for n, count in lost.items())

    # By hand: a + b, b + c and the single maps beside the input and output must fit.
    every = itertools.product(range(2, 9), range(2, 7), range(2, 9))
    best = min(error(w) for w in every if w[0] + w[1] <= channels and w[1] + w[2] <= channels)
    found = error([len(keep.get(n, range(graph.units[n].width))) for n in names])
    assert best <= found + 1e-9 and found <= 1.35 * best


def test_streams_are_lowered_if_they_are_coupled() -> None:
    graph = pr.trace(nets.Residual().eval(), torch.zeros(1, 3, 16, 16), "coupled")
    cost, whole = cost_function(graph, "memory"), graph.memory.peak()
    keep = keep_within(Cutter(graph, scored(graph, 0), WidthLimits(1)), list(graph.units), cost, 0.7 * whole)
    assert keep is not None and cost(keep) <= 0.7 * whole
    small = pr.prune(graph, pr.Plan.of(graph, graph.balance(keep)))
    assert pr.trace(small, torch.zeros(1, 3, 16, 16), "coupled").memory.peak() <= 0.7 * whole


def test_goals_that_are_met_already_or_out_of_reach() -> None:
    graph = pr.trace(Hourglass(), torch.zeros(1, 1, 8, 8))
    assert pr.Goal(max_memory="3K").max_memory == 3 * 1024  # type: ignore[arg-type]
    with pytest.raises(DecideError, match=r"it takes 3\.5 KiB, and may take 4\.0 KiB"):
        pr.Goal(max_memory="4K").budget(graph)  # type: ignore[arg-type]
    budget = pr.Goal(max_memory=PIXELS).budget(graph)
    least = least_cost(Cutter(graph, scored(graph, 0), WidthLimits(1)), list(graph.units), budget.of(graph))
    assert least == 4 * PIXELS  # two channels of each map
    assert "256 bytes of activations are out of reach" in budget.out_of_reach(least)
    assert keep_within(Cutter(graph, scored(graph, 0)), list(graph.units), budget.of(graph), PIXELS) is None
