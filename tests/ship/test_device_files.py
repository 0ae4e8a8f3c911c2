"""Files for devices: run after they are written, with PyTorch's outputs; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import prunus
from prunus.errors import FileError, ModelError, RunError
from prunus.ship import device_files
from prunus.ship.formats import file_format
from prunus.timing import engines
from tests.timing.test_edge_engines import Selecting, by_hand


def picture(count: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    "name, format", [("a/small.mnn", "mnn"), ("small.ncnn.param", "ncnn"), ("small.pte", "pte"), ("x.tflite", "tflite")]
)
def test_the_suffix_names_the_format(name: str, format: str) -> None:
    assert file_format(Path(name)) == format


@pytest.mark.parametrize("name", ["small.mnn", "small.ncnn.param", "small.pte"])
def test_a_file_is_run_and_compared(tmp_path: Path, name: str) -> None:
    net = Selecting().train()
    done = prunus.export(net, picture(), tmp_path / name, images=picture(4))
    assert done.num_images == 4 and 0 < done.error < 1e-4
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == (["small.ncnn.bin", "small.ncnn.param"] if "ncnn" in name else [name])
    assert done.bytes == sum((tmp_path / file).stat().st_size for file in files)
    assert net.training and "prunus_selection_weight" not in net.reader._buffers


@pytest.mark.engines
def test_a_file_of_litert_is_run_and_compared(tmp_path: Path) -> None:
    done = prunus.export(Selecting().eval(), picture(), tmp_path / "small.tflite", images=picture(4))
    assert done.num_images == 4 and done.error < 1e-4


def test_ncnn_s_own_library_gives_pytorch_s_outputs(tmp_path: Path) -> None:
    import ncnn

    net = Selecting().eval()
    prunus.export(net, picture(), tmp_path / "small.ncnn.param")
    loaded = ncnn.Net()
    assert loaded.load_param(str(tmp_path / "small.ncnn.param")) == 0
    assert loaded.load_model(str(tmp_path / "small.ncnn.bin")) == 0
    taker = loaded.create_extractor()
    pixels = picture()[0].numpy()  # the Mat does not keep it alive
    taker.input("in0", ncnn.Mat(pixels).clone())
    code, out = taker.extract("out0")
    assert code == 0
    with torch.no_grad():
        np.testing.assert_allclose(np.array(out), by_hand(net, picture())[0], rtol=1e-2, atol=1e-2)  # half precision


def test_a_package_of_core_ml_has_the_network_s_sizes_and_layers(tmp_path: Path) -> None:
    path = tmp_path / "small.mlpackage"
    for _ in range(2):  # an older package is replaced
        done = prunus.export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), picture(), path)
    assert done.num_images == 0 and (path / "Manifest.json").is_file()
    assert [file.name for file in tmp_path.iterdir()] == ["small.mlpackage"]
    (tmp_path / "mine.mlpackage").mkdir()
    (tmp_path / "mine.mlpackage" / "letter.txt").write_text("dear")
    with pytest.raises(FileError, match="is no Core ML package"):
        prunus.export(nn.Conv2d(3, 4, 3), picture(), tmp_path / "mine.mlpackage")
    assert (tmp_path / "mine.mlpackage" / "letter.txt").read_text() == "dear"


def test_a_file_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "small.mnn"
    path.write_bytes(b"before")

    def wrong(model: nn.Module, example: Tensor, file: Path) -> device_files.Runner:
        file.write_bytes(b"after")
        with torch.no_grad():
            return lambda batch: [by_hand(model, batch).detach() * 1.01]  # type: ignore[arg-type]

    monkeypatch.setattr(device_files, "_WRITERS", {"mnn": wrong})
    with pytest.raises(ModelError, match="differs from PyTorch's by"):
        prunus.export(Selecting().eval(), picture(), path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = Selecting().eval()
    with pytest.raises(ModelError, match="ncnn takes one image at a time"):
        prunus.export(net, picture(2), tmp_path / "small.ncnn.param")
    with pytest.raises(ModelError, match=r"a name that ends in \.ncnn\.param, not small\.bin"):
        prunus.export(net, picture(), tmp_path / "small.bin", "ncnn")
    with pytest.raises(ModelError, match="opset applies to the format onnx only"):
        prunus.export(net, picture(), tmp_path / "small.mnn", opset=18)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    extras = {"a.pte": "executorch", "a.ncnn.param": "ncnn", "a.mnn": "mnn", "a.tflite": "litert"}
    for name, extra in extras.items():
        with pytest.raises(RunError, match=rf"pip install 'prunus\[{extra}\]'"):
            prunus.export(net, picture(), tmp_path / name)
    with pytest.raises(RunError, match=r"export to Core ML needs coremltools, .*pip install 'prunus\[coreml\]'"):
        prunus.export(net, picture(), tmp_path / "a.mlpackage")
    assert list(tmp_path.iterdir()) == []
