"""The registry of engines: names without torch, packages that are missing, engines of the user's own."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, fx, nn

from prunus.errors import ModelError, RunError
from prunus.ship.bench import bench
from prunus.timing import engines
from prunus.timing.engines import ENGINES, Engine, PreparedModel
from prunus.util.batches import call
from tests.timing.networks import Difference, Scaled

LISTS = """
import sys
from prunus.timing.engines import ENGINES
print(*ENGINES, *("help" for name in ENGINES if ENGINES.help(name)), "torch" in sys.modules)
"""


def test_names_and_help_are_known_without_torch() -> None:
    found = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, check=True, timeout=60)
    names = ["compile", "eager", "executorch", "litert", "mnn", "ncnn", "onnxruntime", "onnxruntime-int8", "openvino"]
    assert found.stdout.split() == [*names, *["help"] * len(names), "False"]


@pytest.mark.parametrize(
    "engine, missing, message",
    [
        (
            "onnxruntime",
            {"onnx", "onnxscript"},
            r"onnx and onnxscript, which are not installed: pip install onnx onnxscript",
        ),
        ("onnxruntime", {"onnxruntime"}, r"onnxruntime, which is not installed: pip install onnxruntime"),
        ("openvino", {"openvino"}, r"openvino, which is not installed: pip install 'prunus\[openvino\]'"),
        ("executorch", {"executorch"}, r"executorch, which is not installed: pip install 'prunus\[executorch\]'"),
        ("ncnn", {"ncnn", "pnnx"}, r"ncnn and pnnx, which are not installed: pip install 'prunus\[ncnn\]'"),
        ("mnn", {"MNN"}, r"MNN, which is not installed: pip install 'prunus\[mnn\]'"),
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


@pytest.mark.parametrize("name", ["eager", "onnxruntime", "openvino", "mnn", "ncnn"])
def test_inputs_of_any_structure_and_any_number_of_images(name: str) -> None:
    engine = ENGINES[name]
    one, five, two = torch.zeros(1, 3), torch.full((4, 3), 5.0), torch.full((4, 3), 2.0)

    def outputs(model: nn.Module, example: Any, batch: Any) -> Any:
        output = engine.prepare(model.eval(), example, 1)(batch)
        return (output if name == "eager" else output[0]).tolist()

    assert outputs(Scaled(2.0), one, five) == [[11.0] * 3] * 4
    assert outputs(Difference(), (one, one), (five, two)) == [[1.0] * 3] * 4
    assert outputs(Difference(), {"left": one, "right": one}, {"right": five, "left": two}) == [[-8.0] * 3] * 4


def test_it_runs_on_the_device_of_the_model() -> None:
    model = Scaled(2.0).to("meta")
    assert ENGINES["eager"].prepare(model, torch.zeros(1, 3), 1).device == torch.device("meta")


MODELS = 12  # torch compiles one forward 8 times at most unless it is told otherwise


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
    assert threads[-1] == 3
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_network_is_an_error() -> None:
    broken = nn.Identity()
    broken.content = b"nothing"  # type: ignore[assignment]
    for name, said in (("openvino", "OpenVINO cannot run the network"), ("onnxruntime", "onnxruntime cannot run")):
        with pytest.raises(ModelError, match=said):
            ENGINES[name].prepare(broken, torch.zeros(1, 3), 1)
    with pytest.raises(ModelError, match="eager does not read ONNX files"):
        ENGINES["eager"].prepare(broken, torch.zeros(1, 3), 1)
