"""Two inputs of 1, 2 or 3 dimensions and a dataclass as output, through prune, resume, export, bench and report."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
import pytest
import torch

import prunus as sc
from tests.cli.command_line import lines, prunus
from tests.tasks.nets import Wrapped, sums

SOURCE = """
import torch
from tests.tasks.nets import Wrapped, sums

def adder1():
    torch.manual_seed(0)
    return Wrapped(1)

def adder2():
    torch.manual_seed(0)
    return Wrapped(2)

def adder3():
    torch.manual_seed(0)
    return Wrapped(3)

def data1():
    return sums(1), sums(1, seed=1), sums(1, seed=2)

def data2():
    return sums(2), sums(2, seed=1), sums(2, seed=2)

def data3():
    return sums(3), sums(3, seed=1), sums(3, seed=2)
"""


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_from_prune_to_bench(dimensions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "own_of_test_structures"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    given = [f"{name}:adder{dimensions}", "--task", "regression", "--data", f"{name}:data{dimensions}"]
    said = lines(prunus("prune", *given, "--target", "0.4", "--repair", "bn", "--epochs", "1", "--out", "run"))
    assert any("ms, batch 64" in line for line in said)
    assert prunus("prune", "--resume", "run").exit_code == 0
    assert "R2" in Path("run/report.html").read_text()

    torch.manual_seed(0)
    small = sc.load("run", Wrapped(dimensions)).eval()
    (left, right), _ = sums(dimensions, seed=3)[0]
    with torch.no_grad():
        wanted = small(left, right)
    lines(prunus("export", "run", "small.onnx"))
    session = onnxruntime.InferenceSession("small.onnx")
    feeds = {"left": left.numpy(), "right": right.numpy()}
    found = [torch.from_numpy(each) for each in session.run(None, feeds)]
    assert torch.allclose(found[0], wanted.features, atol=1e-5) and torch.allclose(found[1], wanted.logits, atol=1e-5)
    lines(prunus("export", "run", "small.pt2"))
    again = torch.export.load("small.pt2").module()(left, right)
    assert torch.allclose(again.logits, wanted.logits, atol=1e-5)

    engines = ("--engine", "eager", "--engine", "onnxruntime")
    benched = json.loads(prunus("bench", "run", *engines, "--batch", "4", "--rounds", "2", "--json").stdout)
    assert [(row["network"], row["engine"]) for row in benched["rows"]] == [
        (network, engine) for network in ("original", "run") for engine in ("eager", "onnxruntime")
    ]
    macs = [benched["networks"][network]["macs"] for network in ("original", "run")]
    assert macs[1] <= 0.61 * macs[0] and benched["notes"] == []
    sides = " x ".join(["1", *["6"] * dimensions])
    assert f"on {sides} and {sides}:" in lines(prunus("inspect", "run"))[0]
