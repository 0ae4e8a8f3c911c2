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
    words = ["evaluate", "resnet20", "--data", "digits", "--limit", "50", "--json"]
    found = json.loads(prunus(*words, "--pruned", tmp_path).stdout)
    digits = load("digits", size=32).loader("test", 50, limit=50)
    assert found["loss"] == pytest.approx(evaluate(small, digits).loss, rel=1e-5)
    both = prunus(*words, "--pruned", tmp_path, "--weights", tmp_path / "model.safetensors")
    assert both.exit_code == 1 and "either --weights or --pruned" in both.stderr


def test_an_untrained_network_is_pointed_out() -> None:
    result = prunus("evaluate", "lenet5", "--data", "digits", "--limit", "20")
    assert result.exit_code == 0 and "no --weights were given" in result.stderr


@pytest.mark.parametrize(
    "words, complaint",
    [
        (
            ["--data", "digits", "--weights", "nowhere.safetensors"],
            "nowhere.safetensors: this weight file does not exist",
        ),
        (["--data", "digits", "--part", "validation"], "part must be one of train, holdout, test; got 'validation'"),
        (["--data", "digits", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["--data", "digits", "--workers", "-1"], "workers must be at least 0, got -1"),
        (["--data", "folder:nowhere"], "nowhere: this folder of images does not exist"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_1(words: list[str], complaint: str) -> None:
    result = prunus("evaluate", "lenet5", *words)
    assert result.exit_code == 1 and complaint in result.stderr and not result.stdout
    assert len(result.stderr.splitlines()) == 1
