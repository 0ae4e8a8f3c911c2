"""A pruned network as `prunus prune` leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import prunus as pr
from prunus.zoo.models import create


@pytest.fixture
def pruned_lenet(tmp_path: Path) -> Path:
    """The folder of a LeNet-5 whose first convolution has 3 of 6 channels."""
    graph = pr.trace(create("lenet5"), torch.zeros(1, 1, 32, 32))
    name, unit = next(iter(graph.units.items()))
    assert unit.width == 6
    plan = pr.Plan.of(graph, {name: [0, 1, 2]})
    pr.save(pr.prune(graph, plan), plan, tmp_path / "small")
    (tmp_path / "small" / "config.json").write_text(json.dumps({"command": {"model": "lenet5", "data": "digits"}}))
    return tmp_path / "small"
