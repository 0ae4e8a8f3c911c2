"""`prunus export` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.command_line import lines, prunus


def test_a_run_folder(pruned_lenet: Path) -> None:
    out = pruned_lenet.parent / "small.pt2"
    words = "--fold-bn", "--data", "digits", "--num-images", "7"
    shown = lines(prunus("export", pruned_lenet, out, *words, columns=200))
    assert shown[0] == f"{out}: {out.stat().st_size:,} bytes, pt2"
    assert shown[1].startswith("compared with PyTorch on 8 images: largest difference ")  # all 7 at once, and 1
    model = torch.export.load(out).module()
    with torch.no_grad():
        assert model(torch.zeros(3, 1, 32, 32)).shape == (3, 10)


def test_a_fixed_number_of_random_images_and_no_weights(tmp_path: Path) -> None:
    found = prunus("export", "lenet5", tmp_path / "two.pt2", "--fixed-batch", "2", columns=200)
    assert "compared with PyTorch on 2 random images" in lines(found)[1]
    assert "no weights were given, so the network is not trained" in found.stderr


def test_a_folder_that_does_not_name_its_network(pruned_lenet: Path, tmp_path: Path) -> None:
    (pruned_lenet / "config.json").unlink()
    out = tmp_path / "a.pt2"
    for model, words, message in (
        (f"{pruned_lenet}", (), "as in NAME="),
        (f"lenet5={pruned_lenet}", ("--classes", "7"), "another network"),
    ):
        found = prunus("export", model, out, *words)
        assert found.exit_code == 1 and message in found.stderr and not out.exists()


def test_int8(pruned_lenet: Path) -> None:
    out = pruned_lenet.parent / "small.onnx"
    words = "--int8", "--data", "digits", "--num-calibration", "20", "--max-drop", "100"
    shown = lines(prunus("export", pruned_lenet, out, *words))
    assert shown[0].endswith("bytes, onnx in 8-bit integers") and shown[1] == "calibrated on 20 training images"
    assert "held-out images" in shown[2] and "points" in shown[3]
    assert shown[4].startswith("speed in onnxruntime for one image on one thread, relative to 32 bits: ")
    timed = lines(prunus("bench", out, "--engine", "onnxruntime", "--batch", "1", "--rounds", "1"))
    assert any("small" in line and "onnxruntime" in line for line in timed)


def test_plain_pytorch(pruned_lenet: Path) -> None:
    out = pruned_lenet.parent / "small.py"
    shown = lines(prunus("export", pruned_lenet, out, columns=200))
    assert shown[0].startswith(f"{out} and small.safetensors: ") and shown[0].endswith(" bytes, run without prunus")
    assert shown[1].startswith("compared with PyTorch on 4 random images: largest difference ")
    assert "model = LeNet5(num_classes=10)" in out.read_text()


def test_int8_on_own_data(pruned_lenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = pruned_lenet.parent, pruned_lenet.parent / "own.onnx"
    (folder / "grey_data.py").write_text(
        "import torch\n"
        "def make_data():\n"
        "    batch = torch.rand(6, 1, 32, 32), torch.arange(6)\n"
        "    return {'train': [batch, batch], 'holdout': [batch]}\n"
    )
    monkeypatch.syspath_prepend(folder)
    words = "--int8", "--data", "grey_data:make_data", "--max-drop", "100"
    shown = lines(prunus("export", pruned_lenet, out, *words))
    assert shown[1] == "calibrated on 12 training images" and "accuracy on 6 held-out images" in shown[2]
