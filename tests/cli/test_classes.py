"""`prunus prune --classes`: a network for some of its classes, and the images of these."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import prunus as pr
from prunus.timing.onnx_export import exported
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.proof import assert_accuracy

QUICK = ["--data", "digits", "--num-images", "100", "--device", "cpu"]
QUICK += ["--no-augment", "--repair", "none", "--no-timing"]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LeNet-5 that was not trained."""
    from safetensors.torch import save_file

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    save_file(create("lenet5").state_dict(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_images_of_some_classes() -> None:
    whole = load("digits", size=32)
    some = whole.only(whole.class_numbers("7, 2"))
    assert some.classes == ("7", "2")
    labels = np.concatenate([y.numpy() for _, y in whole.loader("test", 64)])
    assert some.count("test") == int(np.isin(labels, (7, 2)).sum())
    images = {
        y: x for x, y in ((x, y) for xs, ys in some.loader("test", 8) for x, y in zip(xs, ys.tolist(), strict=True))
    }
    wanted = {
        y: x for x, y in ((x, y) for xs, ys in whole.loader("test", 8) for x, y in zip(xs, ys.tolist(), strict=True))
    }
    assert torch.equal(images[0], wanted[7]) and torch.equal(images[1], wanted[2])
    for text, match in (("7", "two or more"), ("7,7", "two or more"), ("7,11", "no class of digits called '11'")):
        with pytest.raises(pr.DataError, match=match):
            whole.class_numbers(text)


def test_a_run_with_three_classes(weights: Path) -> None:
    lines(
        prunus("prune", "lenet5", "--weights", weights, *QUICK, "--target", "0.3", "--classes", "3,7,9", "--out", "run")
    )
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["layers"]["fc2"]["outputs"] == [3, 3]
    digits = load("digits", size=32)
    original = create("lenet5")
    from prunus.zoo.weights import load_weights

    load_weights(original, weights)
    some = digits.only([3, 7, 9])
    assert_accuracy(
        summary["before"]["test"]["quality"],
        pr.keep_classes(original, some.example(), [3, 7, 9]),
        some.loader("test", 64),
    )
    small = pr.load("run", create("lenet5", num_classes=3)).eval()
    assert_accuracy(summary["after"]["test"]["quality"], small, some.loader("test", 64))
    done = json.loads(prunus("evaluate", "run", "--json").stdout)
    assert done["quality"]["value"] == pytest.approx(summary["after"]["test"]["quality"], abs=0.02)
    assert done["num_images"] == some.count("test")
    lines(prunus("prune", "run", *QUICK, "--target", "0.1", "--out", "again"))
    assert json.loads(Path("again/config.json").read_text())["command"]["classes"] == "3,7,9"


def test_a_file_with_fewer_classes(weights: Path) -> None:
    Path("net.onnx").write_bytes(exported(create("lenet5").eval(), torch.zeros(1, 1, 32, 32)))
    lines(prunus("prune", "net.onnx", *QUICK, "--target", "0.3", "--classes", "3,7,9", "--out", "run"))
    x = torch.randn(2, 1, 32, 32)
    assert pr.from_onnx("run/net-small.onnx")(x).shape == (2, 3)
    assert json.loads(prunus("evaluate", "run", "--json").stdout)["num_images"] == load("digits").only([3, 7, 9]).count(
        "test"
    )
    whole = pr.keep_classes(pr.from_onnx("run/original.onnx"), x[:1], [3, 7, 9])
    torch.testing.assert_close(
        pr.load("run", whole).eval()(x), pr.from_onnx("run/net-small.onnx")(x), rtol=1e-3, atol=1e-4
    )
