"""The split of a cut for which errors add up to the least, beside a search through all splits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.decide.amounts import Cutter
from prunus.decide.candidates import WidthLimits
from prunus.decide.splits.least_error import least_error
from prunus.errors import DecideError
from prunus.score.scores import Scores
from tests.decide.toys import seeded
from tests.proof import counted_macs

WIDTHS, STREAM = (6, 8, 10), 4
EXAMPLE = torch.zeros(1, STREAM, 8, 8)


class Blocks(nn.Module):
    """Three residual blocks, whose inner channels save their MACs independently of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(STREAM, width, 3, padding=1, bias=False) for width in WIDTHS)
        self.back = nn.ModuleList(nn.Conv2d(width, STREAM, 3, padding=1, bias=False) for width in WIDTHS)

    def forward(self, x: Tensor) -> Tensor:
        for wide, back in zip(self.wide, self.back, strict=True):
            x = x + back(wide(x).relu())
        return x


NAMES = [f"wide.{i}:out" for i in range(3)]
EACH = 2 * 9 * 64 * STREAM  # MACs of an inner channel: written by one layer, read by the other


def errors(seed: int) -> Scores:
    """Errors that add up as channels go, each adding at least as much as the one before; in no order of channels."""
    draw = np.random.default_rng(seed)
    values = {}
    for name, width in zip(NAMES, WIDTHS, strict=True):
        added = np.sort(draw.exponential(size=width)) * draw.uniform(0.2, 5)
        values[name] = draw.permutation(np.cumsum(added))
    return Scores("rebuilt", values, 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.75, 0.5, 0.3])
def test_no_other_split_has_a_smaller_error(seed: int, share: float) -> None:
    model = seeded(Blocks)
    graph, scores = sc.trace(model, EXAMPLE), errors(seed)
    whole = counted_macs(model, EXAMPLE)
    assert whole == sum(WIDTHS) * EACH
    plan = least_error(Cutter(graph, scores), NAMES, share * whole)
    gone = [plan.removed()[name] for name in NAMES]
    curves = [np.concatenate([[0.0], np.sort(scores.values[name])]) for name in NAMES]
    channels = int(np.ceil((1 - share) * sum(WIDTHS) - 1e-9))  # that must go: all cost the same
    assert sum(gone) == channels and counted_macs(sc.prune(graph, plan), EXAMPLE) == whole - channels * EACH
    splits = itertools.product(*(range(width - 1) for width in WIDTHS))  # two channels stay
    best = min(
        sum(curve[n] for curve, n in zip(curves, split, strict=True)) for split in splits if sum(split) == channels
    )
    assert sum(curve[n] for curve, n in zip(curves, gone, strict=True)) == pytest.approx(best)
    for name, n in zip(NAMES, gone, strict=True):  # and those of the smallest errors go
        assert set(plan.keep[name]) == set(np.argsort(scores.values[name])[n:].tolist())


def test_a_unit_that_is_missed_twice_as_much_loses_less() -> None:
    graph, scores = sc.trace(seeded(Blocks), EXAMPLE), errors(0)
    values = dict(scores.values)
    before = least_error(Cutter(graph, scores), NAMES, 0.6 * graph.macs).removed()
    values[NAMES[2]] = 10 * values[NAMES[2]]
    after = least_error(Cutter(graph, Scores("rebuilt", values, 1)), NAMES, 0.6 * graph.macs).removed()
    assert after[NAMES[2]] < before[NAMES[2]] and sum(after.values()) == sum(before.values())


def test_floors_and_steps() -> None:
    graph, scores = sc.trace(seeded(Blocks), EXAMPLE), errors(1)
    with pytest.raises(
        DecideError, match=r"removing 90\.0% of the macs is out of reach: with every unit at its floor .* 75\.0%"
    ):
        least_error(Cutter(graph, scores), NAMES, 0.1 * graph.macs)
    plan = least_error(Cutter(graph, scores, WidthLimits(2)), NAMES, 0.5 * graph.macs)
    assert all(len(plan.keep[name]) % 2 == 0 for name in NAMES if plan.removed()[name])
    assert graph.cost(plan).macs <= 0.5 * graph.macs


def test_a_unit_that_saves_nothing_is_left_alone() -> None:
    """By a cost that only the last block has, the others lose nothing; what only they could give is out of reach."""
    graph, scores = sc.trace(seeded(Blocks), EXAMPLE), errors(2)

    def last_alone(keep: Mapping[str, Sequence[int]]) -> float:
        return float(len(keep.get(NAMES[2], range(WIDTHS[2]))))

    plan = least_error(Cutter(graph, scores), NAMES, 5.0, cost=last_alone)
    assert [plan.removed()[name] for name in NAMES] == [0, 0, 5]
    with pytest.raises(DecideError, match="out of reach"):
        least_error(Cutter(graph, scores), NAMES, 1.0, cost=last_alone)
