"""`--data your.module:make_data` and `--task`: any network on any data from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from prunus.errors import RunError
from prunus.run import compress as compress_module
from tests.cli.command_line import lines, prunus

SOURCE = """
import torch
from torch.nn import functional as F
import prunus as sc
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

class Stream:
    def __iter__(self):
        return iter(squares())

def make_stream():
    return squares(), Stream()

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
    said = lines(prunus("prune", f"{module}:make_unet", "--task", given, "--data", f"{module}:make_data", *how))
    name = "pixel accuracy" if task == "own" else "mean IoU"
    assert any(f"held-out {name}" in line for line in said) and any(f"test {name}" in line for line in said)
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["removed"]["macs"] >= 0.295 and found["quality"]["name"] == name
    assert name in (tmp_path / "run" / "report.html").read_text()
    assert prunus("prune", "--resume", tmp_path / "run").exit_code == 0


@pytest.mark.parametrize("loaders", ["make_data", "make_stream"])
def test_paper_mode_speaks_of_data_of_your_own_too(
    module: str, loaders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise RunError("stopped here")

    monkeypatch.setattr(compress_module, "compress", stop)
    words = ["--task", "segmentation", "--data", f"{module}:{loaders}", "--paper", "--epochs", "1", "--out", "run"]
    text = prunus("prune", f"{module}:make_unet", *words, columns=400).stdout
    assert text.startswith("the paper's settings: G-SD, Algorithm 1 on all held-out images, alpha 3,\n")
    for line in ("epochs 200 -> 1", "task classification -> segmentation"):
        assert f"different from the paper: {line}\n" in text
    assert "left to your loaders: batch size and augmentation\n" in text and "batch_size" not in text
    unknown = "what the run costs is not known: your loaders do not tell how many images they have" in text
    assert unknown == (loaders == "make_stream") != bool(re.search(r"at least \d+ rounds? of 1 epoch\b", text))


def test_wrong_data_are_explained(module: str) -> None:
    found = prunus("prune", f"{module}:make_unet", "--task", "segmentation", "--data", f"{module}:wrong")
    assert found.exit_code != 0 and "must return loaders (train, holdout)" in " ".join(found.output.split())
    found = prunus("prune", f"{module}:make_unet", "--task", "segmentation", "--data", f"{module}:nothing")
    assert found.exit_code != 0 and "has no callable 'nothing'" in " ".join(found.output.split())
    found = prunus("prune", f"{module}:make_unet", "--task", "segmentaton", "--data", f"{module}:make_data")
    assert found.exit_code != 0 and "did you mean segmentation" in " ".join(found.output.split())
