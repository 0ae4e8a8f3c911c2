"""Exported networks beside the originals, on outputs that are known by hand, and in 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from prunus.errors import DataError, ModelError, RunError
from prunus.ship.export import export
from prunus.timing.onnx_export import (
    QuantisedNetwork,
    compare,
    comparison_batches,
    exported,
    one_by_one,
    open_session,
)


@pytest.mark.parametrize("shift, accepted", [(0.0009, True), (0.0011, False), (float("nan"), False)])
def test_outputs_may_differ_by_a_thousandth_of_how_much_they_vary(shift: float, accepted: bool) -> None:
    batches = [torch.tensor([[4.0, 6.0]] * 3), torch.tensor([[0.0, 2.0]])]  # 1 on either side of their mean

    def exported(batch: Tensor) -> Any:
        return [batch + shift, 100 * batch]

    class Both(nn.Module):
        def forward(self, batch: Tensor) -> Any:
            return {"one": batch, "large": 100 * batch}

    if accepted:
        found = compare(Both(), exported, batches)
        assert found.error == pytest.approx(shift, rel=1e-3) and found.num_images == 4
    else:
        with pytest.raises(ModelError, match="differs from PyTorch's by"):
            compare(Both(), exported, batches)


def test_batches_to_compare_on() -> None:
    example, images = torch.zeros(2, 5), torch.arange(35.0).view(7, 5)
    whole, first = comparison_batches(example, images, True)
    assert torch.equal(whole, images) and torch.equal(first, images[:1])
    fixed = comparison_batches(example, images, False)  # as many whole batches of two as there are
    assert [batch[:, 0].tolist() for batch in fixed] == [[0.0, 5.0], [10.0, 15.0], [20.0, 25.0]]
    pair: Any = {"x": torch.zeros(2, 5), "index": torch.tensor([4, 9]), "scale": 2.0}
    several, one = comparison_batches(pair, None, True)
    assert several["x"].shape == (3, 5) and several["x"].std() > 0.1
    assert several["index"].tolist() == [4, 4, 4] and one["index"].tolist() == [4] and one["scale"] == 2.0
    with pytest.raises(DataError, match=r"should be \[N, 5\], not \[7, 4\]"):
        comparison_batches(example, images[:, :4], True)


def test_a_detector_that_finds_nothing_in_noise() -> None:
    """A probability of 1e-8 is onnxruntime's rounding of a sigmoid; where the example has an object, it is 0.95."""

    class Bright(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return (12 * nn.functional.avg_pool2d(images, 8) - 21).sigmoid()  # 2: bright, 0: dark

    example = torch.zeros(1, 1, 32, 32)
    example[..., :16] = 2.0
    for batch in comparison_batches(example, None, True):
        found = Bright()(batch)
        assert found[..., :2].amax(dim=(1, 2, 3)).min() > 0.5 and found[..., 2:].max() < 1e-4
    session = open_session(exported(Bright(), example), 1)
    (found,) = session.run(None, {"input": example.numpy()})
    assert found[0, 0, 0].tolist() == pytest.approx([0.952574, 0.952574, 0, 0], abs=1e-5)


RGB, DEPTH = torch.ones(1, 3, 6, 6), torch.ones(1, 1, 6, 6)


class One(nn.Module):
    """One input, one output."""

    def __init__(self) -> None:
        super().__init__()
        self.rgb, self.depth, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, pixel_values: Tensor) -> Any:
        return self.fc(self.rgb(pixel_values).mean((2, 3)))


class Two(One):
    """Two inputs; a dict of outputs."""

    def forward(self, rgb: Tensor, depth: Tensor) -> Any:  # type: ignore[override]
        found = (self.rgb(rgb) + self.depth(depth)).mean((2, 3))
        return {"logits": self.fc(found), "feature": found}


class Pair(Two):
    """A tuple of inputs in one argument; a tuple of outputs."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Any:  # type: ignore[override]
        return tuple(super().forward(*pair).values())


def described(values: Any) -> dict[str, list[str | int]]:
    return {v.name: [size.dim_param or size.dim_value for size in v.type.tensor_type.shape.dim] for v in values}


@pytest.mark.parametrize(
    ("model", "example", "inputs", "outputs"),
    [
        (One, RGB, {"input": 3}, {"output": [2]}),
        (Two, {"depth": DEPTH, "rgb": RGB}, {"depth": 1, "rgb": 3}, {"logits": [2], "feature": [4]}),
        (Pair, ((RGB, DEPTH),), {"pair_0": 3, "pair_1": 1}, {"output_0": [2], "output_1": [4]}),
    ],
)
def test_names(model: Any, example: Any, inputs: dict[str, int], outputs: dict[str, Any], tmp_path: Path) -> None:
    done = export(model(), example, tmp_path / "a.onnx")
    graph = onnx.load(done.path).graph
    assert described(graph.input) == {name: ["batch", channels, 6, 6] for name, channels in inputs.items()}
    assert described(graph.output) == {name: ["batch", *sizes] for name, sizes in outputs.items()}


def test_a_fixed_batch_has_no_names_of_axes(tmp_path: Path) -> None:
    done = export(One(), RGB.repeat(3, 1, 1, 1), tmp_path / "a.onnx", dynamic_batch=False)
    assert described(onnx.load(done.path).graph.input) == {"input": [3, 3, 6, 6]}
    session = onnxruntime.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["output"], {"input": RGB.repeat(3, 1, 1, 1).numpy()})
    assert found.shape == (3, 2)


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
