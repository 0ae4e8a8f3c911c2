"""An .onnx file as MODEL: pruned, evaluated, inspected, exported and pruned again, without a class."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import prunus as pr
from prunus.timing.onnx_export import exported, open_session, run_session
from prunus.zoo.data import load
from prunus.zoo.models import create
from tests.cli.command_line import lines, prunus
from tests.proof import counted_macs

QUICK = ["--data", "digits", "--num-images", "100", "--device", "cpu"]
QUICK += ["--no-augment", "--repair", "none", "--no-timing"]
EXAMPLE = torch.zeros(1, 1, 32, 32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeNet-5 as a file, and the run that pruned it."""
    place = tmp_path_factory.mktemp("place")
    torch.manual_seed(0)
    (place / "net.onnx").write_bytes(exported(create("lenet5").eval(), EXAMPLE))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        said = lines(prunus("prune", "net.onnx", *QUICK, "--target", "0.4", "--out", "run"))
        assert "the pruned network as a file: run/net-small.onnx" in said
        assert 'load it with: prunus.load("run", prunus.from_onnx("run/original.onnx")).eval()' in " ".join(said)
        (place / "net.onnx").rename(place / "moved.onnx")
    return place


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def accuracy_of_file(path: str) -> float:
    """By onnxruntime alone."""
    session, right, count = open_session(Path(path), 1), 0, 0
    for images, labels in load("digits", size=32).loader("test", 64):
        right += int((run_session(session, images)[0].argmax(1) == labels.numpy()).sum())
        count += len(labels)
    return right / count


def test_the_run_has_the_file_and_the_small_network() -> None:
    small = pr.load("run", pr.from_onnx("run/original.onnx")).eval()
    summary = json.loads(Path("run/summary.json").read_text())
    whole = counted_macs(create("lenet5").eval(), EXAMPLE)
    assert summary["before"]["macs"] == whole
    assert counted_macs(small, EXAMPLE) == summary["after"]["macs"] <= 0.6 * whole
    x = torch.randn(3, 1, 32, 32)
    got = run_session(open_session(Path("run/net-small.onnx"), 1), x)[0]
    np.testing.assert_allclose(got, small(x).detach().numpy(), rtol=1e-3, atol=1e-4)
    assert "prunus.from_onnx(&#39;run/original.onnx&#39;)" in Path("run/report.html").read_text(encoding="utf-8")


def test_evaluate_inspect_and_export() -> None:
    for model, file in (("moved.onnx", "moved.onnx"), ("run", "run/net-small.onnx")):
        done = json.loads(prunus("evaluate", model, "--data", "digits", "--json").stdout)
        assert done["quality"]["value"] == pytest.approx(accuracy_of_file(file), abs=1.5 / done["num_images"])
    assert "416.52 K MACs" in lines(prunus("inspect", "moved.onnx"))[0]
    lines(prunus("export", "run", "out.onnx"))
    assert (
        counted_macs(pr.from_onnx("out.onnx"), EXAMPLE) == json.loads(prunus("inspect", "run", "--json").stdout)["macs"]
    )
    refusal = prunus("export", "run", "out.py")
    assert refusal.exit_code == 1 and "there is no class to write" in refusal.output.replace("\n", " ")


def test_a_run_goes_on_from_a_run() -> None:
    said = lines(prunus("prune", "run", *QUICK, "--target", "0.2", "--out", "second"))
    assert "the pruned network as a file: second/small.onnx" in said
    first, second = (json.loads(Path(f"{run}/summary.json").read_text()) for run in ("run", "second"))
    assert second["after"]["macs"] <= 0.8 * first["after"]["macs"]
    assert counted_macs(pr.from_onnx("second/small.onnx"), EXAMPLE) == second["after"]["macs"]


def refused(*words: str) -> str:
    result = prunus(*words, columns=200)
    assert result.exit_code not in (0, 3), result.output
    return " ".join(result.output.split())


def test_what_is_refused(tmp_path: Path) -> None:
    assert "this file does not exist" in refused("prune", "none.onnx", "--data", "digits")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(Path("moved.onnx").read_bytes()[:1000])
    assert "is not a complete .onnx file" in refused("prune", str(broken), "--data", "digits")
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["a"]), helper.make_node("Flatten", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "a.onnx")
    assert "takes images of any size" in refused("inspect", str(tmp_path / "a.onnx"))
    assert lines(prunus("inspect", tmp_path / "a.onnx", "--size", "16"))[0].startswith(str(tmp_path / "a.onnx"))
    assert "is for 4 classes, and digits has 10" in refused("evaluate", str(tmp_path / "a.onnx"), "--data", "digits")
