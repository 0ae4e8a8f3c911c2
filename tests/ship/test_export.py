"""Exported files: the same outputs, any number of images, no pickle, and clear errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import prunus as pr
from prunus.errors import DataError, FileError, ModelError, PrunusError
from prunus.ship.export import export
from prunus.zoo.models import create
from tests.ship.nets import network, pictures, pruned
from tests.ship.roundtrip import back, there

EXAMPLE = torch.zeros(1, 3, 8, 8)


@pytest.mark.parametrize("fold, opset", [(False, None), (True, 20)])
def test_onnx_with_the_selection_and_any_number_of_images(tmp_path: Path, fold: bool, opset: int | None) -> None:
    model, _ = pruned()
    modes = [m.training for m in model.modules()]
    before = {name: t.clone() for name, t in model.state_dict().items()}
    done = export(model, EXAMPLE, tmp_path / "small.onnx", fold_bn=fold, opset=opset, images=pictures(3))
    assert (done.format, done.num_images, done.bytes) == ("onnx", 4, done.path.stat().st_size)
    assert done.error < 1e-5
    assert done.opset is not None and (done.opset == opset or opset is None)
    assert [o.version for o in onnx.load(done.path).opset_import if not o.domain] == [done.opset]
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    for count in (1, 5):
        with torch.no_grad():
            want = model.eval()(pictures(count, seed=9)).numpy()
        (got,) = session.run(None, {session.get_inputs()[0].name: pictures(count, seed=9).numpy()})
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert list(tmp_path.iterdir()) == [done.path]  # one file and nothing else


def test_an_older_opset(tmp_path: Path) -> None:
    done = export(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), EXAMPLE, tmp_path / "old.onnx", opset=15)
    assert done.opset == onnx.load(done.path).opset_import[0].version == 15 and done.error < 1e-5


def test_pt2_is_loaded_without_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pruned()
    done = export(model, EXAMPLE, tmp_path / "small.pt2")
    assert done.error <= 1e-6

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("pickle")

    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    loaded = torch.export.load(done.path).module()
    with torch.no_grad():
        torch.testing.assert_close(loaded(pictures(2)), model.eval()(pictures(2)), rtol=1e-4, atol=1e-4)


def test_safetensors_with_the_plan_come_back_as_a_model(tmp_path: Path) -> None:
    model, plan = pruned()
    done = export(model, EXAMPLE, tmp_path / "small", plan=plan)
    assert (done.format, done.path) == ("safetensors", tmp_path / "small")
    again = pr.load(tmp_path / "small", network())
    with torch.no_grad():
        assert torch.equal(again.eval()(pictures(2)), model.eval()(pictures(2)))
    alone = export(model, EXAMPLE, tmp_path / "small.safetensors")
    assert not alone.path.read_bytes().startswith(pickle.PROTO)
    assert load_file(alone.path).keys() == model.state_dict().keys()  # the selection's index is not a weight


class Pairs(nn.Module):
    """Takes two images, no other number."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1).sum(1)


class Clips(nn.Module):
    """Takes clips of four frames, or one image without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h if h.dim() == 3 else h.view(-1, 4, *h.shape[1:]).roll(1, 1).flatten(0, 1))


class Named(NamedTuple):
    scores: Tensor


class Names(Clips):
    def forward(self, x: Tensor) -> Any:
        return Named(super().forward(x))


class Spectral(nn.Module):
    """ONNX has no eigenvalues."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvals(x[:, 0]).abs()


def test_clear_errors_for_what_cannot_be_written(tmp_path: Path) -> None:
    model, plan = pruned()
    large, four = {"images": torch.zeros(2, 3, 9, 9)}, {"dynamic_batch": False, "images": pictures(2)}
    cases: list[tuple[type[Exception], str, nn.Module, Tensor, str, dict[str, Any]]] = [
        (ModelError, "onnx, pt2, safetensors", model, EXAMPLE, "a.bin", {}),
        (ModelError, "coreml", model, EXAMPLE, "a.bin", {"format": "coreml"}),
        (ModelError, "format onnx only", model, EXAMPLE, "a.mnn", {"opset": 18}),
        (DataError, r"\[N, 3, 8, 8\], not \[2, 3, 9, 9\]", model, EXAMPLE, "a.pt2", large),
        (DataError, "takes 4 images at a time, but only 2", model, torch.zeros(4, 3, 8, 8), "a.pt2", four),
        (ModelError, "dynamic_batch=False", Pairs(), EXAMPLE, "two.pt2", {}),
        (ModelError, r"opsets 1 to \d+, not 99", model, EXAMPLE, "a.onnx", {"opset": 99}),
        (ModelError, r"ONNX cannot express this network: .*linalg_eig", Spectral(), EXAMPLE, "a.onnx", {}),
        (ModelError, "cannot write the inputs and outputs of Names", Names(), torch.zeros(8, 3, 8, 8), "a.pt2", {}),
        (ModelError, r"a name that ends in \.ncnn\.param, not a\.bin", model, EXAMPLE, "a.bin", {"format": "ncnn"}),
        (ModelError, "folded", model, EXAMPLE, "a", {"plan": plan, "fold_bn": True}),
    ]
    for error, message, net, example, name, options in cases:
        with pytest.raises(error, match=message):
            export(net, example, tmp_path / name, **options)
    assert export(Pairs(), torch.zeros(2, 3, 8, 8), tmp_path / "two.pt2", dynamic_batch=False).num_images == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["two.pt2"]


def test_there_and_back(tmp_path: Path) -> None:
    assert there("resnet8", tmp_path)["macs"] < 0.8  # benchmarks/guards.py takes all of the registry
    found = back("resnet8", tmp_path)
    assert found["same predictions"] and found["images"] == 64
    assert found["loaded"] <= 1e-6 and found["onnx"] <= 1e-5


def test_a_plan_and_weights_that_do_not_belong_together(tmp_path: Path) -> None:
    """A plan with the same number of other channels has the same shapes, and would be silently wrong."""
    model, plan = pruned()
    pr.save(model, plan, tmp_path / "a")
    graph = pr.trace(network(), torch.zeros(1, 3, 8, 8))
    other = pr.Plan.of(graph, {"conv1:out": [0, 2, 3, 6], "conv1:in": [0, 1, 4, 5]})
    pr.save(pr.prune(graph, other), other, tmp_path / "b")
    (tmp_path / "a" / "plan.json").replace(tmp_path / "b" / "plan.json")
    with pytest.raises(FileError, match="keeps other channels"):
        pr.load(tmp_path / "b", network())
    narrow = pr.Plan.of(graph, {"conv1:out": [0, 2], "conv1:in": [0, 1, 4, 5]})
    (tmp_path / "b" / "plan.json").write_text(narrow.to_json())
    with pytest.raises(FileError, match="does not belong"):
        pr.load(tmp_path / "b", network())
    pr.save(model, plan, tmp_path / "c")
    with pytest.raises(PrunusError, match="does not run on the example"):
        pr.load(tmp_path / "c", create("lenet5"))


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (np.zeros((1, 3, 8, 8), np.float32), r"numpy array \[1, 3, 8, 8\]; pass a tensor"),
        (torch.zeros(1, 5, 8, 8), r"does not run on the example \[1, 5, 8, 8\]: RuntimeError: .*5 channels"),
        (None, r"at least one image \[N, C, H, W\], got NoneType"),
        (torch.zeros(0, 3, 8, 8), r"got \[\[0, 3, 8, 8\]\]"),
    ],
)
def test_examples_that_do_not_fit(tmp_path: Path, example: Any, said: str) -> None:
    for name in ("a.onnx", "a.pt2", "a.py"):
        with pytest.raises(DataError, match=said):
            export(pruned()[0], example, tmp_path / name)
    assert not list(tmp_path.iterdir())


class Counting(nn.Module):
    """Counts its calls and keeps a running mean, also in eval mode; eval() scales a weight, train() takes it back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.register_buffer("mean", torch.zeros(8))
        self.calls, self.scaled = 0, False

    def train(self, mode: bool = True) -> Counting:
        if mode == self.scaled:
            self.a.weight.data *= 1 / 3 if mode else 3
            self.scaled = not mode
        return super().train(mode)

    def forward(self, x: Tensor) -> dict[str, Tensor | None]:
        h = torch.relu(self.norm(self.a(x)))
        self.calls += 1
        self.mean.mul_(0.9).add_(0.1 * h.detach().mean((0, 2, 3)))  # type: ignore[operator]
        return {"mask": self.b(h / self.norm.num_features) > 0, "auxiliary": None}


@pytest.mark.parametrize(("suffix", "training"), [("onnx", True), ("pt2", False)])
def test_nothing_of_the_network_is_changed(tmp_path: Path, suffix: str, training: bool) -> None:
    model = Counting().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export(model, pictures(2), tmp_path / f"small.{suffix}", fold_bn=training)
    assert (model.calls, model.training, model.scaled) == (0, training, not training)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(("suffix", "shape"), [("onnx", (8, 3, 8, 8)), ("pt2", (3, 8, 8))])
def test_clips_and_images_without_a_batch(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    assert export(Clips().eval(), torch.randn(shape), tmp_path / f"small.{suffix}").error < 1e-5
