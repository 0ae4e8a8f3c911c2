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
from prunus.timing import engines
from tests.timing.networks import Selecting, by_hand


def picture(count: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(5))


SLOW = [pytest.param(name, marks=pytest.mark.engines) for name in ("a.pte", "a.tflite")]  # half a minute, or 2 GB


@pytest.mark.parametrize("name", ["small.mnn", "small.ncnn.param", *SLOW])
def test_a_file_is_run_and_compared(tmp_path: Path, name: str) -> None:
    net = Selecting().train()
    done = prunus.export(net, picture(), tmp_path / name, images=picture(4))
    assert done.num_images == 4 and 0 < done.error < 1e-4
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == (["small.ncnn.bin", "small.ncnn.param"] if "ncnn" in name else [name])
    assert done.bytes == sum((tmp_path / file).stat().st_size for file in files)
    assert net.training and "prunus_selection_weight" not in net.reader._buffers
    if "ncnn" in name:  # its own library reads the two files
        import ncnn

        loaded = ncnn.Net()
        assert loaded.load_param(str(tmp_path / "small.ncnn.param")) == 0
        assert loaded.load_model(str(tmp_path / "small.ncnn.bin")) == 0
        taker = loaded.create_extractor()
        pixels = picture()[0].numpy()  # the Mat does not keep it alive
        taker.input("in0", ncnn.Mat(pixels).clone())
        code, out = taker.extract("out0")
        assert code == 0
        with torch.no_grad():
            want = by_hand(net.eval(), picture())[0]
        np.testing.assert_allclose(np.array(out), want, rtol=1e-2, atol=1e-2)  # half precision


def test_a_package_of_core_ml_has_the_network_s_sizes_and_layers(tmp_path: Path) -> None:
    path = tmp_path / "small.mlpackage"
    path.mkdir()
    (path / "Manifest.json").write_text("of an older package, which is replaced")
    done = prunus.export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), picture(), path)
    assert done.num_images == 0 and "older" not in (path / "Manifest.json").read_text()
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
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    extras = {"a.pte": "executorch", "a.ncnn.param": "ncnn", "a.mnn": "mnn", "a.tflite": "litert"}
    for name, extra in extras.items():
        with pytest.raises(RunError, match=rf"pip install 'prunus\[{extra}\]'"):
            prunus.export(net, picture(), tmp_path / name)
    with pytest.raises(RunError, match=r"export to Core ML needs coremltools, .*pip install 'prunus\[coreml\]'"):
        prunus.export(net, picture(), tmp_path / "a.mlpackage")
    assert list(tmp_path.iterdir()) == []
