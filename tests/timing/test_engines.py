"""Engines: the outputs of PyTorch in each of them, selections as convolutions, missing packages, and no crash."""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, fx, nn

from prunus.errors import ModelError, RunError
from prunus.graph.selection import select, with_convolutions
from prunus.ship.bench import bench
from prunus.timing import engines
from prunus.timing.engines import ENGINES, Engine, PreparedModel
from prunus.timing.engines._native import native_output_dropped, python_child, run_child
from prunus.timing.layer_blocks import Block, Run, onnx_graph
from prunus.timing.onnx_export import exported
from prunus.util.batches import call
from tests.timing.networks import Difference, Scaled, Selecting, by_hand


@pytest.mark.parametrize(
    "engine, missing, message",
    [
        ("onnxruntime", {"onnx"}, "onnx, which is not installed: pip install onnx$"),
        ("ncnn", {"ncnn", "pnnx"}, r"ncnn and pnnx, which are not installed: pip install 'prunus\[ncnn\]'"),
        ("litert", {"litert_torch"}, r"litert_torch, which is not installed: pip install 'prunus\[litert\]'"),
    ],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, engine: str, missing: set[str], message: str
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(RunError, match=f"the engine {engine} needs {message}"):
        ENGINES[engine].prepare(Scaled(2.0), torch.zeros(1, 3), 1)


def test_bench_times_an_engine_that_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    specialized: list[int] = []

    def make(model: nn.Module, example: torch.Tensor, threads: int) -> PreparedModel:
        asked.append((len(example), threads))
        return PreparedModel(partial(call, model), torch.device("cpu"), lambda batch: specialized.append(len(batch)))

    monkeypatch.setattr(ENGINES, "_registered", {})  # leaves nothing behind
    ENGINES.register(Engine(name="abacus", help="beads on wires", make=make))
    found = bench({"a": Scaled(2.0)}, torch.zeros(2, 3), (1, 5), ("abacus",), rounds=1, threads=1)
    assert [(row.engine, row.timing.batch_size) for row in found.rows] == [("abacus", 1), ("abacus", 5)]
    assert asked == [(2, 1)] and specialized == [1, 5]


def test_engines_of_devices_are_timed_on_request_only() -> None:
    names = [name for name in ENGINES if ENGINES[name].on_request]
    assert names == ["executorch", "litert", "mnn", "ncnn", "onnxruntime-int8", "openvino-int8"]
    assert not any(ENGINES[name].is_ready for name in names)


# ------------------------------------------------------------------------------------------------- outputs of PyTorch


LITERT = pytest.param("litert", marks=pytest.mark.engines)


@pytest.mark.parametrize("name", ["eager", "onnxruntime", "openvino", "mnn", "ncnn", "executorch", LITERT])
def test_engines_compute_what_pytorch_does(name: str) -> None:
    """Also for another number of images than that of the example."""
    if ENGINES[name].crashes():
        return  # where oneDNN may not use AVX2
    net, batch = Selecting().eval(), torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        output = ENGINES[name].prepare(net, batch[:1], 1)(batch)
        got = torch.as_tensor(output if name == "eager" else output[0])
        torch.testing.assert_close(got, by_hand(net, batch), rtol=1e-4, atol=1e-4)


@cache
def difference(by_name: bool) -> bytes:
    one = torch.zeros(1, 3)
    return exported(Difference().eval(), {"left": one, "right": one} if by_name else (one, one))


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "mnn", "ncnn"])
def test_several_inputs_by_place_and_by_name(name: str) -> None:
    if ENGINES[name].crashes():
        return
    five, two = torch.full((4, 3), 5.0), torch.full((4, 3), 2.0)
    assert ENGINES[name].open(difference(False), 1)((five, two))[0].tolist() == [[1.0] * 3] * 4
    assert ENGINES[name].open(difference(True), 1)({"right": five, "left": two})[0].tolist() == [[-8.0] * 3] * 4


def test_int8_computes_in_integers_what_pytorch_does_within_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear layer of weights 1 and -1: on the image that ranges are measured on, an output is off by a few steps."""
    from prunus.timing.engines import onnxruntime as engine

    layer = nn.Linear(64, 2)
    layer.weight.data = torch.tensor([[1.0] * 64, [-1.0] * 64])
    layer.bias.data.zero_()
    opened: list[bytes] = []
    session = engine.open_session

    def watched(content: bytes, threads: int) -> Any:
        opened.append(content)
        return session(content, threads)

    monkeypatch.setattr(engine, "open_session", watched)
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32))
    want = float(x.double().sum())
    step = float(x.max() - x.min()) / 255  # of an input; 64 roundings of half a step at most, and one of the output
    for name in ("onnxruntime-int8", "openvino-int8"):
        if not ENGINES[name].crashes():
            found = ENGINES[name].prepare(layer.eval(), torch.zeros(1, 64), 1)(x)[0]
            assert np.abs(found - [[want, -want]]).max() < 64 * step / 2 + abs(want) / 100
    assert b"QuantizeLinear" in opened[1] and b"QuantizeLinear" not in opened[0]
    # Two products of an unsigned activation and such a weight fit into 16 bits, as some processors add them.
    weights = [onnx.numpy_helper.to_array(each) for each in onnx.load_from_string(opened[1]).graph.initializer]
    largest = max(int(np.abs(each.astype(int)).max()) for each in weights if each.dtype == np.int8)
    assert largest >= 60 and 2 * 255 * largest < 2**15


def test_it_runs_on_the_device_of_the_model() -> None:
    model = Scaled(2.0).to("meta")
    assert ENGINES["eager"].prepare(model, torch.zeros(1, 3), 1).device == torch.device("meta")


MODELS = 9  # torch compiles one forward 8 times at most unless it is told otherwise


class Wide(nn.Module):
    """Sum over inputs and n outputs. As with pruned networks, the class is the same and the shapes differ."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, n))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).sum(1, keepdim=True)


def test_each_shape_is_compiled_once_for_every_model(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def backend(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        """Building C++ would take a minute; counting is enough here."""
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    batches = torch.ones(1, 3), torch.ones(4, 3)
    with torch.no_grad():
        models = [ENGINES["compile"].prepare(Wide(n).eval(), batches[0], 1) for n in range(2, MODELS + 2)]
        assert not compiled  # only for the batch sizes that are asked for
        for model in models:
            for batch in batches:
                model.specialize(batch)
        assert len(compiled) == 2 * MODELS
        outputs = [model(batch) for model in models for batch in batches]
    assert len(compiled) == 2 * MODELS
    assert [(len(found), float(found[0, 0])) for found in outputs] == [
        (size, 3.0 * n) for n in range(2, MODELS + 2) for size in (1, 4)
    ]


def test_threads_are_passed_on_and_no_file_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    threads: list[int] = []
    session = onnxruntime.InferenceSession

    def watched(path: Path, options: Any, **rest: Any) -> Any:
        threads.append(options.intra_op_num_threads)
        return session(path, options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ENGINES["onnxruntime"].prepare(Scaled(2.0).eval(), torch.zeros(1, 3), 3)
    assert threads[-1] == 3 and list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- selections


def test_selections_as_convolutions_compute_the_same_and_leave_the_model_alone() -> None:
    net, x = Selecting().eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    copied = with_convolutions(net, x[:1])
    state = list(net.state_dict())
    weight = copied.reader._buffers["prunus_selection_weight"]  # type: ignore[union-attr]
    assert torch.equal(weight.flatten(1), torch.eye(8)[[6, 0, 3]])  # type: ignore[union-attr]
    with torch.no_grad():
        torch.testing.assert_close(copied(x), by_hand(net, x), rtol=1e-5, atol=1e-5)
    assert list(copied.state_dict()) == state and "prunus_selection_weight" not in net.reader._buffers
    plain = nn.Conv2d(3, 4, 1)
    assert with_convolutions(plain, x) is plain
    layer = nn.Conv2d(3, 2, 1, bias=False)
    select(layer, torch.tensor([1, 2, 0]), 1, filled=True)  # of two channels: 2 is a channel of zeros, which stay zeros
    x = torch.tensor([[[[2.0]], [[3.0]]]])
    torch.testing.assert_close(with_convolutions(layer, x)(x)[0], layer.weight[:, 0] * 3 + layer.weight[:, 2] * 2)


def block_of(layer: nn.Module, *shape: int) -> Block:
    out = layer(torch.zeros(shape)).shape
    return Block("layer", "kind", nn.Sequential(layer), torch.Size(shape), out, first=False, last=None)


@pytest.mark.parametrize("layer, shape", [(nn.Conv2d(8, 4, 3, padding=1), (1, 8, 6, 6)), (nn.Linear(8, 4), (1, 8))])
def test_a_timed_selection_is_the_same_in_both_forms(layer: nn.Module, shape: tuple[int, ...]) -> None:
    made = []
    for form in ("gather", "convolution"):
        content, fed = onnx_graph(block_of(layer, *shape), Run("selection", 5), 2, form)  # type: ignore[arg-type]
        operations = "Gather" if form == "gather" else "Conv" if len(shape) == 4 else "MatMul"
        assert operations.encode() in content
        x = np.random.default_rng(1).standard_normal(fed).astype(np.float32)
        made.append(ENGINES["onnxruntime"].open_all([content], 1)[0].run([x])[0])
    np.testing.assert_allclose(made[0], made[1], rtol=1e-5, atol=1e-6)


def test_ncnn_opens_several_small_networks_at_once() -> None:
    block = block_of(nn.Conv2d(8, 4, 3, padding=1), 1, 8, 6, 6)
    runs = [Run("block", 8, 4), Run("before", 5), Run("selection", 3)]
    graphs = [onnx_graph(block, run, 2, "convolution") for run in runs]
    together = ENGINES["ncnn"].open_all([content for content, _ in graphs], 1)
    for (content, shape), program in zip(graphs, together, strict=True):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        want = ENGINES["onnxruntime"].open_all([content], 1)[0].run([x])[0]
        np.testing.assert_allclose(program.run([x])[0], want, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- errors


class Reordered(nn.Module):
    """An operation that ncnn does not have: channels in another order, by index."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, torch.tensor([2, 0, 1])] * 2


def test_a_network_that_ncnn_cannot_run_is_an_error_and_no_crash() -> None:
    with pytest.raises(ModelError, match="ncnn"):
        ENGINES["ncnn"].prepare(Reordered().eval(), torch.zeros(1, 3, 4, 4), 1)


@pytest.mark.parametrize("name", ["openvino", "onnxruntime", "onnxruntime-int8", "mnn", "ncnn", "eager"])
def test_a_file_that_is_no_network_is_an_error(name: str) -> None:
    broken = nn.Identity()
    broken.content = b"nothing"  # type: ignore[assignment]
    said = f"(?i){name.removesuffix('-int8')} cannot"
    with pytest.raises(ModelError, match="eager does not read ONNX files" if name == "eager" else said):
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
