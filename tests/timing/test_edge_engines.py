"""Engines of phones and small devices: the outputs of PyTorch, selections as convolutions, and no crash."""

from __future__ import annotations

import os
import signal
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.errors import ModelError
from prunus.graph.selection import select, with_convolutions
from prunus.timing.engines import ENGINES
from prunus.timing.engines._native import native_output_dropped, python_child, run_child
from prunus.timing.layer_blocks import Block, Run, onnx_graph


class Selecting(nn.Module):
    """A stem, a convolution that selects channels of it in another order, a shortcut with steps, a linear layer that
    selects features."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.stem, self.reader, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(5, 4)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)
        select(self.reader, torch.tensor([6, 0, 3]), 1)
        select(self.head, torch.tensor([7, 1, 2, 3, 5]), 1)

    def forward(self, x: Tensor) -> Tensor:
        stem = F.relu(self.stem(x))
        read = self.reader(stem) + stem[:, :, ::2, ::2]
        return self.head(read.mean((2, 3)))


def by_hand(net: Selecting, x: Tensor) -> Tensor:
    """The same without hooks: weights of zeros for what is not selected."""
    stem = F.relu(F.conv2d(x, net.stem.weight, net.stem.bias, padding=1))
    read = torch.zeros(8, 8, 3, 3).index_copy(1, torch.tensor([6, 0, 3]), net.reader.weight)
    head = torch.zeros(4, 8).index_copy(1, torch.tensor([7, 1, 2, 3, 5]), net.head.weight)
    features = F.conv2d(stem, read, net.reader.bias, 2, 1) + stem[:, :, ::2, ::2]
    return F.linear(features.mean((2, 3)), head, net.head.bias)


def outputs(name: str, batches: list[Tensor]) -> tuple[list[Any], list[Any]]:
    net = Selecting().eval()
    with torch.no_grad():
        prepared = ENGINES[name].prepare(net, batches[0], 1)
        return [torch.as_tensor(prepared(batch)[0]).clone() for batch in batches], [
            by_hand(net, batch) for batch in batches
        ]


def assert_outputs_of_pytorch(name: str) -> None:
    batches = [torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(count)) for count in (1, 3)]
    for got, want in zip(*outputs(name, batches), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "mnn", "ncnn", "executorch"])
def test_engines_compute_what_pytorch_does(name: str) -> None:
    if ENGINES[name].crashes():
        return  # where oneDNN may not use AVX2
    assert_outputs_of_pytorch(name)


@pytest.mark.engines
def test_litert_computes_what_pytorch_does() -> None:
    assert_outputs_of_pytorch("litert")


def test_selections_as_convolutions_compute_the_same_and_leave_the_model_alone() -> None:
    net, x = Selecting().eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    copied = with_convolutions(net, x[:1])
    state = list(net.state_dict())
    weight = copied.reader._buffers["prunus_selection_weight"]  # type: ignore[union-attr]
    assert torch.equal(weight.flatten(1), torch.eye(8)[[6, 0, 3]])  # type: ignore[union-attr]
    with torch.no_grad():
        torch.testing.assert_close(copied(x), by_hand(net, x), rtol=1e-5, atol=1e-5)
    assert list(copied.state_dict()) == state  # not saved
    assert "prunus_selection_weight" not in net.reader._buffers
    plain = nn.Conv2d(3, 4, 1)
    assert with_convolutions(plain, x) is plain


def test_zeros_of_a_filled_selection_stay_zeros() -> None:
    layer = nn.Conv2d(3, 2, 1, bias=False)
    select(layer, torch.tensor([1, 2, 0]), 1, filled=True)  # of two channels: 2 is the channel of zeros
    x = torch.tensor([[[[2.0]], [[3.0]]]])
    got = with_convolutions(layer, x)(x)
    want = layer.weight[:, 0] * 3 + layer.weight[:, 2] * 2
    torch.testing.assert_close(got[0], want)


@pytest.mark.parametrize("layer, shape", [(nn.Conv2d(8, 4, 3, padding=1), (1, 8, 6, 6)), (nn.Linear(8, 4), (1, 8))])
def test_a_timed_selection_is_the_same_in_both_forms(layer: nn.Module, shape: tuple[int, ...]) -> None:
    import onnxruntime

    size = torch.Size(shape)
    out = layer(torch.zeros(size)).shape
    block = Block("layer", "kind", nn.Sequential(layer), size, out, first=False, last=None)
    made = []
    for form in ("gather", "convolution"):
        content, fed = onnx_graph(block, Run("selection", 5), 2, form)  # type: ignore[arg-type]
        operations = "Gather" if form == "gather" else "Conv" if len(shape) == 4 else "MatMul"
        assert operations.encode() in content
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        x = np.random.default_rng(1).standard_normal(fed).astype(np.float32)
        made.append(session.run(None, {"x": x})[0])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5, atol=1e-6)


def test_ncnn_opens_several_small_networks_at_once() -> None:
    layer = nn.Conv2d(8, 4, 3, padding=1)
    size = torch.Size((1, 8, 6, 6))
    block = Block("layer", "kind", nn.Sequential(layer), size, torch.Size((1, 4, 6, 6)), first=False, last=None)
    runs = [Run("block", 8, 4), Run("before", 5), Run("selection", 3)]
    graphs = [onnx_graph(block, run, 2, "convolution") for run in runs]
    together = ENGINES["ncnn"].open_all([content for content, _ in graphs], 1)
    for (content, shape), program in zip(graphs, together, strict=True):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        want = ENGINES["onnxruntime"].open_all([content], 1)[0].run([x])[0]
        np.testing.assert_allclose(program.run([x])[0], want, rtol=1e-4, atol=1e-5)


class Cumulative(nn.Module):
    """An operation that ncnn does not have: channels in another order, by index."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.tensor([2, 0, 1])] * 2


def test_a_network_that_ncnn_cannot_run_is_an_error_and_no_crash() -> None:
    with pytest.raises(ModelError, match="ncnn"):
        ENGINES["ncnn"].prepare(Cumulative().eval(), torch.zeros(1, 3, 4, 4), 1)


@pytest.mark.parametrize("name", ["mnn", "ncnn"])
def test_a_file_that_is_no_network_is_an_error(name: str) -> None:
    broken = nn.Identity()
    broken.content = b"nothing"  # type: ignore[assignment]
    with pytest.raises(ModelError, match="cannot"):
        ENGINES[name].prepare(broken, torch.zeros(1, 3), 1)


def test_a_child_that_crashes_is_an_error() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with pytest.raises(ModelError, match=rf"^it failed: it crashed \(signal {int(signal.SIGSEGV)}\)"):
        run_child(python_child(code), "it failed")
    with pytest.raises(ModelError, match=r"^it failed: exit code 1, no such layer"):
        run_child(python_child("import sys; sys.exit('no such layer')"), "it failed")
    assert run_child(python_child("print('fine')"), "it failed") == "fine"


def test_what_native_code_prints_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with native_output_dropped():
        os.write(1, b"noise")
        os.write(2, b"noise")
    os.write(1, b"kept")
    assert capfd.readouterr() == ("kept", "")


def test_mnn_is_used_without_its_tools() -> None:
    """Importing them installs packages with pip and asks a server for credentials."""
    ENGINES["mnn"].prepare(nn.Conv2d(3, 4, 1).eval(), torch.zeros(1, 3, 4, 4), 1)
    assert "MNN" in sys.modules and not any(name.startswith("MNN.tools") for name in sys.modules)


def test_engines_of_devices_are_timed_on_request_only() -> None:
    names = [name for name in ENGINES if ENGINES[name].on_request]
    assert names == ["executorch", "litert", "mnn", "ncnn", "onnxruntime-int8"]
    assert all(find_spec(package) for name in ("executorch", "mnn", "ncnn") for package in ENGINES[name].requires)
    assert not any(ENGINES[name].is_ready for name in names)


def test_int8_computes_in_integers_what_pytorch_does_within_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear layer of weights 1 and -1: on the image that ranges are measured on, an output is off by a few steps."""
    from prunus.timing.engines import onnxruntime_int8

    layer = nn.Linear(64, 2)
    layer.weight.data = torch.tensor([[1.0] * 64, [-1.0] * 64])
    layer.bias.data.zero_()
    opened: list[bytes] = []
    session = onnxruntime_int8.open_session

    def watched(content: bytes, threads: int) -> Any:
        opened.append(content)
        return session(content, threads)

    monkeypatch.setattr(onnxruntime_int8, "open_session", watched)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32))
    found = ENGINES["onnxruntime-int8"].prepare(layer.eval(), torch.zeros(1, 64), 1)(x)[0]
    want = float(x.double().sum())
    step = float(x.max() - x.min()) / 255  # of an input; 64 roundings of half a step at most, and one of the output
    assert np.abs(found - [[want, -want]]).max() < 64 * step / 2 + abs(want) / 100
    assert b"QuantizeLinear" in opened[1] and b"QuantizeLinear" not in opened[0]
