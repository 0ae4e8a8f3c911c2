"""Networks in 8-bit integers: ranges from the images that are given, and outputs of the network's structure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunus.errors import DataError, RunError
from prunus.timing.onnx_export import QuantisedNetwork, one_by_one


def identity(channels: int) -> nn.Conv2d:
    layer = nn.Conv2d(channels, channels, 1, bias=False)
    layer.weight.data = torch.eye(channels).view(channels, channels, 1, 1)
    return layer


def test_values_beyond_the_range_of_the_images_are_cut_off() -> None:
    images = [torch.tensor([[[[-1.0]], [[0.25]]], [[[0.5]], [[3.0]]]])]  # two images: from -1 to 3
    network = QuantisedNetwork(identity(2).eval(), torch.zeros(1, 2, 1, 1), "onnxruntime-int8", one_by_one(images))
    x = torch.tensor([[-1.0, 0.5], [2.0, 3.0], [50.0, -50.0]]).view(3, 2, 1, 1)
    wanted = x.clamp(-1, 3)
    step = 4 / 255
    assert (network(x) - wanted).abs().max() <= 2 * step  # of the input and of the output


class Pair(nn.Module):
    """Two inputs, and a dict with a tuple and nothing in it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = identity(1), identity(1)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, object]:
        return {"sums": (self.one(left) + self.two(right), self.one(left)), "none": None}


def test_outputs_have_the_structure_of_the_network() -> None:
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.rand(4, 1, 3, 3, generator=draw) for _ in range(2))
    example = {"left": left[:1], "right": right[:1]}
    model = Pair().train()
    network = QuantisedNetwork(model, example, "onnxruntime-int8", one_by_one([{"left": left, "right": right}]))
    found = network(left=left, right=right)
    assert found["none"] is None and isinstance(found["sums"], tuple) and model.training
    assert (found["sums"][0] - left - right).abs().max() < 0.03 and (found["sums"][1] - left).abs().max() < 0.02


def test_images_one_by_one_and_what_is_refused() -> None:
    batches = [torch.arange(12.0).view(4, 3), torch.arange(12.0, 24.0).view(4, 3)]
    assert [image.tolist() for image in one_by_one(batches, 5)] == [
        [[3.0 * n, 3.0 * n + 1, 3.0 * n + 2]] for n in range(5)
    ]
    model, example = identity(1).eval(), torch.zeros(1, 1, 2, 2)
    with pytest.raises(RunError, match=r"onnxruntime computes in 32-bit numbers"):
        QuantisedNetwork(model, example, "onnxruntime", [example])
    with pytest.raises(DataError, match="no images to calibrate"):
        QuantisedNetwork(model, example, "onnxruntime-int8", [])
