"""Plans: by hand, as JSON, one after the other; and the plan that a pruned model remembers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from torch import nn

import prunus as pr
from prunus.errors import PlanError
from prunus.zoo import models
from tests import proof
from tests.nets import Chain, Grouped, Residual
from tests.run.toys import TRAIN, fresh, trained

PICTURE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def residual(seed: int = 0) -> Residual:
    torch.manual_seed(seed)
    return Residual().eval()


def test_a_plan_lists_every_unit_in_order() -> None:
    graph = pr.trace(residual(), PICTURE)
    plan = pr.Plan.of(graph, {"conv1:out": [4, 1]})
    assert list(plan.keep) == list(graph.units)
    assert plan.keep == {"conv1:in": (0, 1, 2, 3), "conv1:out": (1, 4), "fc:in": (0, 1, 2, 3)}
    assert plan.widths == {"conv1:in": 4, "conv1:out": 6, "fc:in": 4}
    assert plan.removed() == {"conv1:in": 0, "conv1:out": 4, "fc:in": 0}


def test_a_plan_prints_as_a_short_table() -> None:
    graph = pr.trace(residual(), PICTURE)
    assert repr(pr.Plan.of(graph, {})) == "Plan: 0 of 3 units pruned, 14 of 14 channels kept"
    assert repr(pr.Plan.of(graph, {"conv1:out": [4, 1], "fc:in": [0, 1, 3]})) == (
        "Plan: 2 of 3 units pruned, 9 of 14 channels kept\n  conv1:out      2 of 6\n  fc:in          3 of 4"
    )


def test_units_print_without_their_arrays() -> None:
    unit = pr.trace(residual(), PICTURE).units["conv1:out"]
    assert repr(unit) == "Unit(conv1:out: 6 channels, private, written by conv1, read by conv2)"
    assert repr(unit.readers + unit.writers) == "(Reader(conv2: 6 channels), Writer(conv1: 6 channels))"


def test_a_plan_of_many_units_is_as_short() -> None:
    torch.manual_seed(0)
    graph = pr.trace(models.create("resnet56").eval(), torch.zeros(1, 3, 32, 32))
    plan = pr.Plan.of(graph, {name: range(unit.width // 2) for name, unit in graph.units.items()})
    lines = repr(plan).splitlines()
    pruned = len(graph.units)
    assert len(lines) == 12 and max(map(len, lines)) < 80
    assert lines[0].startswith(f"Plan: {pruned} of {pruned} units pruned, ")
    assert lines[-1] == f"  and {pruned - 10} more units"


def test_json_both_ways() -> None:
    graph = pr.trace(residual(), PICTURE)
    plan = pr.Plan.of(graph, {"conv1:out": [1, 4], "fc:in": [3]})
    text = plan.to_json()
    data = json.loads(text)
    assert data["units"]["conv1:out"] == {"width": 6, "keep": [1, 4]}
    assert data["streams"] == "select"
    again = pr.Plan.from_json(text)
    assert again == plan and again.to_json() == text
    small, same = pr.prune(graph, plan), pr.prune(graph, again)
    assert proof.same_state(small, same)


def test_plans_compose_in_the_first_network_s_numbers() -> None:
    """Of 0..5 the first keeps 1 3 5; of those the second keeps the first and the last: 1 and 5."""
    model = residual()
    graph = pr.trace(model, PICTURE)
    first = pr.Plan.of(graph, {"conv1:out": [1, 3, 5], "conv1:in": [0, 2, 3]})
    small = pr.prune(graph, first)
    second = pr.Plan.of(pr.trace(small, PICTURE), {"conv1:out": [0, 2], "conv1:in": [1, 2]})
    composed = first.then(second)
    assert composed.keep["conv1:out"] == (1, 5)
    assert composed.keep["conv1:in"] == (2, 3)
    assert composed.keep["fc:in"] == (0, 1, 2, 3)
    assert composed.fingerprint == first.fingerprint
    direct, stepwise = pr.prune(graph, composed), pr.prune(pr.trace(small, PICTURE), second)
    assert proof.same_state(direct, stepwise)
    assert torch.equal(direct(PICTURE), stepwise(PICTURE))


def test_three_rounds_are_one() -> None:
    graph = pr.trace(residual(), PICTURE)
    plan, model = pr.Plan.of(graph, {}), graph.model
    for kept in ([0, 1, 2, 4, 5], [0, 1, 3, 4], [1, 2]):
        step = pr.Plan.of(pr.trace(model, PICTURE), {"conv1:out": kept})
        plan, model = plan.then(step), pr.prune(pr.trace(model, PICTURE), step)
    assert plan.keep["conv1:out"] == (1, 4)  # 0 1 2 4 5 -> 0 1 4 5 -> 1 4
    assert proof.same_state(pr.prune(graph, plan), model)


def test_the_fingerprint_is_of_structure_not_of_weights() -> None:
    one, other = pr.trace(residual(0), PICTURE), pr.trace(residual(1), PICTURE)
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != pr.trace(Chain().eval(), PICTURE).fingerprint
    small = pr.prune(one, pr.Plan.of(one, {"conv1:out": [0]}))
    assert pr.trace(small, PICTURE).fingerprint != one.fingerprint
    assert pr.trace(residual(), PICTURE, streams="coupled").fingerprint != one.fingerprint


def test_the_fingerprint_does_not_depend_on_the_example_s_size() -> None:
    model = residual()
    plan = pr.Plan.of(pr.trace(model, PICTURE), {"conv1:out": [0, 1]})
    graph = pr.trace(model, torch.zeros(7, 3, 16, 12))
    small = pr.prune(graph, plan)
    assert small.get_parameter("conv1.weight").shape[0] == 2


def test_balance_mends_what_it_can() -> None:
    graph = pr.trace(Grouped().eval(), PICTURE)
    mended = graph.balance({"a:out": [0, 1, 2, 4, 6], "g:out": [0], "b:out": [1, 3]})
    assert mended["a:out"] == (0, 1, 2, 3, 4, 5, 6, 7)  # one block keeps two, so all do
    assert len(mended["g:out"]) == 4
    assert [sum(3 * b <= i < 3 * b + 3 for i in mended["g:out"]) for b in range(4)] == [1, 1, 1, 1]
    assert 0 in mended["g:out"]
    assert mended["b:out"] == (1, 3)
    pr.Plan.of(graph, mended)


def test_indices_may_be_arrays_tensors_and_ranges() -> None:
    graph = pr.trace(residual(), PICTURE)
    wanted = pr.Plan.of(graph, {"conv1:out": [1, 4]}).keep
    for kept in (np.array([4, 1]), (1, 4), range(1, 5, 3), torch.tensor([1, 4]), np.array([1, 4], dtype=np.uint8)):
        assert pr.Plan.of(graph, {"conv1:out": kept}).keep == wanted


# -- the plan that a pruned model remembers


EXAMPLE = torch.zeros(1, 3, 6, 6)


def cut(keep: dict[str, Any]) -> tuple[nn.Module, pr.Plan]:
    graph = pr.trace(trained(), EXAMPLE)
    plan = pr.Plan.of(graph, keep)
    return pr.prune(graph, plan), plan


def test_a_plan_of_the_same_widths_is_not_the_models(tmp_path: Path) -> None:
    small, plan = cut({"conv1:out": range(8)})
    other = cut({"conv1:out": range(8, 16)})[1]
    with pytest.raises(PlanError, match="does not belong to this Small: it was cut by a plan that keeps"):
        pr.save(small, other, tmp_path)
    with pytest.raises(PlanError, match="was not cut by prunus"):
        pr.save(trained(), plan, tmp_path)
    with pytest.raises(PlanError, match="does not belong"):
        pr.save(small, pr.Plan.of(pr.trace(trained(), EXAMPLE), {}), tmp_path)
    assert not list(tmp_path.iterdir())
    pr.save(small, plan, tmp_path)
    pr.save(trained(), pr.Plan.of(pr.trace(trained(), EXAMPLE), {}), tmp_path / "whole")  # nothing was removed


def test_copies_training_and_loading_keep_the_memory(tmp_path: Path) -> None:
    small, plan = cut({"conv1:out": range(8)})
    pr.save(copy.deepcopy(small), plan, tmp_path / "a")
    pr.save(pr.fit(small, TRAIN, epochs=1).model, plan, tmp_path / "b")
    pr.save(pr.load(tmp_path / "a", fresh()), plan, tmp_path / "c")
    assert small.state_dict().keys() == trained().state_dict().keys()


def test_two_rounds_are_saved_with_both_plans_or_from_between(tmp_path: Path) -> None:
    small, first = cut({"conv1:out": range(8)})
    graph = pr.trace(small, EXAMPLE)
    second = pr.Plan.of(graph, {"conv1:out": [0, 2, 4]})
    smaller = pr.prune(graph, second)
    pr.save(smaller, first.then(second), tmp_path / "a")
    pr.save(smaller, second, tmp_path / "b")
    with pytest.raises(PlanError, match=r"first\.then\(second\)"):
        pr.save(smaller, first, tmp_path / "c")
    for folder, origin in ((tmp_path / "a", fresh()), (tmp_path / "b", small)):
        again = pr.load(folder, origin).eval()
        with torch.no_grad():
            torch.testing.assert_close(again(TRAIN[0][0]), smaller.eval()(TRAIN[0][0]))
