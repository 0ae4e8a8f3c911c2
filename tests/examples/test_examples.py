"""Every script of examples/ runs at its small size, and does what it says."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

import prunus as pr
from prunus.run.final_timing import time_in_engines
from tests.networks import from_torchvision
from tests.processes import python

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run an example in a folder of its own, with --small; its names when it has ended."""
    from_torchvision.library()  # timm, lightning and transformers import torchvision
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(time_in_engines.__kwdefaults__, "seconds", 0.05)  # in the first engine only

    def run_example(name: str) -> dict[str, Any]:
        path = str(EXAMPLES / f"{name}.py")
        monkeypatch.setattr(sys, "argv", [path, "--small"])
        return runpy.run_path(path, run_name="__main__")

    return run_example


def check(result: pr.Compressed, target: float, learned: float, points: float) -> None:
    """The goal is met, the network had learned something, and at most `points` points of quality are lost."""
    summary = result.summary
    assert target - 0.005 <= summary["removed"]["macs"] < target + 0.1  # widths are multiples of 8 or 4
    before, after = (summary[when]["test"]["quality"] for when in ("before", "after"))
    assert before > learned
    assert after > before - points / 100


def check_one_point(result: pr.Compressed, learned: float) -> None:
    """Without a goal: at most a point of held-out quality is lost, and the network, which had learned, is smaller."""
    summary = result.summary
    before, after = (summary[when]["holdout"]["quality"] for when in ("before", "after"))
    assert before > learned and after >= before - 0.01 - 1e-7 and summary["removed"]["macs"] > 0.1


def outputs(model: nn.Module, images: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(images)


def run_onnx(path: str, images: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": images.numpy()})[0]


def test_anchor_free_detector(run: Run) -> None:
    names = run("anchor_free_detector")
    check(names["result"], 0.4, learned=0.2, points=8)
    found = names["decode"](names["result"].model.eval()(names["test"][0][0]))
    assert len(found) == 16 and all(len(one["scores"]) for one in found)


def test_own_classifier(run: Run) -> None:
    names = run("own_classifier")
    check_one_point(names["result"], learned=0.7)
    images = names["images"][:50]
    torch.testing.assert_close(outputs(names["loaded"], images), outputs(names["result"].model, images))
    saved = sum(path.stat().st_size for path in Path("small-classifier").glob("*.safetensors"))
    assert saved < 0.7 * sum(tensor.nbytes for tensor in names["model"].state_dict().values())


def test_timm_image_folder(run: Run) -> None:
    names = run("timm_image_folder")
    check(names["result"], 0.4, learned=0.5, points=15)
    assert len(names["images"].classes) == 10 and len(list(Path("digits-folder").rglob("*.png"))) == 400
    fresh = names["timm"].create_model("test_resnet", num_classes=10)
    images = next(iter(names["test"]))[0]
    loaded = pr.load("small-timm", fresh)
    torch.testing.assert_close(outputs(loaded, images), outputs(names["result"].model, images))


def test_segmentation_unet(run: Run) -> None:
    names = run("segmentation_unet")
    check_one_point(names["result"], learned=0.4)
    images = names["test"][0][0]
    found = outputs(names["result"].model, images)
    np.testing.assert_allclose(run_onnx("unet.onnx", images), found, atol=1e-4 * float(found.abs().max()))


def test_detector_backbone(run: Run) -> None:
    names = run("detector_backbone")
    check_one_point(names["result"], learned=0.5)
    # The quality of the summary is that of the whole detector with its new backbone.
    hits, seen, there = 0, 0, 0
    for images, targets in names["test"]:
        with torch.no_grad():
            found = names["smaller"](images)
        for one, target in zip(found, targets, strict=True):
            seen, there = seen + len(one["digits"]), there + int((target >= 0).sum())
            hits += sum(
                int(target[y, x]) == int(digit) for (y, x), digit in zip(one["cells"], one["digits"], strict=True)
            )
    assert names["result"].summary["after"]["test"]["quality"] == pytest.approx(2 * hits / (seen + there), abs=0.01)


def test_time_series(run: Run) -> None:
    names = run("time_series")
    check(names["repaired"], 0.5, learned=0.5, points=10)
    check(names["retrained"], 0.5, learned=0.5, points=10)
    assert names["retrained"].summary["rounds"][0]["retraining"]


def test_fit_pytorch(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("fit_pytorch")
    check(names["result"], 0.6, learned=0.8, points=10)
    assert capsys.readouterr().out.count("epoch 1:") == 1 + len(names["result"].rounds) > 2


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:`isinstance:FutureWarning", "ignore::DeprecationWarning")
def test_fit_lightning(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("fit_lightning")
    check(names["result"], 0.6, learned=0.8, points=10)
    assert capsys.readouterr().out.count("Lightning, after 2 epochs") == len(names["result"].rounds) == 1


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_fit_transformers(run: Run) -> None:
    names = run("fit_transformers")
    check(names["result"], 0.5, learned=0.7, points=15)
    images = next(iter(names["test"]))["pixel_values"]
    loaded, pruned = (outputs(model, images).logits for model in (names["loaded"], names["result"].model))
    torch.testing.assert_close(loaded, pruned)


def test_cpu_service(run: Run) -> None:
    names = run("cpu_service")
    check(names["result"], 0.5, learned=0.8, points=10)
    images = torch.cat([images for images, _ in names["test"]])
    for name, network in {"original": names["model"], "pruned": names["result"].model}.items():
        logits = outputs(network, images)
        best, second = logits.topk(2).values.T
        clear = best - second > 1e-3 * logits.abs().max()  # elsewhere rounding may decide
        answers = torch.tensor(names["answers"][name])
        assert clear.float().mean() > 0.9 and torch.equal(answers[clear], logits.argmax(1)[clear])


def test_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    # PyTorch warns of harmless strides in every process, which users would see; here the warning would be an error.
    printed = python(*torchrun, EXAMPLES / "cluster.py", "--small", PYTHONWARNINGS="error:Grad strides:UserWarning")
    assert printed.count("\nGoal ") == 1  # one process prints
    summary = json.loads(Path("cluster/run/summary.json").read_text())
    assert 0.495 <= summary["removed"]["macs"] < 0.6
    assert summary["after"]["test"]["quality"] > 0.6


def test_every_example_is_tested_and_listed() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    assert len(scripts) >= 10
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert scripts - tested == set()
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in scripts if f"]({name}.py)" not in index] == []
