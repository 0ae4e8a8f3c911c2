"""The eager engine calls the model itself, with inputs of any structure."""

from __future__ import annotations

import torch

from prunus.timing.engines import ENGINES
from tests.timing.engines.networks import Difference, Scaled


def test_inputs_of_any_structure() -> None:
    eager = ENGINES["eager"]
    five, two = torch.full((1, 3), 5.0), torch.full((1, 3), 2.0)
    assert eager.prepare(Scaled(2.0), five, 1)(five).tolist() == [[11.0] * 3]
    assert eager.prepare(Difference(), (five, two), 1)((five, two)).tolist() == [[1.0] * 3]
    batch = {"right": five, "left": two}
    assert eager.prepare(Difference(), batch, 1)(batch).tolist() == [[-8.0] * 3]


def test_it_runs_on_the_device_of_the_model() -> None:
    model = Scaled(2.0).to("meta")
    assert ENGINES["eager"].prepare(model, torch.zeros(1, 3), 1).device == torch.device("meta")
