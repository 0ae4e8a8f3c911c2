"""Plans: by hand, as JSON, one after the other; and files that hold them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus as sc
from prunus.zoo import models
from tests import proof
from tests.nets import Chain, Residual, TwoImages

IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def residual(seed: int = 0) -> Residual:
    torch.manual_seed(seed)
    return Residual().eval()


def test_a_plan_lists_every_unit_in_order() -> None:
    graph = sc.trace(residual(), IMAGE)
    plan = sc.Plan.of(graph, {"conv1:out": [4, 1]})
    assert list(plan.keep) == list(graph.units)
    assert plan.keep == {"conv1:in": (0, 1, 2, 3), "conv1:out": (1, 4), "fc:in": (0, 1, 2, 3)}
    assert plan.widths == {"conv1:in": 4, "conv1:out": 6, "fc:in": 4}
    assert plan.removed() == {"conv1:in": 0, "conv1:out": 4, "fc:in": 0}


def test_a_plan_prints_as_a_short_table() -> None:
    graph = sc.trace(residual(), IMAGE)
    assert repr(sc.Plan.of(graph, {})) == "Plan: 0 of 3 units pruned, 14 of 14 channels kept"
    assert repr(sc.Plan.of(graph, {"conv1:out": [4, 1], "fc:in": [0, 1, 3]})) == (
        "Plan: 2 of 3 units pruned, 9 of 14 channels kept\n  conv1:out      2 of 6\n  fc:in          3 of 4"
    )


def test_units_print_without_their_arrays() -> None:
    unit = sc.trace(residual(), IMAGE).units["conv1:out"]
    assert repr(unit) == "Unit(conv1:out: 6 channels, private, written by conv1, read by conv2)"
    assert repr(unit.readers + unit.writers) == "(Reader(conv2: 6 channels), Writer(conv1: 6 channels))"


def test_a_plan_of_many_units_is_as_short() -> None:
    torch.manual_seed(0)
    graph = sc.trace(models.create("resnet56").eval(), torch.zeros(1, 3, 32, 32))
    plan = sc.Plan.of(graph, {name: range(unit.width // 2) for name, unit in graph.units.items()})
    lines = repr(plan).splitlines()
    pruned = len(graph.units)
    assert len(lines) == 12 and max(map(len, lines)) < 80
    assert lines[0].startswith(f"Plan: {pruned} of {pruned} units pruned, ")
    assert lines[-1] == f"  and {pruned - 10} more units"


def test_json_both_ways() -> None:
    graph = sc.trace(residual(), IMAGE)
    plan = sc.Plan.of(graph, {"conv1:out": [1, 4], "fc:in": [3]})
    text = plan.to_json()
    data = json.loads(text)
    assert data["units"]["conv1:out"] == {"width": 6, "keep": [1, 4]}
    assert data["streams"] == "select"
    again = sc.Plan.from_json(text)
    assert again == plan and again.to_json() == text
    small, same = sc.prune(graph, plan), sc.prune(graph, again)
    assert proof.same_state(small, same)


def test_plans_compose_in_the_first_network_s_numbers() -> None:
    """Of 0..5 the first keeps 1 3 5; of those the second keeps the first and the last: 1 and 5."""
    model = residual()
    graph = sc.trace(model, IMAGE)
    first = sc.Plan.of(graph, {"conv1:out": [1, 3, 5], "conv1:in": [0, 2, 3]})
    small = sc.prune(graph, first)
    second = sc.Plan.of(sc.trace(small, IMAGE), {"conv1:out": [0, 2], "conv1:in": [1, 2]})
    composed = first.then(second)
    assert composed.keep["conv1:out"] == (1, 5)
    assert composed.keep["conv1:in"] == (2, 3)
    assert composed.keep["fc:in"] == (0, 1, 2, 3)
    assert composed.fingerprint == first.fingerprint
    direct, stepwise = sc.prune(graph, composed), sc.prune(sc.trace(small, IMAGE), second)
    assert proof.same_state(direct, stepwise)
    assert torch.equal(direct(IMAGE), stepwise(IMAGE))


def test_three_rounds_are_one() -> None:
    graph = sc.trace(residual(), IMAGE)
    plan, model = sc.Plan.of(graph, {}), graph.model
    for kept in ([0, 1, 2, 4, 5], [0, 1, 3, 4], [1, 2]):
        step = sc.Plan.of(sc.trace(model, IMAGE), {"conv1:out": kept})
        plan, model = plan.then(step), sc.prune(sc.trace(model, IMAGE), step)
    assert plan.keep["conv1:out"] == (1, 4)  # 0 1 2 4 5 -> 0 1 4 5 -> 1 4
    assert proof.same_state(sc.prune(graph, plan), model)


def test_the_fingerprint_is_of_structure_not_of_weights() -> None:
    one, other = sc.trace(residual(0), IMAGE), sc.trace(residual(1), IMAGE)
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != sc.trace(Chain().eval(), IMAGE).fingerprint
    small = sc.prune(one, sc.Plan.of(one, {"conv1:out": [0]}))
    assert sc.trace(small, IMAGE).fingerprint != one.fingerprint
    assert sc.trace(residual(), IMAGE, streams="coupled").fingerprint != one.fingerprint


def test_the_fingerprint_does_not_depend_on_the_example_s_size() -> None:
    model = residual()
    plan = sc.Plan.of(sc.trace(model, IMAGE), {"conv1:out": [0, 1]})
    graph = sc.trace(model, torch.zeros(7, 3, 16, 12))
    small = sc.prune(graph, plan)
    assert small.get_parameter("conv1.weight").shape[0] == 2


@pytest.mark.parametrize(
    "example",
    [
        (torch.zeros(1, 3, 8, 8), torch.zeros(1, 2, 8, 8)),
        {"y": torch.zeros(1, 2, 8, 8), "x": torch.zeros(1, 3, 8, 8)},
    ],
)
def test_files_remember_the_example(example: object, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph = sc.trace(TwoImages().eval(), example)
    plan = sc.Plan.of(graph, {"a:out": [0, 3], "b:out": [1, 2, 5]})
    small = sc.prune(graph, plan)
    sc.save(small, plan, tmp_path / "deep" / "folder")
    assert sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir()) == ["model.safetensors", "plan.json"]
    torch.manual_seed(1)
    fresh = TwoImages()
    before = {name: tensor.clone() for name, tensor in fresh.state_dict().items()}
    loaded = sc.load(tmp_path / "deep" / "folder", fresh)
    assert isinstance(loaded, TwoImages)
    assert proof.same_state(loaded, small)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.state_dict().items())


def test_saving_again_replaces(tmp_path: Path) -> None:
    graph = sc.trace(residual(), IMAGE)
    for kept in ([0, 1, 2], [5]):
        plan = sc.Plan.of(graph, {"conv1:out": kept})
        small = sc.prune(graph, plan)
        sc.save(small, plan, tmp_path)
    assert proof.same_state(sc.load(tmp_path, residual(3)), small)
    assert sc.load(tmp_path, residual(3)).get_parameter("conv1.weight").shape[0] == 1


def test_retrained_weights_are_what_is_loaded(tmp_path: Path) -> None:
    graph = sc.trace(residual(), IMAGE)
    plan = sc.Plan.of(graph, {"conv1:out": [0, 5], "conv1:in": [1]})
    small = sc.prune(graph, plan)
    proof.train_step(small, torch.randn(4, 3, 8, 8))
    sc.save(small, plan, tmp_path)
    loaded = sc.load(tmp_path, residual(4))
    assert proof.same_state(loaded, small)
    assert not torch.equal(loaded.get_parameter("stem.weight"), graph.model.get_parameter("stem.weight"))
