"""Export in 8-bit integers: accuracy on held-out images, the same file in OpenVINO, and drops that are too large."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from prunus.errors import DataError, FileError, ModelError
from prunus.ship import int8
from prunus.ship.bench import bench
from prunus.ship.int8 import export_int8
from prunus.tasks.evaluate import Evaluation
from prunus.timing.engines import ENGINES
from prunus.timing.latency import Speedup, Timing
from prunus.timing.onnx_export import OnnxFile


class Brightness(nn.Sequential):
    """Says which of two channels of an image is brighter; the convolutions pass both on."""

    def __init__(self) -> None:
        convolutions = [nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1)]
        super().__init__(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        for layer in (self[0], self[3]):
            layer.weight.data = torch.eye(2).view(2, 2, 1, 1)
            layer.bias.data.zero_()


def pictures(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    images = torch.rand(count, 2, 6, 6, generator=torch.Generator().manual_seed(seed))
    images[: count // 2, 0] += 1
    images[count // 2 :, 1] += 1
    return [(images, torch.arange(count) // (count // 2))]


def test_a_file_that_both_engines_run(tmp_path: Path) -> None:
    model, example, path = Brightness().eval(), torch.zeros(1, 2, 6, 6), tmp_path / "small.onnx"
    done = export_int8(model, example, path, pictures(20, 0), pictures(40, 1))
    assert done.before.quality == done.after.quality == 1.0 and done.drop == 0 and done.num_calibration == 20
    assert done.bytes == path.stat().st_size and [p.name for p in tmp_path.iterdir()] == ["small.onnx"]
    nodes = onnx.load(path).graph.node
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in nodes}
    weights = [
        w for w in onnx.load(path).graph.initializer if w.data_type == onnx.TensorProto.INT8 and len(w.dims) == 4
    ]
    assert len(weights) == 2
    images, _ = pictures(6, 2)[0]
    with torch.no_grad():
        wanted = model(images).numpy()
    for engine in ("onnxruntime", "onnxruntime-int8", "openvino"):  # a file in integers is run as it is
        found = ENGINES[engine].prepare(OnnxFile(path), example, 1)(images)
        assert np.abs(np.asarray(found[0]) - wanted).max() < 0.02
    benched = bench({"network": model, "int8": OnnxFile(path)}, example, (2,), ("eager", "onnxruntime"), rounds=1)
    rows = [(row.model, row.engine) for row in benched.rows]
    assert rows == [("network", "eager"), ("network", "onnxruntime"), ("int8", "onnxruntime")]
    assert benched.notes == ("int8 does not run in eager: eager does not read ONNX files",)
    assert benched.profiles["int8"].macs is None


def test_a_drop_that_is_too_large_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    images, labels = pictures(20, 0)[0]
    dark = [(images * 1e-4, labels)]  # ranges measured on these cut all others off
    with pytest.raises(ModelError, match=r"int8 loses \d+\.\d\d points .* at most 1 are allowed; nothing was written"):
        export_int8(Brightness().eval(), images[:1], path, dark, pictures(40, 1))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match="no images to calibrate"):
        export_int8(Brightness().eval(), images[:1], path, [], pictures(40, 1))
    with pytest.raises(ModelError, match=r"ends in \.onnx"):
        export_int8(Brightness().eval(), images[:1], tmp_path / "a.pt2", dark, dark)
    with pytest.raises(FileError, match="cannot read"):
        OnnxFile(tmp_path / "none.onnx")


def test_limits_any_loader_progress_and_a_file_that_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, example, path = Brightness().eval(), torch.zeros(1, 2, 6, 6), tmp_path / "small.onnx"
    accuracy = iter([0.79, 0.78])
    monkeypatch.setattr(int8, "evaluate", lambda *_, **__: Evaluation(next(accuracy), 0.0, 100))
    monkeypatch.setattr(int8, "latency", lambda *_, **__: [Timing("any", 1, 1.0, (1.0, 1.0), 1)] * 2)
    monkeypatch.setattr(int8, "speedup", lambda *_: Speedup(0.59, 0.55, 0.63))
    steps: list[tuple[str, int, int]] = []
    images = pictures(300, 0)[0][0]  # without labels, and more than are read
    done = export_int8(model, example, path, images, [], progress=lambda *step: steps.append(step[:3]))
    assert done.num_calibration == 200 and done.drop > 1.0  # 0.79 - 0.78 > 0.01
    ready = {engine.name for engine in ENGINES.values() if engine.open_onnx is not None and engine.is_ready}
    assert {("export", 0, 1), ("export", 1, 1), ("calibration", 200, 200)} <= set(steps)
    assert ("timing", len(ready), len(ready)) in steps
    assert set(done.speed) == ready and "onnxruntime" in ready
    assert "int8 is slower than 32 bits in onnxruntime on this machine: 0.59x (0.55 to 0.63)" in caplog.text
    with pytest.raises(DataError, match="does not run on the example"):
        export_int8(model, torch.zeros(1, 3, 6, 6), tmp_path / "b.onnx", images, [])
    assert [file.name for file in tmp_path.iterdir()] == ["small.onnx"]
