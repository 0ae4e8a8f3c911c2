"""Units, costs and pruned networks: tiny networks against answers by hand, and the paper's own totals."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import torch.fx
from torch import nn

import prunus as pr
from prunus.zoo import models
from tests import proof, zoo_nets
from tests.graph.checks import pruned_exactly
from tests.graph.dags import randomised
from tests.nets import NETS, Answer, Residual, Tiny
from tests.nets_frozen import FROZEN_NETS

ALL = {**NETS, **FROZEN_NETS}


MODES = ("select", "coupled")


def built(tiny: Tiny, seed: int = 0) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    model = tiny.build().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            randomised(module)
    return model, like(tiny.example(), torch.float64)


def like(example: Any, dtype: torch.dtype) -> Any:
    if isinstance(example, tuple):
        return tuple(like(part, dtype) for part in example)
    if isinstance(example, dict):
        return {name: like(part, dtype) for name, part in example.items()}
    return torch.randn(example.shape, dtype=dtype)


def unordered(answer: Answer) -> tuple[Any, ...]:
    return answer.width, sorted(answer.readers), sorted(answer.writers), answer.kind, answer.granule


def answer_of(unit: pr.Unit) -> tuple[Any, ...]:
    readers, writers = (sorted(part.module for part in parts) for parts in (unit.readers, unit.writers))
    return unit.width, readers, writers, unit.kind, unit.granule


def check_units(units: Mapping[str, pr.Unit], tiny: Tiny, mode: str) -> None:
    if mode == "select":
        assert {name: answer_of(unit) for name, unit in units.items()} == {
            name: unordered(answer) for name, answer in tiny.units.items()
        }
        assert all(name == unit.name for name, unit in units.items())
    else:
        wanted = tiny.units.values() if tiny.coupled is None else tiny.coupled
        assert sorted(map(answer_of, units.values())) == sorted(map(unordered, wanted))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ALL)
def test_the_answers_by_hand(name: str, mode: str) -> None:
    """Units, frozen layers and costs are those worked out by hand; what is pruned is exact, counted and trainable."""
    tiny = ALL[name]
    model, example = built(tiny)
    graph = pr.trace(model, example, streams=mode)
    if (name, mode) != ("padded_shortcut", "coupled"):
        check_units(graph.units, tiny, mode)
    for layer in tiny.frozen:
        reasons = [reason for key, reason in graph.frozen.items() if key.split(":")[0] == layer]
        assert reasons and all(len(reason) > 10 for reason in reasons), f"{layer} is not in {graph.frozen}"
    whole = graph.cost(pr.Plan.of(graph, {}))
    assert (graph.macs, graph.params) == (whole.macs, whole.params) == (tiny.macs, tiny.params)
    assert sum(layer.macs for layer in whole.layers.values()) == tiny.macs

    before = proof.outputs(model, example)
    trained = proof.train_step(copy.deepcopy(model), example)
    changed = 0.0
    for seed in range(2):
        keep = proof.random_keep(graph, seed)
        small = pruned_exactly(graph, keep, example)
        changed = max(changed, proof.relative_error(proof.outputs(small, example), before))
        assert graph.cost(keep).macs == proof.counted_macs(small, example)
        assert proof.train_step(small, example) == trained
    assert changed > 1e-6, "nothing was removed, or nothing that matters"


def test_a_batch_costs_what_one_image_costs() -> None:
    model, _ = built(NETS["residual"])
    assert pr.trace(model, torch.zeros(4, 3, 8, 8, dtype=torch.float64)).macs == NETS["residual"].macs


def units_of(name: str) -> Mapping[str, pr.Unit]:
    return pr.trace(*built(NETS[name])).units


def test_blocks_and_positions_of_channels() -> None:
    grouped = units_of("grouped")
    assert grouped["a:out"].blocks.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert grouped["g:out"].blocks.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    # Halves {0..3}, {4..7} interleave; the first group of `g` then reads 0 4 1 5, the second 2 6 3 7.
    blocks = units_of("shuffle")["a:out"].blocks
    sets = {frozenset(np.flatnonzero(blocks == block).tolist()) for block in blocks}
    assert sets == {frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})}
    (reader,) = units_of("flattened")["conv:out"].readers  # channel c fills inputs 16 c .. 16 c + 15
    assert np.array_equal(np.sort(reader.inputs, 1)[np.argsort(reader.channels)], np.arange(64).reshape(4, 16))
    (writer,) = units_of("glu")["a:out"].writers
    filters = {int(c): set(o.tolist()) for c, o in zip(writer.channels, writer.outputs, strict=True)}
    assert filters == {0: {0, 4}, 1: {1, 5}, 2: {2, 6}, 3: {3, 7}}
    (reader,) = units_of("depthwise")["a:out"].readers  # two filters on each channel
    inputs = {int(c): set(i.tolist()) for c, i in zip(reader.channels, reader.inputs, strict=True)}
    assert inputs == {0: {0, 1}, 1: {2, 3}, 2: {4, 5}, 3: {6, 7}}
    halves = {r.module: sorted(r.channels.tolist()) for r in units_of("halves")["a:out"].readers}
    assert halves == {"b": [0, 1, 2, 3], "c": [4, 5, 6, 7]}


def test_a_stream_channel_without_readers_dies_everywhere() -> None:
    """conv1 keeps 0 1, fc keeps 1 2: channel 3 is read by nobody, so stem and conv2 lose their filter of it."""
    model, example = built(NETS["residual"])
    graph = pr.trace(model, example, streams="select")
    plan = pr.Plan.of(graph, {"conv1:in": [0, 1], "fc:in": [1, 2]})
    cost = graph.cost(plan)
    # stem 3x3x9x64, conv1 6x2x9x64, conv2 3x6x9x64, fc 2x5
    assert {name: layer.macs for name, layer in cost.layers.items()} == {
        "stem": 5184,
        "conv1": 6912,
        "conv2": 10368,
        "fc": 10,
    }
    assert cost.macs == 22474
    assert cost.params == 81 + 108 + 162 + 10
    small = pr.prune(graph, plan)
    assert isinstance(small, Residual)
    assert (small.stem.weight.shape[0], small.conv2.weight.shape[0], small.bn2.weight.shape[0]) == (3, 3, 3)
    assert torch.equal(small.stem.weight, model.get_parameter("stem.weight")[:3])
    assert torch.equal(small.fc.weight, model.get_parameter("fc.weight")[:, [1, 2]])


def test_selection_stands_before_norm_and_activation() -> None:
    """In a pre-activation block the selection comes first, so the norm shrinks with it."""
    model, example = built(NETS["pre_activation"])
    graph = pr.trace(model, example, streams="select")
    small = pr.prune(graph, pr.Plan.of(graph, {"conv1:in": [0, 3]}))
    assert small.get_parameter("bn1.weight").tolist() == model.get_parameter("bn1.weight")[[0, 3]].tolist()
    assert small.get_parameter("conv1.weight").shape == (6, 2, 3, 3)
    assert small.get_parameter("stem.weight").shape[0] == 4
    assert small.get_parameter("bn3.weight").shape[0] == 4


def test_layer_scale_shrinks_with_its_channels() -> None:
    model, example = built(NETS["layer_scale"])
    graph = pr.trace(model, example)
    small = pr.prune(graph, pr.Plan.of(graph, {"a:out": [1, 3]}))
    assert small.get_parameter("gamma").flatten().tolist() == [-1.0, 0.25]


def test_auxiliary_head_still_works_in_training() -> None:
    model, example = built(FROZEN_NETS["auxiliary_head"])
    graph = pr.trace(model, example)
    small = pr.prune(graph, pr.Plan.of(graph, {"b:out": [0, 2]})).train()
    logits, auxiliary = small(example)
    assert logits.shape == auxiliary.shape == (1, 5)
    expected = copy.deepcopy(model).train()(example)[1]
    assert torch.allclose(auxiliary, expected, rtol=1e-12, atol=1e-12)


# -- the paper's totals: parameters are weights of conv and linear layers


def traced(name: str, pixels: int) -> pr.ChannelGraph:
    """Without a check by running: other tests prune these networks."""
    return pr.trace(models.create(name).eval(), torch.zeros(1, 3, pixels, pixels), check=False)


@pytest.fixture(scope="module")
def vgg16() -> pr.ChannelGraph:
    return traced("vgg16_imagenet", 224)


def test_vgg16(vgg16: pr.ChannelGraph) -> None:
    assert round(vgg16.params / 1e6, 2) == 138.34
    assert round(vgg16.macs / 1e9, 2) == 15.47
    assert len(vgg16.units) == 15  # 13 convolutions and two hidden linear layers


def test_vgg16_as_pruned_in_the_supplement(vgg16: pr.ChannelGraph) -> None:
    """G-SD-B: widths worked back from the supplement's table; 5.2% of parameters and 69.7% of MACs removed."""
    widths = (11, 39, 60, 92, 112, 97, 191, 249, 233, 320, 512, 438, 512)
    convolutions = [name for name, layer in vgg16.layers.items() if layer.kind == "conv"]
    plan = pr.Plan.of(vgg16, {f"{c}:out": range(width) for c, width in zip(convolutions, widths, strict=True)})
    cost = vgg16.cost(plan)
    assert cost.params == 131_198_209
    assert round(cost.macs / 1e9, 3) == 4.691
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
    model = zoo_nets.create("torchvision:densenet121").eval()
    graph = pr.trace(model, torch.zeros(1, 3, 64, 64), check=False)
    assert len(graph.units) == 120
    assert {unit.kind for unit in graph.units.values()} == {"private"}
