"""Units that may lose all of their channels: the split of the least error beside a search through all splits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.deciding.goal import Budget
from prunus.deciding.settings import SplitSettings
from prunus.deciding.splits import SplitInputs, global_ranking, least_error, lowest_cost, uniform_within
from prunus.deciding.widths import WidthLimits
from prunus.errors import DecideError
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


def inputs_of(graph: pr.ChannelGraph, seed: int, share: float, **settings: object) -> SplitInputs:
    draw = np.random.default_rng(seed)
    errors = {n: np.cumsum(draw.exponential(size=w)) ** 1.5 * draw.uniform(0.5, 2) for n, w in WIDTHS.items()}
    chosen = SplitSettings(**{"split": "least_error", "only": ("*:out",), "blocks": True, **settings})
    return SplitInputs(graph, Scores("errors", errors), Budget("macs", share * graph.macs, graph.macs), chosen)


@pytest.mark.parametrize(("blocks", "share"), [*((True, s) for s in (0.8, 0.6, 0.4, 0.3)), (False, 0.75), (False, 0.5)])
@pytest.mark.parametrize("seed", range(4))
def test_least_error_of_all_splits(graph: pr.ChannelGraph, seed: int, share: float, blocks: bool) -> None:
    """Exact where units are coupled in a chain; within 5% where branches may be removed."""
    inputs = inputs_of(graph, seed, share, blocks=blocks)
    errors = inputs.scores.values
    best = np.inf
    choices = [[*([0] if blocks else []), *range(2, width + 1)] for width in WIDTHS.values()]  # two channels stay
    choices[1] = [*range(2, WIDTHS["b1:out"] + 1)]  # the first unit of the bottleneck goes with the second only
    for kept in itertools.product(*choices):
        if macs(dict(zip(WIDTHS, kept, strict=True))) <= share * graph.macs:
            lost = {name: WIDTHS[name] - k for name, k in zip(WIDTHS, kept, strict=True)}
            best = min(best, sum(errors[name][n - 1] for name, n in lost.items() if n))
    plan = least_error(inputs)
    left = {name: len(plan.keep[name]) for name in WIDTHS}
    assert graph.cost(plan).macs == macs(left) <= share * graph.macs
    found = sum(errors[name][WIDTHS[name] - n - 1] for name, n in left.items() if n < WIDTHS[name])
    assert best <= found * (1 + 1e-9) <= (1.05 if blocks else 1 + 1e-8) * best
    for name, n in left.items():  # those of the smallest errors go
        assert set(plan.keep[name]) == set(np.argsort(errors[name])[WIDTHS[name] - n :].tolist())


def test_multiples_and_a_cost_that_is_only_known_as_a_whole(graph: pr.ChannelGraph) -> None:
    inputs = inputs_of(graph, 2, 0.75, round_to=2, blocks=False)
    plan = least_error(inputs)
    lost = [name for name, count in plan.removed().items() if count]
    assert lost and all(len(plan.keep[name]) % 2 == 0 for name in lost) and graph.cost(plan).macs <= 0.75 * graph.macs

    def first_alone(keep: Mapping[str, Sequence[int]]) -> float:
        return float(len(keep.get("a1:out", range(6))))

    plan = least_error(replace(inputs_of(graph, 2, 0.5, blocks=False), budget=Budget(first_alone, 3.0, 6.0)))
    assert {name: count for name, count in plan.removed().items() if count} == {"a1:out": 3}
    with pytest.raises(DecideError, match="out of reach"):
        least_error(replace(inputs, budget=Budget(first_alone, 1.0, 6.0)))


def test_branches_extend_what_can_be_reached_and_other_splits_never_remove_them(graph: pr.ChannelGraph) -> None:
    for split in (uniform_within, global_ranking):
        assert all(split(inputs_of(graph, 0, 0.6, split=split.__name__)).keep.values())
    unit = graph.units["a1:out"]
    assert WidthLimits().choices(unit) == [0, 1, 2, 3, 4]
    assert WidthLimits(blocks=True).choices(unit) == [0, 1, 2, 3, 4, 6]
    assert WidthLimits(blocks=True, known={"a1:out": (4,)}).choices(unit) == [0, 2, 6]
    inputs, names = inputs_of(graph, 0, 0.5), [*WIDTHS]
    assert lowest_cost(graph, names, inputs.cost) == macs({"a1:out": 2, "b1:out": 2, "b2:out": 2})
    assert lowest_cost(graph, names, inputs.cost, blocks=True) == macs({"a1:out": 0, "b2:out": 0})
