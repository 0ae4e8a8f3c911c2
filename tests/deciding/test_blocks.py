"""Units that may lose all of their channels: the split of the least error beside a search through all splits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.goal import Budget
from prunus.deciding.settings import SplitSettings
from prunus.deciding.splits import SplitTask, global_ranking, least_error, lowest_cost, uniform_within
from prunus.deciding.widths import WidthLimits
from prunus.scoring.scores import Scores

EXAMPLE = torch.zeros(1, 3, 6, 6)


class Blocks(nn.Module):
    """A basic block and a bottleneck, whose first layer neither reads nor writes the unit that takes it along."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.a1, self.a2 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.b1, self.b2, self.b3 = nn.Conv2d(6, 5, 1), nn.Conv2d(5, 5, 3, padding=1), nn.Conv2d(5, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(x + self.a2(torch.relu(self.a1(x))))
        x = x + self.b3(torch.relu(self.b2(torch.relu(self.b1(x)))))
        return self.head(x.mean((2, 3)))


WIDTHS = {"a1:out": 6, "b1:out": 5, "b2:out": 5}


def macs(kept: dict[str, int]) -> int:
    """Multiply-adds by hand; a branch without channels costs nothing."""
    a, b, c = (kept.get(name, width) for name, width in WIDTHS.items())
    block_a = 36 * 9 * (6 * a + a * 6)
    block_b = 36 * (6 * b + 9 * b * c + c * 6) if c else 0
    return 36 * 9 * 3 * 6 + block_a + block_b + 6 * 4


@pytest.fixture(scope="module")
def graph() -> pr.ChannelGraph:
    torch.manual_seed(0)
    return pr.trace(Blocks(), EXAMPLE)


def task_of(graph: pr.ChannelGraph, seed: int, share: float, **settings: object) -> SplitTask:
    draw = np.random.default_rng(seed)
    errors = {n: np.cumsum(draw.exponential(size=w)) ** 1.5 * draw.uniform(0.5, 2) for n, w in WIDTHS.items()}
    chosen = SplitSettings(**{"split": "least_error", "only": ("*:out",), "blocks": True, **settings})
    return SplitTask(graph, Scores("errors", errors), Budget("macs", share * graph.macs, graph.macs), chosen)


@pytest.mark.parametrize("share", [0.8, 0.6, 0.4, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_least_error_of_all_splits(graph: pr.ChannelGraph, seed: int, share: float) -> None:
    task = task_of(graph, seed, share)
    errors = task.scores.values
    best = np.inf
    floors = dict.fromkeys(WIDTHS, 2)
    choices = [[0, *range(floors[name], width + 1)] for name, width in WIDTHS.items()]
    choices[1] = choices[1][1:]  # the first unit of the bottleneck goes with the second only
    for kept in itertools.product(*choices):
        if macs(dict(zip(WIDTHS, kept, strict=True))) <= share * graph.macs:
            lost = {name: WIDTHS[name] - k for name, k in zip(WIDTHS, kept, strict=True)}
            best = min(best, sum(errors[name][n - 1] for name, n in lost.items() if n))
    plan = least_error(task)
    kept = {name: len(plan.keep[name]) for name in WIDTHS}
    assert graph.cost(plan).macs == macs(kept) <= share * graph.macs
    found = sum(errors[name][WIDTHS[name] - n - 1] for name, n in kept.items() if n < WIDTHS[name])
    assert best <= found * (1 + 1e-9) <= 1.05 * best
    without = least_error(task_of(graph, seed, share, blocks=False)) if share > 0.5 else None
    assert without is None or all(without.keep.values())


def test_a_branch_goes_when_it_is_worth_least(graph: pr.ChannelGraph) -> None:
    task = task_of(graph, 0, 0.75)
    cheap = {
        name: np.arange(1.0, len(values) + 1) * (1e-6 if name == "b2:out" else 1e3)
        for name, values in task.scores.values.items()
    }
    plan = least_error(SplitTask(graph, Scores("errors", cheap), task.budget, task.settings))
    assert plan.keep["b2:out"] == ()
    assert len(plan.keep["a1:out"]) == 6


def test_other_splits_never_remove_a_branch(graph: pr.ChannelGraph) -> None:
    for split in (uniform_within, global_ranking):
        plan = split(task_of(graph, 0, 0.6, split=split.__name__))
        assert all(plan.keep.values())
    unit = graph.units["a1:out"]
    assert WidthLimits().choices(unit) == [0, 1, 2, 3, 4]
    assert WidthLimits(blocks=True).choices(unit) == [0, 1, 2, 3, 4, 6]
    assert WidthLimits(blocks=True, known={"a1:out": (4,)}).choices(unit) == [0, 2, 6]


def test_branches_extend_what_can_be_reached(graph: pr.ChannelGraph) -> None:
    task = task_of(graph, 0, 0.5)
    names = [*WIDTHS]
    assert lowest_cost(graph, names, task.cost) == macs({"a1:out": 2, "b1:out": 2, "b2:out": 2})
    assert lowest_cost(graph, names, task.cost, blocks=True) == macs({"a1:out": 0, "b2:out": 0})
