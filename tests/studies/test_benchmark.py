"""benchmarks/cifar.py, which makes the figures of the documentation, on a small network and digits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest

import prunus as pr
from benchmarks import cifar
from prunus.run.qualities import PREDICTIONS as FILE
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


def test_epochs_are_kept_image_by_image_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best and the last epoch of two arms: accuracies are means of the kept answers, and McNemar's p is scipy's."""
    out, work = tmp_path / "rows.json", tmp_path / "work"
    words = ["cifar.py", "--network", "resnet8", "--data", "digits", "--method", "none,l1", "--goal", "ratio=0.5"]
    words += ["--set", "num_images=200", "--epochs", "2", "--num-images", "256", "--fit", "lr=0.02"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out), "--work", str(work), "--paired"])
    cifar.main()
    stored = json.loads(out.read_text())
    arms, tests = stored["rows"][:2], stored["rows"][2:]
    kept = [
        load_file(work / f"resnet8-{arm['method']}-ratio=0.5-none-2-0-num_images-256-lr-0.02" / FILE) for arm in arms
    ]
    for arm, right in zip(arms, kept, strict=True):
        assert arm["last"]["epoch"] == len(arm["history"]) == 2
        assert arm["last"]["holdout"] == pytest.approx(arm["history"][-1], abs=0.006)
        every = torch.cat([right["last.holdout"], right["last.test"]]).double()
        assert arm["last"]["all"] == pytest.approx(100 * float(every.mean()), abs=0.006)
        assert arm["after"]["test"] == pytest.approx(100 * float(right["best.test"].double().mean()), abs=0.006)
        assert arm["before"]["test"] == pytest.approx(100 * float(right["before.test"].double().mean()), abs=0.006)
    last, best = tests
    assert (last["paired"], last["epoch"], last["images"]) == (["none", "l1"], "last", "holdout+test")
    assert (best["epoch"], best["images"], best["num_images"]) == ("best", "test", len(kept[0]["best.test"]))
    one, two = (torch.cat([right["last.holdout"], right["last.test"]]).bool() for right in kept)
    only_one, only_two = int((one & ~two).sum()), int((two & ~one).sum())
    assert (last["worse"], last["better"]) == (only_one, only_two)
    assert last["p"] == pytest.approx(binomtest(only_two, only_one + only_two, 0.5).pvalue, rel=1e-9)


def test_the_hessian_importance_reads_squares_of_all_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over images of squared gradients, each from a backward pass of its own."""
    torch.manual_seed(0)
    model, data = create("lenet5", 10).eval(), load("digits", holdout="test:0.5")
    images, labels = next(iter(data.loader("train", 5)))
    monkeypatch.setattr(cifar.peers, "HESSIAN_IMAGES", 3)
    images = torch.nn.functional.interpolate(images, (32, 32))
    cifar.peers.prepare(model, "hessian:isomorphic", [(images[:2], labels[:2]), (images[2:], labels[2:])])
    found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    want = [torch.zeros_like(each) for each in found]
    for n in range(3):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images[n : n + 1]), labels[n : n + 1]).backward()
        for total, parameter in zip(want, model.parameters(), strict=True):
            assert parameter.grad is not None
            total += parameter.grad**2 / 3
    for got, total in zip(found, want, strict=True):
        assert torch.allclose(got, total, rtol=1e-4, atol=1e-12) and bool(got.any())
