"""Latency tables with made-up times: predictions, files, and tables that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import prunus as sc
from prunus.errors import FileError, RunError
from prunus.timing.latency_table import LatencyTable, LayerTimes, MeasuredWith, kinds_of, open_table

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


def small_graph(streams: str = "select") -> sc.ChannelGraph:
    torch.manual_seed(0)
    return sc.trace(Small().eval(), torch.zeros(1, 3, 6, 6), streams)  # type: ignore[arg-type]


def made_up(graph: sc.ChannelGraph, remainder: float) -> LatencyTable:
    """A layer takes inputs x outputs seconds, and selecting takes half a second."""

    def times(inputs: list[int], outputs: list[int], selecting: tuple[float, ...] = ()) -> LayerTimes:
        return LayerTimes(
            tuple(inputs), tuple(outputs), tuple(tuple(float(i * o) for o in outputs) for i in inputs), selecting
        )

    layers = {
        "stem": times([3], [2, 4]),
        "one": times([2, 4], [2, 4, 8], (0.5, 0.0)),
        "two": times([2, 4, 8], [4]),
        "fc": times([2, 4], [2], (0.5, 0.0)),
    }
    whole = sum(one.seconds[-1][-1] for one in layers.values()) + remainder  # 12 + 32 + 32 + 8
    return LatencyTable(SETTING, kinds_of(graph), layers, whole, remainder, {"stem": 36, "two": 36})


def units(graph: sc.ChannelGraph) -> tuple[str, str]:
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
    assert table.seconds("one", 2, 8, selects=True) == 16.5


def test_what_is_not_a_layer_shrinks_with_the_stream() -> None:
    graph = small_graph("coupled")
    table = made_up(graph, 10.0)
    (stream,) = [n for n, u in graph.units.items() if len(u.writers) == 2]
    assert table.remainder_of(graph, {stream: [0, 1]}) == 5.0  # two of four channels


def test_widths_are_those_at_which_all_layers_of_a_unit_were_timed() -> None:
    graph = small_graph()
    inner, read = units(graph)
    found = made_up(graph, 0.0).widths(graph)
    assert found[inner] == (2, 4, 8) and found[read] == (2, 4)


def test_a_file_and_back(tmp_path: Path) -> None:
    graph = small_graph()
    table = made_up(graph, 1.0)
    table.save(tmp_path / "table.json")
    assert open_table(tmp_path / "table.json", graph) == table
    assert "eager 2.0, batch 4, 1 thread, abacus (beads)" in repr(table)


def test_a_table_of_version_1_whose_layers_were_slower_alone() -> None:
    """Layers alone take 84, in the network 76: each is scaled."""
    graph = small_graph()
    table = LatencyTable.from_json(changed(made_up(graph, -8.0), version=1))
    assert table.predict(graph) == pytest.approx(76) and table.remainder == 0
    assert table.seconds("one", 4, 8) == pytest.approx(32 * 76 / 84)
    positive = made_up(graph, 10.0)
    assert LatencyTable.from_json(changed(positive, version=1)) == positive


def changed(table: LatencyTable, **change: object) -> str:
    return json.dumps({**json.loads(table.to_json()), **change})


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    graph = small_graph()
    table = made_up(graph, 1.0)
    text = table.to_json()
    for content, message in (
        (text[: len(text) // 2], "broken or cut off"),
        ("{}", "not a latency table"),
        (changed(table, version=9), "version 9"),
        (changed(table, whole="fast"), "something in it is missing or wrong"),
        (changed(table, layers={"stem": {}}), "something in it is missing or wrong"),
        (changed(table, measured_with={"engine": "eager"}), "something in it is missing or wrong"),
    ):
        (tmp_path / "t.json").write_text(content)
        with pytest.raises(FileError, match=message):
            open_table(tmp_path / "t.json", graph)
    with pytest.raises(FileError, match="cannot read the latency table"):
        open_table(tmp_path / "none.json", graph)


def test_a_table_of_another_network_is_refused() -> None:
    graph = small_graph()
    table = made_up(graph, 1.0)
    for other, message in (
        (replace(table, layers={k: v for k, v in table.layers.items() if k != "two"}), "it has no layer 'two'"),
        (
            replace(table, layers={**table.layers, "three": ("Conv2d k1x1",)}),
            "it has layers that this one does not have, such as 'three'",
        ),
        (
            replace(table, layers={**table.layers, "two": ("Conv2d k5x5",)}),
            "its layer 'two' is Conv2d k5x5, not Conv2d k1x1",
        ),
        (
            replace(table, times={**table.times, "two": LayerTimes((2,), (4,), ((1.0,),))}),
            "has 2 inputs and 4 outputs, not 8",
        ),
    ):
        with pytest.raises(RunError, match=message):
            other.check(graph)
    smaller = sc.trace(sc.prune(graph, sc.Plan.of(graph, {units(graph)[0]: [0, 1, 2, 3]})), graph.example)
    table.check(smaller)  # a later round of the same network
    assert table.by_layer(smaller)["two"] == 16
