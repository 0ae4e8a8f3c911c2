"""benchmarks/cifar.py, which makes the figures of the documentation, on a small network and digits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import prunus as pr
from benchmarks import cifar
from prunus.zoo.data import load
from prunus.zoo.models import create


def test_rows_of_metrics_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network has the weights of seed 0, and half of the digits' test images are held out."""
    words = ["cifar.py", "--network", "resnet8", "--data", "digits", "--set", "num_images=200"]
    words += ["--method", "l1,gsd:ridge=0:tap=before_activation", "--goal", "ratio=0.5"]
    words += ["--out", str(tmp_path / "rows")]
    monkeypatch.setattr(sys, "argv", words)
    cifar.main()
    l1, gsd = json.loads((tmp_path / "rows").read_text())["rows"]
    assert gsd["method"] == "gsd:ridge=0:tap=before_activation" and gsd["settings"] == {"num_images": 200}
    torch.manual_seed(0)
    model, data = create("resnet8", 10, in_channels=1).eval(), load("digits", holdout="test:0.5")
    graph = pr.trace(model, torch.zeros(1, *data.shape))
    keep = {}
    for name in (f"layer{stage}.0.conv1" for stage in (1, 2, 3)):  # half of the filters of the inner layers, by norm
        norms = model.get_parameter(f"{name}.weight").detach().abs().sum((1, 2, 3))
        keep[f"{name}:out"] = sorted(norms.argsort(descending=True)[: len(norms) // 2].tolist())
    small = pr.prune(graph, pr.Plan.of(graph, keep))
    for part in ("holdout", "test"):
        answers = [(small(images).argmax(1) == labels) for images, labels in data.loader(part, 250)]
        assert l1["after"][part] == pytest.approx(100 * float(torch.cat(answers).float().mean()), abs=0.006)
    monkeypatch.setattr(cifar, "Bench", None)  # rows that the file holds are not measured again
    cifar.main()
