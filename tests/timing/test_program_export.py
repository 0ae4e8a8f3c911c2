"""Comparison of an exported network with the original, on outputs that are known by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prunus.errors import DataError, ModelError
from prunus.timing.onnx_export import compare, comparison_batches, relative_error


def test_relative_error_is_measured_on_each_output() -> None:
    want = [torch.tensor([0.0, -4.0]), torch.tensor([100.0]), None, torch.empty(0)]
    got = [torch.tensor([1.0, -4.0]), torch.tensor([90.0]), None, torch.empty(0)]
    assert relative_error(want, got) == 0.25  # 1 / 4, and 10 / 100
    assert relative_error([], []) == 0.0


@pytest.mark.parametrize("shift, accepted", [(0.0009, True), (0.0011, False), (float("nan"), False)])
def test_outputs_may_differ_by_a_thousandth_of_the_largest(shift: float, accepted: bool) -> None:
    batches = [torch.ones(3, 2), torch.ones(1, 2)]
    if accepted:
        found = compare(nn.Identity(), lambda batch: batch + shift, batches)
        assert found.error == pytest.approx(shift, rel=1e-3) and found.num_images == 4
    else:
        with pytest.raises(ModelError, match="differs from PyTorch's by"):
            compare(nn.Identity(), lambda batch: batch + shift, batches)


def test_batches_to_compare_on() -> None:
    example, images = torch.zeros(2, 5), torch.arange(35.0).view(7, 5)
    assert [batch.tolist() for batch in comparison_batches(example, images, True)] == [
        images.tolist(),
        images[:1].tolist(),
    ]
    fixed = comparison_batches(example, images, False)  # as many whole batches of two as there are
    assert [batch[:, 0].tolist() for batch in fixed] == [[0.0, 5.0], [10.0, 15.0], [20.0, 25.0]]
    pair: Any = {"x": torch.zeros(2, 5), "index": torch.tensor([4, 9]), "scale": 2.0}
    several, one = comparison_batches(pair, None, True)
    assert several["x"].shape == (3, 5) and several["x"].std() > 0.1
    assert several["index"].tolist() == [4, 4, 4] and one["index"].tolist() == [4] and one["scale"] == 2.0
    with pytest.raises(DataError, match=r"should be \[N, 5\], not \[7, 4\]"):
        comparison_batches(example, images[:, :4], True)
