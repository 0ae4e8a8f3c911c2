"""The onnxruntime engine: the same outputs as PyTorch, inputs of any structure, the number of threads it was given."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from prunus.errors import ModelError
from prunus.timing.engines import ENGINES
from tests.timing.engines.networks import Difference, Scaled


def test_inputs_of_any_structure_and_any_number_of_images() -> None:
    engine = ENGINES["onnxruntime"]
    one, five, two = torch.zeros(1, 3), torch.full((4, 3), 5.0), torch.full((4, 3), 2.0)
    assert engine.prepare(Scaled(2.0).eval(), one, 1)(five)[0].tolist() == [[11.0] * 3] * 4
    pair = engine.prepare(Difference().eval(), (one, one), 1)
    assert pair((five, two))[0].tolist() == [[1.0] * 3] * 4
    named = engine.prepare(Difference().eval(), {"left": one, "right": one}, 1)
    assert named({"right": five, "left": two})[0].tolist() == [[-8.0] * 3] * 4


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


class Branching(torch.nn.Module):
    """torch.export cannot follow it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_network_that_cannot_be_exported_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"torch\.export cannot follow Branching"):
        ENGINES["onnxruntime"].prepare(Branching().eval(), torch.zeros(1, 3), 1)
