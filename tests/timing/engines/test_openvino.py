"""The openvino engine: the same outputs as PyTorch, inputs of any structure, the number of threads it was given."""

from __future__ import annotations

import pytest
import torch

from prunus.errors import ModelError, RunError
from prunus.timing import engines
from prunus.timing.engines import ENGINES
from prunus.timing.engines.openvino import compile_model
from tests.timing.engines.networks import Difference, Scaled


def test_inputs_of_any_structure_and_any_number_of_images() -> None:
    engine = ENGINES["openvino"]
    one, five, two = torch.zeros(1, 3), torch.full((4, 3), 5.0), torch.full((4, 3), 2.0)
    assert engine.prepare(Scaled(2.0).eval(), one, 1)(five)[0].tolist() == [[11.0] * 3] * 4
    named = engine.prepare(Difference().eval(), {"left": one, "right": one}, 1)
    assert named({"right": five, "left": two})[0].tolist() == [[-8.0] * 3] * 4


def test_a_file_that_is_no_network_is_an_error() -> None:
    with pytest.raises(ModelError, match="OpenVINO cannot run the network"):
        compile_model(b"nothing", 1)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "openvino" else object())
    with pytest.raises(RunError, match=r"needs openvino, which is not installed: pip install 'prunus\[openvino\]'"):
        ENGINES["openvino"].prepare(Scaled(2.0), torch.zeros(1, 3), 1)
