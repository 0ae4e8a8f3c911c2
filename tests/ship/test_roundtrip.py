"""Prune, repair, save; load in a new process, export, run in onnxruntime: the same predictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus as sc
from prunus.errors import FileError, PrunusError
from prunus.zoo.models import create
from tests.processes import python
from tests.ship.nets import network, pruned
from tests.ship.roundtrip import there

NAMES = ("lenet5", "preresnet20")  # benchmarks/roundtrip.py takes all of the registry


def test_there_and_back_in_a_new_process(tmp_path: Path) -> None:
    for name in NAMES:
        assert there(name, tmp_path)["macs"] < 0.8
    found = json.loads(python("-m", "tests.ship.roundtrip", tmp_path, *NAMES).splitlines()[-1])
    assert set(found) == set(NAMES)
    for row in found.values():
        assert row["same predictions"] and row["images"] == 64
        assert row["loaded"] <= 1e-6 and row["onnx"] <= 1e-5


def test_a_plan_and_weights_that_do_not_belong_together(tmp_path: Path) -> None:
    """A plan with the same number of other channels has the same shapes, and would be silently wrong."""
    model, plan = pruned()
    sc.save(model, plan, tmp_path / "a")
    graph = sc.trace(network(), torch.zeros(1, 3, 8, 8))
    other = sc.Plan.of(graph, {"conv1:out": [0, 2, 3, 6], "conv1:in": [0, 1, 4, 5]})
    sc.save(sc.prune(graph, other), other, tmp_path / "b")
    (tmp_path / "a" / "plan.json").replace(tmp_path / "b" / "plan.json")
    with pytest.raises(FileError, match="keeps other channels"):
        sc.load(tmp_path / "b", network())
    narrow = sc.Plan.of(graph, {"conv1:out": [0, 2], "conv1:in": [0, 1, 4, 5]})
    (tmp_path / "b" / "plan.json").write_text(narrow.to_json())
    with pytest.raises(FileError, match="does not belong"):
        sc.load(tmp_path / "b", network())
    sc.save(model, plan, tmp_path / "c")
    with pytest.raises(PrunusError, match="does not run on the example"):
        sc.load(tmp_path / "c", create("lenet5"))
