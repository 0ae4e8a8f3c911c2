"""A pruned model remembers its plan, and `save` refuses any other; arguments of the wrong kind are named."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prunus as sc
from prunus.errors import FileError, PlanError, TraceError
from tests.run.toys import TRAIN, Small, fresh, trained

EXAMPLE = torch.zeros(1, 3, 6, 6)


def cut(keep: dict[str, Any]) -> tuple[nn.Module, sc.Plan]:
    graph = sc.trace(trained(), EXAMPLE)
    plan = sc.Plan.of(graph, keep)
    return sc.prune(graph, plan), plan


def test_a_plan_of_the_same_widths_is_not_the_models(tmp_path: Path) -> None:
    small, plan = cut({"conv1:out": range(8)})
    other = cut({"conv1:out": range(8, 16)})[1]
    with pytest.raises(PlanError, match="does not belong to this Small: it was cut by a plan that keeps"):
        sc.save(small, other, tmp_path)
    with pytest.raises(PlanError, match="was not cut by prunus"):
        sc.save(trained(), plan, tmp_path)
    with pytest.raises(PlanError, match="does not belong"):
        sc.save(small, sc.Plan.of(sc.trace(trained(), EXAMPLE), {}), tmp_path)
    assert not list(tmp_path.iterdir())
    sc.save(small, plan, tmp_path)
    sc.save(trained(), sc.Plan.of(sc.trace(trained(), EXAMPLE), {}), tmp_path / "whole")  # nothing was removed


def test_copies_training_and_loading_keep_the_memory(tmp_path: Path) -> None:
    small, plan = cut({"conv1:out": range(8)})
    sc.save(copy.deepcopy(small), plan, tmp_path / "a")
    sc.save(sc.fit(small, TRAIN, epochs=1).model, plan, tmp_path / "b")
    sc.save(sc.load(tmp_path / "a", fresh()), plan, tmp_path / "c")
    assert small.state_dict().keys() == trained().state_dict().keys()


def test_two_rounds_are_saved_with_both_plans_or_from_between(tmp_path: Path) -> None:
    small, first = cut({"conv1:out": range(8)})
    graph = sc.trace(small, EXAMPLE)
    second = sc.Plan.of(graph, {"conv1:out": [0, 2, 4]})
    smaller = sc.prune(graph, second)
    sc.save(smaller, first.then(second), tmp_path / "a")
    sc.save(smaller, second, tmp_path / "b")
    with pytest.raises(PlanError, match=r"first\.then\(second\)"):
        sc.save(smaller, first, tmp_path / "c")
    for folder, origin in ((tmp_path / "a", fresh()), (tmp_path / "b", small)):
        again = sc.load(folder, origin).eval()
        with torch.no_grad():
            torch.testing.assert_close(again(TRAIN[0][0]), smaller.eval()(TRAIN[0][0]))


def test_arguments_in_the_wrong_order_or_of_the_wrong_kind(tmp_path: Path) -> None:
    small, plan = cut({"conv1:out": range(8)})
    sc.save(small, plan, tmp_path)
    graph = sc.trace(trained(), EXAMPLE)
    with pytest.raises(PlanError, match=r"expected save\(model, plan, folder\).*got Plan and Small"):
        sc.save(plan, small, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"expected load\(folder, model\).*got Small"):
        sc.load(fresh(), tmp_path)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match=r"got the class Small; pass an instance, as in Small\(\)"):
        sc.load(tmp_path, Small)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"expected prune\(graph, plan\).*got Plan"):
        sc.prune(plan, graph)  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="got Tensor; check the order"):
        sc.trace(EXAMPLE, trained())  # type: ignore[arg-type]
    with pytest.raises(TraceError, match="got list; check the order"):
        sc.compress(TRAIN, trained(), TRAIN, target=0.3)  # type: ignore[arg-type]


def test_scripts_and_empty_examples() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # users still have such modules
        script = torch.jit.trace(trained(), EXAMPLE)
    with pytest.raises(TraceError, match="TorchScript modules cannot be pruned; pass the"):
        sc.trace(script, EXAMPLE)
    for empty in (torch.zeros(0, 3, 6, 6), (torch.zeros(1, 3, 0, 6),)):
        with pytest.raises(TraceError, match="the example is empty: its shape is"):
            sc.trace(trained(), empty)


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda words: words.update(streams="zzz"), '"streams" must be "select" or "coupled", not \'zzz\''),
        (lambda words: words["units"]["conv1:out"].update(width=1e9), "width of 'conv1:out' must be a whole number"),
        (lambda words: words["units"]["conv1:out"].update(width=10**9), "has 1000000000 channels in the plan and 24"),
        (lambda words: words["example"].update(dtype="banana"), "'banana' is no type of torch's tensors"),
    ],
)
def test_fields_of_a_plan_file(tmp_path: Path, change: Any, complaint: str) -> None:
    small, plan = cut({"conv1:out": range(8)})
    sc.save(small, plan, tmp_path)
    words = json.loads((tmp_path / "plan.json").read_text())
    change(words)
    (tmp_path / "plan.json").write_text(json.dumps(words))
    with pytest.raises((FileError, PlanError), match=complaint):
        sc.load(tmp_path, fresh())
