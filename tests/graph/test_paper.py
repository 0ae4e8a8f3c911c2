"""The paper's own totals, and its units. Parameters are weights of conv and linear layers, as the paper counts."""

from __future__ import annotations

import pytest
import torch

import prunus as sc
from prunus.zoo import models


def traced(name: str, pixels: int, **options: str) -> sc.ChannelGraph:
    with torch.device("cpu"):
        model = models.create(name).eval()
    return sc.trace(model, torch.zeros(1, 3, pixels, pixels), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def vgg16() -> sc.ChannelGraph:
    return traced("vgg16_imagenet", 224)


def test_vgg16(vgg16: sc.ChannelGraph) -> None:
    assert round(vgg16.params / 1e6, 2) == 138.34
    assert round(vgg16.macs / 1e9, 2) == 15.47
    assert len(vgg16.units) == 15  # 13 convolutions and two hidden linear layers


def test_vgg16_as_pruned_in_the_supplement(vgg16: sc.ChannelGraph) -> None:
    """G-SD-B: widths worked back from the supplement's table; 5.2% of parameters and 69.7% of MACs removed."""
    widths = (11, 39, 60, 92, 112, 97, 191, 249, 233, 319, 512, 438, 512)
    convolutions = [name for name, layer in vgg16.layers.items() if layer.kind == "conv"]
    plan = sc.Plan.of(vgg16, {f"{c}:out": range(width) for c, width in zip(convolutions, widths, strict=True)})
    cost = vgg16.cost(plan)
    assert cost.params == 131_191_504
    assert round(cost.macs / 1e9, 3) == 4.689
    assert round(100 * (1 - cost.params / vgg16.params), 1) == 5.2
    assert round(100 * (1 - cost.macs / vgg16.macs), 1) == 69.7
    # The first two layers by hand: 3x3 kernels, 224x224 positions.
    assert cost.layers[convolutions[0]].macs == 11 * 3 * 9 * 224 * 224
    assert cost.layers[convolutions[1]].macs == 39 * 11 * 9 * 224 * 224


def test_resnet50() -> None:
    graph = traced("resnet50", 224)
    assert round(graph.params / 1e6, 2) == 25.50
    assert round(graph.macs / 1e9, 2) == 4.09


def test_units_of_resnet56() -> None:
    """27 block inputs, which select from the stream, and 27 inner tensors; the classifier reads the stream too."""
    graph = traced("resnet56", 32)
    classifier = next(name for name, layer in graph.layers.items() if layer.kind == "linear")
    units = [unit for unit in graph.units.values() if [r.module for r in unit.readers] != [classifier]]
    assert len(units) == len(graph.units) - 1 == 54
    assert sum(unit.kind == "stream" for unit in units) == 27
    assert sum(unit.kind == "private" for unit in units) == 27
    assert sorted(unit.width for unit in units) == sorted(
        [16] * (9 + 1)
        + [32] * (8 + 1)
        + [64] * 8  # block inputs: the first of a stage reads the stage before
        + [16] * 9
        + [32] * 9
        + [64] * 9
    )
    assert round(graph.macs / 1e6, 1) == 125.5


def test_densenet_has_private_units_only() -> None:
    from tests import zoo_nets

    graph = sc.trace(zoo_nets.create("torchvision:densenet121").eval(), torch.zeros(1, 3, 64, 64))
    assert len(graph.units) == 120
    assert {unit.kind for unit in graph.units.values()} == {"private"}
