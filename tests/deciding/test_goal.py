"""Goals in numbers, and budgets of single rounds."""

from __future__ import annotations

import pytest
import torch

import prunus as pr
from prunus.deciding.goal import Budget, Goal, parse_number
from tests import nets


def graph() -> pr.ChannelGraph:
    return pr.trace(nets.Chain().eval(), torch.zeros(1, 3, 8, 8))


def test_budgets() -> None:
    found = graph()
    assert Goal(target=0.25).budget(found) == Budget("macs", 0.75 * found.macs, found.macs)
    assert Goal(params=100).budget(found) == Budget("params", 100.0, found.params)
    assert Goal(macs=200.0, max_drop=1.0).budget(found) == Budget("macs", 200.0, found.macs)
    assert Goal(max_drop=1.0).budget(found).left is None and Goal(ratio=0.5).budget(found).left is None


def test_a_budget_is_met_within_half_a_per_cent_of_the_whole() -> None:
    budget = Budget("macs", 500.0, 1000.0)
    assert budget.met(505) and not budget.met(506)
    assert not Budget("macs", None, 1000.0).met(1)


def test_rounds_take_even_steps() -> None:
    budget = Budget("macs", 400.0, 1000.0)
    assert [budget.aim(1000.0, 3).left, budget.aim(800.0, 2).left, budget.aim(600.0, 1).left] == [800, 600, 400]
    assert budget.aim(600.0, -1).left == 400  # more rounds than planned: the goal itself


@pytest.mark.parametrize("text, number", [("63M", 63e6), ("400k", 4e5), ("2.3G", 2.3e9), ("1B", 1e9), ("17", 17.0)])
def test_numbers_with_suffixes(text: str, number: float) -> None:
    assert parse_number(text) == pytest.approx(number)
