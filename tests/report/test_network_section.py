"""The drawing of the network: lanes by hand, blocks by name, bars to scale."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import prunus as sc
from prunus.report import network_drawing as network_section
from prunus.report.network_drawing import block_of, blocks, lay_out, network, streams
from prunus.report.read import Node, read_run
from prunus.run.report_files import network_shape
from prunus.zoo.models import create
from tests.report.runs import Page, charts, read


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
    assert [row.entering for row in rows] == [(), (0,), (0,), (1,), (0, 1), (0,), (0,)]
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
    found = network_shape(sc.trace(create("resnet8", num_classes=3), torch.zeros(1, 3, 32, 32), check=False))["nodes"]
    assert [(each["kind"], each["name"]) for each in found] == [
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
    assert [each["from"] for each in found] == [
        [],
        [0],
        [1],
        [2],
        [3, 1],
        [4],
        [5],
        [6, 4],
        [7],
        [8],
        [9, 7],
        [10],
        [11],
    ]


def test_the_drawing_has_every_layer_to_scale(compressed: Any) -> None:
    section = network(read_run(compressed.folder))
    (picture,) = charts(section, "net")
    layers = read(compressed.folder / "summary.json")["layers"]
    widest = max(layer["outputs"][0] for layer in layers.values())
    bars = re.findall(r'<rect class="(\w+)" x="42.00%"[^>]*? width="([\d.]+)%"[^>]*><title>(\S+):', picture)
    wanted = [
        (kind, layer["outputs"][side] / widest * 22, name)
        for name, layer in layers.items()
        for side, kind in ((0, "lost"), (1, "kept"))
    ]
    assert [(kind, pytest.approx(float(width), abs=0.01), name) for kind, width, name in bars] == wanted
    assert picture.count(">add<") == 3 and "residual stream" in section


def test_long_networks_are_folded(compressed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_section, "FOLD_FROM", 5)
    run = read_run(compressed.folder)
    page = Page(f"<main>{network(run)}</main>")
    assert [tag for tag, _ in page.tags].count("details") == 3
    assert len(charts(network(run), "block")) == 3
    assert network(replace(run, shape=())) == ""


def test_times_are_drawn_where_they_are_known(run: Path) -> None:
    found = read_run(run)
    from prunus.report.read import SpeedFigures

    times = dict.fromkeys(found.layers, (0.002, 0.001))
    timed = replace(found, time=SpeedFigures("eager", 1, 1, 1.5, 1.5, None, None, times))
    assert "2 ms before, 1 ms after (−50.0%)" in network(timed)
