"""`prunus evaluate`: what it measures, and its exit codes. `prunus train` and its agreement: tests/train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prunus import Plan, prune, save, trace
from prunus.tasks.evaluate import evaluate
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import prunus


def test_a_pruned_network_is_evaluated_from_its_folder(tmp_path: Path) -> None:
    """On digits, which a network for colour images reads as one channel of 32x32."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = create("resnet20", num_classes=10, in_channels=1)
    graph = trace(model, torch.zeros(1, 1, 32, 32))
    name, unit = next((name, unit) for name, unit in graph.units.items() if unit.kind == "private")
    plan = Plan.of(graph, {name: range(unit.width // 2)})
    small = prune(graph, plan)
    save(small, plan, tmp_path)
    words = ["--data", "digits", "--num-images", "50", "--json"]
    found = json.loads(prunus("evaluate", f"resnet20={tmp_path}", *words).stdout)
    digits = load("digits", size=32).loader("test", 50, limit=50)
    assert found["loss"] == pytest.approx(evaluate(small, digits).loss, rel=1e-5)
    result = prunus("evaluate", "lenet5", "--data", "digits", "--num-images", "20")
    assert result.exit_code == 0 and "no --weights were given" in result.stderr
