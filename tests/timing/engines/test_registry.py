"""The registry of engines: names without torch, packages that are missing, engines of the user's own."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

from prunus.errors import RunError
from prunus.ship.bench import bench
from prunus.timing import engines
from prunus.timing.engines import ENGINES, Engine, PreparedModel
from prunus.util.batches import call
from tests.timing.engines.networks import Scaled

LISTS = """
import sys
from prunus.timing.engines import ENGINES
print(*ENGINES, *("help" for name in ENGINES if ENGINES.help(name)), "torch" in sys.modules)
"""


def test_names_and_help_are_known_without_torch() -> None:
    found = subprocess.run([sys.executable, "-c", LISTS], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.split() == ["compile", "eager", "onnxruntime", "openvino", *["help"] * 4, "False"]


def test_an_unknown_engine_gets_the_nearest_name() -> None:
    with pytest.raises(RunError, match="no engine called 'onnxrt': did you mean onnxruntime"):
        ENGINES.find("onnxrt")


@pytest.mark.parametrize(
    "installed, message",
    [
        ({"onnxruntime"}, r"needs onnx and onnxscript, which are not installed: pip install 'prunus\[onnx\]'"),
        ({"onnx", "onnxscript"}, r"needs onnxruntime, which is not installed: pip install 'prunus\[onnx\]'"),
    ],
)
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, installed: set[str], message: str) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: object() if name in installed else None)
    with pytest.raises(RunError, match=f"the engine onnxruntime {message}"):
        ENGINES["onnxruntime"].prepare(Scaled(2.0), torch.zeros(1, 3), 1)


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
