"""`--data your.module:make_data` and `--task`: any network on any data from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import lines, secateur

SOURCE = """
import torch
from torch.nn import functional as F
import secateur as sc
from tests.tasks.nets import UNet, squares

def make_unet():
    torch.manual_seed(0)
    return UNet(aux=True)

def make_data():
    return squares(), squares(seed=1), squares(seed=2)

def make_task():
    def right(outputs, labels):
        return (outputs["out"].argmax(1) == labels).float().mean((1, 2))
    loss = lambda outputs, labels: F.cross_entropy(outputs["out"], labels)
    return sc.Task(name="pixels", loss=loss, quality=sc.Quality(right, "pixel accuracy", "%"))

def wrong():
    return {"training": []}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    name = "own_of_test_own_data"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    return name


@pytest.mark.parametrize("task", ["segmentation", "own"])
def test_any_network_on_any_data(module: str, task: str, tmp_path: Path) -> None:
    given = f"{module}:make_task" if task == "own" else task
    how = ("--target", "0.3", "--epochs", "0", "--repair", "bn", "--out", tmp_path / "run")
    said = lines(secateur("prune", f"{module}:make_unet", "--task", given, "--data", f"{module}:make_data", *how))
    name = "pixel accuracy" if task == "own" else "mean IoU"
    assert any(f"held-out {name}" in line for line in said) and any(f"test {name}" in line for line in said)
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["removed"]["macs"] >= 0.295 and found["quality"]["name"] == name
    assert name in (tmp_path / "run" / "report.html").read_text()
    assert secateur("prune", "--resume", tmp_path / "run").exit_code == 0


def test_wrong_data_are_explained(module: str) -> None:
    found = secateur("prune", f"{module}:make_unet", "--task", "segmentation", "--data", f"{module}:wrong")
    assert found.exit_code != 0 and "must return loaders (train, holdout)" in " ".join(found.output.split())
    found = secateur("prune", f"{module}:make_unet", "--task", "segmentation", "--data", f"{module}:nothing")
    assert found.exit_code != 0 and "has no callable 'nothing'" in " ".join(found.output.split())
    found = secateur("prune", f"{module}:make_unet", "--task", "segmentaton", "--data", f"{module}:make_data")
    assert found.exit_code != 0 and "did you mean segmentation" in " ".join(found.output.split())
