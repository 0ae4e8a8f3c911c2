"""Latency tables with made-up times: predictions, estimates between widths, files, and tables that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import FileError, RunError
from prunus.timing.latency_table import (
    LatencyTable,
    LayerTimes,
    MeasuredWith,
    alignment,
    kinds_of,
    open_table,
    shares,
    widths_to_time,
)

SETTING = MeasuredWith("eager", "2.0", "2.0", "abacus", "beads", threads=1, batch=4)


class Small(nn.Module):
    """A stem whose 4 channels are a stream, a block of two convolutions with 8 channels between them, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc((x + self.two(self.norm(self.one(x)).relu())).mean((2, 3)))


def small_graph(streams: str = "select") -> pr.ChannelGraph:
    torch.manual_seed(0)
    return pr.trace(Small().eval(), torch.zeros(1, 3, 6, 6), streams)  # type: ignore[arg-type]


def made_up(graph: pr.ChannelGraph, remainder: float) -> LatencyTable:
    """A layer takes inputs x outputs seconds, and selecting takes half a second."""

    kinds = kinds_of(graph)

    def times(name: str, inputs: list[int], outputs: list[int], selects: bool = False, outside: int = 0) -> LayerTimes:
        seconds = tuple(tuple(float(i * o) for o in outputs) for i in inputs)
        return LayerTimes(kinds[name], tuple(inputs), tuple(outputs), seconds, (0.5, 0.0) if selects else (), outside)

    layers = {
        "stem": times("stem", [3], [2, 4], outside=36),
        "one": times("one", [2, 4], [2, 4, 8], selects=True),
        "two": times("two", [2, 4, 8], [4], outside=36),
        "fc": times("fc", [2, 4], [2], selects=True),
    }
    whole = sum(one.seconds[-1][-1] for one in layers.values()) + remainder  # 12 + 32 + 32 + 8
    return LatencyTable(SETTING, whole, remainder, layers)


def units(graph: pr.ChannelGraph) -> tuple[str, str]:
    """The unit between the convolutions, and what the first of them selects."""
    inner = next(n for n, u in graph.units.items() if [r.module for r in u.readers] == ["two"])
    read = next(n for n, u in graph.units.items() if [r.module for r in u.readers] == ["one"])
    return inner, read


def test_kinds_name_the_layer_its_norm_and_its_activation() -> None:
    kinds = kinds_of(small_graph())
    assert kinds["one"] == ("Conv2d k3x3 s1x1 p1x1 d1x1 g1+b 6x6->6x6 BatchNorm2d ReLU float32",)
    assert kinds["stem"] == ("Conv2d k1x1 s1x1 p0x0 d1x1 g1+b 6x6->6x6 float32 first",)
    assert kinds["fc"] == ("Linear+b -> float32",)


def test_predictions() -> None:
    graph = small_graph()
    table, (inner, read) = made_up(graph, 10.0), units(graph)
    assert table.predict(graph) == table.whole == 94
    assert table.by_layer(graph) == {"stem": 12, "one": 32, "two": 32, "fc": 8}
    keep = {inner: [0, 3, 5, 7]}
    assert table.by_layer(graph, keep) == {"stem": 12, "one": 16, "two": 16, "fc": 8}
    assert table.predict(graph, keep) == 62  # what is not a layer stays
    assert table.by_layer(graph, {read: [1, 2]})["one"] == 16.5  # 2 x 8, and the selection
    assert table.layers["one"].at(2, 8, selects=True) == 16.5
    assert table.widths(graph)[inner] == (2, 4, 8) and table.widths(graph)[read] == (2, 4)
    graph = small_graph("coupled")  # what is not a layer shrinks with the stream
    table = made_up(graph, 10.0)
    (stream,) = [n for n, u in graph.units.items() if len(u.writers) == 2]
    assert table.remainder_of(graph, {stream: [0, 1]}) == 5.0  # two of four channels


def test_files(tmp_path: Path) -> None:
    graph, path = small_graph(), tmp_path / "t.json"
    table = made_up(graph, 1.0)
    table.save(path)
    assert open_table(path, graph) == table
    assert "eager 2.0, batch 4, 1 thread, abacus (beads)" in repr(table)
    data = json.loads(path.read_text())
    one = data["layers"]["one"]
    for content, message in (
        (path.read_text()[:99], "cannot be read"),
        ("{}", 'expected JSON with "format": "prunus-latency-table"'),
        ({"version": 9}, "version 9"),
        ({"whole": "fast"}, "whole: expected a number, got 'fast'"),
        ({"layers": {"stem": {}}}, "layers.stem: 'kinds' is missing"),
        ({"layers": {"one": {**one, "inputs": [4, 2]}}}, "ascending"),
        ({"layers": {"one": {**one, "seconds": [[1.0, 2.0]]}}}, "number of times"),
        ({"layers": {"one": {**one, "selecting": [1.0]}}}, "number of inputs"),
        ({"layers": {"one": {**one, "seconds": [[1.0, 2.0, 3.0], [float("nan"), 1.0, 1.0]]}}}, "finite"),
    ):
        path.write_text(content if isinstance(content, str) else json.dumps({**data, **content}))
        with pytest.raises(FileError, match=message):
            open_table(path, graph)


def test_a_table_of_another_network_is_refused() -> None:
    graph = small_graph()
    table = made_up(graph, 1.0)
    two = table.layers["two"]
    without = {name: times for name, times in table.layers.items() if name != "two"}
    for layers, message in (
        (without, "it has no layer 'two'"),
        ({**table.layers, "three": two}, "it has layers that this one does not have, such as 'three'"),
        ({**without, "two": replace(two, kinds=("Conv2d k5x5",))}, "its layer 'two' is Conv2d k5x5, not Conv2d k1x1"),
        ({**without, "two": LayerTimes(two.kinds, (2,), (4,), ((1.0,),))}, "has 2 inputs and 4 outputs, not 8"),
    ):
        with pytest.raises(RunError, match=message):
            replace(table, layers=layers).check(graph)
    smaller = pr.trace(pr.prune(graph, pr.Plan.of(graph, {units(graph)[0]: [0, 1, 2, 3]})), graph.example)
    table.check(smaller)  # a later round of the same network
    assert table.by_layer(smaller)["two"] == 16


def test_widths_that_are_timed() -> None:
    assert widths_to_time(16) == (1, 2, 3, 4, 6, 7, 8, 10, 12, 14, 15, 16)
    assert widths_to_time(32) == (3, 4, 8, 12, 15, 16, 20, 24, 28, 31, 32)
    assert widths_to_time(512) == (32, 64, 128, 192, 255, 256, 260, 264, 320, 384, 448, 508, 511, 512)
    assert widths_to_time(3) == (1, 2, 3) and widths_to_time(1) == (1,)
    for width in range(1, 600):
        found = widths_to_time(width)
        assert found[-1] == width and found[0] >= 1 and list(found) == sorted(set(found))


def test_a_width_that_was_not_timed_follows_those_of_its_alignment() -> None:
    assert [alignment(n) for n in (1, 6, 12, 24, 48, 64, 96)] == [1, 2, 4, 8, 16, 16, 16]
    timed = (7, 8, 16, 31, 32)
    assert shares(16, timed) == ((2, 1.0),)
    assert shares(15, timed) == ((0, pytest.approx(16 / 24)), (3, pytest.approx(8 / 24)))  # odd: between 7 and 31
    assert shares(24, timed) == ((2, pytest.approx(7 / 15)), (3, pytest.approx(8 / 15)))  # no multiple of 8 above
    assert shares(3, timed) == ((0, 1.0),) and shares(40, timed) == ((4, 1.0),)


def test_seconds_at_timed_and_other_widths() -> None:
    found = LayerTimes(("a",), (8, 16), (4, 8, 16), ((1.0, 2.0, 6.0), (3.0, 9.0, 8.0)), (0.5, 0.0))
    assert [found.at(8, 4), found.at(16, 16), found.at(16, 8)] == [1.0, 8.0, 9.0]  # slower than wider: kept as it is
    assert found.at(16, 12) == 8.5 and found.at(12, 4) == 2.0
    assert found.at(8, 4, selects=True) == 1.5 and found.at(16, 4, selects=True) == 3.0
    assert found.plus(found).seconds[1] == (6.0, 18.0, 16.0) and found.plus(found).kinds == ("a", "a")
    assert found.plus(found).selecting == (1.0, 0.0)
    assert found.scaled(0.5).at(8, 16) == 3.0
