"""The drawing of the network: lanes by hand, blocks by name, bars to scale."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import prunus as pr
from prunus.report import network
from prunus.report.network import NetworkDrawing, block_of, blocks, lay_out, streams
from prunus.report.read import read_run
from prunus.report.run_page import render
from prunus.run.context import Node, network_shape
from prunus.run.summary import SpeedFigures
from prunus.zoo.models import create
from tests.report.runs import Page, read


def node(name: str, *sources: int, kind: str = "layer") -> Node:
    return Node(kind, name, sources)


RESIDUAL = (
    node("x", kind="input"),
    node("stem", 0),
    node("layer1.0.conv1", 1),
    node("layer1.0.conv2", 2),
    node("add", 3, 1, kind="join"),
    node("fc", 4),
    node("output", 5, kind="output"),
)


def test_a_residual_block_takes_a_second_lane() -> None:
    rows = lay_out(RESIDUAL)
    assert [row.lane for row in rows] == [0, 0, 1, 1, 0, 0, 0]
    assert [row.below for row in rows] == [(0,), (1,), (1, 2), (1, 3), (4,), (5,), ()]
    assert [row.above for row in rows] == [(), (0,), (1,), (1, 2), (1, 3), (4,), (5,)]
    assert streams(RESIDUAL) == {1, 4}  # the stem's output goes on to the addition, whose output is the stream
    assert streams(RESIDUAL[:3]) == frozenset()


def test_blocks_go_by_the_names_of_layers() -> None:
    assert block_of("layer1.0.conv1") == block_of("layer1.0.downsample.0") == "layer1.0"
    assert block_of("features.1.conv.0.0") == "features.1"
    assert block_of("features.denseblock1.denselayer2.conv1") == "features.denseblock1.denselayer2"
    assert block_of("features.3") is None and block_of("conv1") is None and block_of("head.fc") is None
    found = [(name, [row.node.name for row in rows]) for name, rows in blocks(lay_out(RESIDUAL))]
    assert found == [
        (None, ["x"]),
        (None, ["stem"]),
        ("layer1.0", ["layer1.0.conv1", "layer1.0.conv2", "add"]),
        (None, ["fc"]),
        (None, ["output"]),
    ]


def test_the_shape_of_a_network_is_that_of_its_code() -> None:
    """resnet8: a stem, three blocks of two convolutions with an addition each, and a classifier."""
    found = network_shape(pr.trace(create("resnet8", num_classes=3), torch.zeros(1, 3, 32, 32), check=False)).nodes
    assert [(each.kind, each.name) for each in found] == [
        ("input", "x"),
        ("layer", "conv1"),
        *[
            (kind, f"layer{n}.0.{name}" if kind == "layer" else name)
            for n in (1, 2, 3)
            for kind, name in (("layer", "conv1"), ("layer", "conv2"), ("join", "add"))
        ],
        ("layer", "linear"),
        ("output", "output"),
    ]
    sources = [[], [0], [1], [2], [3, 1], [4], [5], [6, 4], [7], [8], [9, 7], [10], [11]]
    assert [[*each.sources] for each in found] == sources


def test_the_drawing_has_every_layer_to_scale(page: str, compressed: Any) -> None:
    drawing = page[page.index('<div class="network"') : page.index("<h2>Channels before and after</h2>")]
    layers = read(compressed.folder / "summary.json")["layers"]
    widest = max(layer["outputs"][0] for layer in layers.values())
    dearest = max(layer["macs"][0] for layer in layers.values())
    rows = re.findall(r'<div class="node" title="([^":]+):', drawing)
    assert [name for name in rows if name in layers] == list(layers) and rows.count("join") == 3
    for name, layer in layers.items():
        row = next(each for each in drawing.split('<div class="node"') if f' title="{name}: ' in each)
        widths = [(kind, float(width)) for kind, width in re.findall(r'<i class="(\w+)" style="width:([\d.]+)%"', row)]
        shares = [64 * layer["outputs"][side] / widest for side in (0, 1)]
        shares += [100 * layer["macs"][side] / dearest for side in (0, 1)]
        assert [kind for kind, _ in widths] == ["lost", "kept", "lost", "test"]
        assert [width for _, width in widths] == pytest.approx(shares)
    assert "residual stream" in page and 'class="stream"' in drawing and drawing.count(">add<") == 3


def test_long_networks_are_folded(compressed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FOLD_FROM", 5)
    run = read_run(compressed.folder)
    drawing = NetworkDrawing(run)
    assert [row.name for row in drawing.rows if row.inside] == ["layer1.0", "layer2.0", "layer3.0"]
    block = drawing.rows[2]
    layers = [run.summary.layers[f"layer1.0.conv{n}"] for n in (1, 2)]
    assert block.width == tuple(sum(layer.outputs[side] for layer in layers) for side in (0, 1))
    assert block.cost == tuple(sum(layer.macs[side] for layer in layers) for side in (0, 1))
    page = Page(render(run))
    assert "Layers are folded by block" in page.text and "▸ layer2.0" in page.text
    assert NetworkDrawing(replace(run, nodes=())).rows == []


def test_times_are_drawn_where_they_are_known(compressed: Any) -> None:
    run = read_run(compressed.folder)
    times = dict.fromkeys(run.summary.layers, (0.002, 0.001))
    time = SpeedFigures("eager", 1, 1, "a machine", 1.5, 1.5, True, times)
    drawing = NetworkDrawing(replace(run, summary=replace(run.summary, time=time)))
    layer = next(row for row in drawing.rows if row.name == "conv1")
    assert drawing.what == "time" and layer.title.endswith("2 ms before, 1 ms after (−50.0%)")
