"""Measuring a table: sums of runs, the cache, hidden settings of layers, and every engine on a small network."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import prunus as pr
from prunus.errors import FileError, RunError
from prunus.timing import latency, layer_blocks
from prunus.timing import layer_timing as measure
from prunus.timing.engines import ENGINES, PreparedModel
from prunus.timing.latency_table import TimingCache, cache_folder, widths_to_time
from prunus.timing.layer_blocks import Run, find_blocks
from prunus.timing.layer_timing import (
    Timer,
    complete,
    half_of_channels,
    latency_table,
    pairs_to_time,
    scale_inside,
)
from tests.clock import Clock
from tests.deciding.toys import seeded
from tests.nets import NETS
from tests.timing.test_latency_table import SETTING, small_graph, units

CLOCK = Clock(tick=1e-9)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(latency, "time", CLOCK)
    monkeypatch.setattr(measure, "processor_time", lambda device, threads: False)
    return CLOCK


class Paced(nn.Conv2d):
    """Takes `pace` seconds of the test's clock for each output channel of an image; it does not show in its repr."""

    pace = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        CLOCK.sleep(self.pace * len(x) * self.out_channels)
        return super().forward(x)


class TwoPaced(nn.Sequential):
    """Two layers that look alike; the second is ten times slower."""

    def __init__(self) -> None:
        super().__init__(Paced(8, 8, 1), nn.ReLU(), Paced(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 2, 1))
        self[2].pace = 1e-4


def test_layers_that_look_alike_are_timed_apart(cache: Path, clock: Clock) -> None:
    graph = pr.trace(seeded(TwoPaced), torch.zeros(1, 8, 4, 4))
    table = latency_table(graph, batch=2, threads=1)
    times = [table.layers[name].at(width, width) for name, width in (("0", 8), ("2", 8), ("2", 4))]
    assert times == pytest.approx([16e-5, 16e-4, 8e-4], rel=1e-3)
    assert table.whole == pytest.approx(176e-5, rel=1e-3) and abs(table.remainder) < 1e-6
    kept = json.loads(TimingCache.path(table.measured_with).read_text())["timings"]
    assert not [kind for kind in kept if "layer" in kind]  # of no use to other networks


def test_times_are_kept_and_used_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    with pytest.raises(RunError, match="batch and threads of at least 1, got 0"):
        latency_table(graph, batch=0)
    table = latency_table(graph, batch=2, threads=1)
    path = TimingCache.path(table.measured_with)
    assert cache_folder() == cache / "prunus" / "latency" and path.exists()
    monkeypatch.setattr(Timer, "seconds", None)  # nothing is timed
    assert latency_table(graph, batch=2, threads=1) == table
    with pytest.raises(TypeError):
        latency_table(graph, batch=3, threads=1)
    whole = json.loads(path.read_text())
    for text in ("{", "[]", "{}", json.dumps({**whole, "timings": {"a": {"1->1": "x"}}})):
        path.write_text(text)
        with pytest.raises(FileError, match="delete it, and layers are timed again"):
            latency_table(graph, batch=2, threads=1)


class OneStream(nn.Module):
    """The first layer writes a stream, of which the second selects channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return x + self.one(x)


@pytest.mark.parametrize(
    "engine", ["eager", "onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8", "mnn", "ncnn"]
)
def test_a_small_network_in_every_engine(engine: str) -> None:
    if ENGINES[engine].crashes():
        return
    graph = small_graph() if engine == "onnxruntime" else pr.trace(seeded(OneStream), torch.zeros(1, 3, 4, 4))
    table = latency_table(graph, engine, batch=2, threads=1, progress=False)
    assert set(table.layers) == set(graph.layers) and table.predict(graph) == pytest.approx(table.whole)
    inner, read = units(graph) if engine == "onnxruntime" else (None, "one:in")
    assert inner is None or table.widths(graph)[inner] == (1, 2, 3, 4, 6, 7, 8)
    assert table.widths(graph)[read] == ((1, 2, 3, 4) if inner else (1, 2, 3))
    assert table.measured_with.engine == engine and table.measured_with.batch == 2
    assert all(seconds > 0 for times in table.layers.values() for row in times.seconds for seconds in row)


def test_compiled_layers_are_scaled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile takes seconds a layer, so layers are timed in eager mode: here both networks take half as long."""
    graph = small_graph()
    eager = latency_table(graph, "eager", batch=2, threads=1)
    halves = [eager.whole / 2, eager.predict(graph, half_of_channels(graph)) / 2]
    monkeypatch.setattr(measure, "prepare", lambda *_: PreparedModel(lambda batch: None, torch.device("cpu")))
    monkeypatch.setattr(Timer, "seconds", lambda *_: halves)
    compiled = latency_table(graph, "compile", batch=2, threads=1)
    assert compiled.measured_with.engine == "compile" and compiled.whole == eager.whole / 2
    assert compiled.predict(graph) == pytest.approx(eager.whole / 2)
    assert compiled.layers["one"].at(4, 8) <= eager.layers["one"].at(4, 8)


class Slower(nn.Sequential):
    """Inside the network the layers take twice their time alone, and something else takes 1 ms."""

    def __init__(self) -> None:
        super().__init__(Paced(8, 8, 1), nn.ReLU(), Paced(8, 8, 1), nn.ReLU(), Paced(8, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        start = CLOCK.now
        x = super().forward(x)
        CLOCK.sleep(CLOCK.now - start + 1e-3 * (len(x) > 1))
        return x


def test_layers_are_scaled_to_their_time_inside_the_network(cache: Path, clock: Clock) -> None:
    graph = pr.trace(seeded(Slower), torch.zeros(1, 8, 4, 4))
    table = latency_table(graph, batch=2, threads=1)
    assert table.layers["0"].at(8, 8) == pytest.approx(2 * 16e-5, rel=1e-2)  # 2 images, 8 outputs, 1e-5 s each, twice
    assert table.whole == pytest.approx(2 * 36e-5 + 1e-3, rel=1e-2) and table.remainder == pytest.approx(1e-3, rel=1e-2)
    first, second = graph.units
    assert table.predict(graph, {first: [0, 1], second: [3]}) == pytest.approx(2 * 10e-5 + 1e-3, rel=1e-2)


def test_the_scale_solves_both_equations_within_bounds() -> None:
    # 1.5 x 4 + 2 = 8 and 1.5 x 1 + 2 = 3.5; then 1.5 x 1 + half of 2
    assert scale_inside((8.0, 3.5), (4.0, 1.0), 1.0) == pytest.approx(1.5)
    assert scale_inside((8.0, 2.5), (4.0, 1.0), 0.5) == pytest.approx(1.5)
    assert scale_inside((8.0, 1.0), (4.0, 1.0), 1.0) == 2.0  # 7/3 would leave less than nothing for the rest
    assert scale_inside((8.0, 7.9), (4.0, 1.0), 1.0) == 0.5 and scale_inside((2.0, 1.9), (4.0, 1.0), 1.0) == 0.25
    assert scale_inside((8.0, 7.0), (4.0, 3.9), 1.0) == 1.0 and scale_inside((2.0, 1.9), (4.0, 3.9), 1.0) == 0.5


def test_the_smaller_network_has_half_of_the_inner_channels() -> None:
    graph = small_graph()
    assert half_of_channels(graph) == {units(graph)[0]: (0, 1, 2, 3)}
    for name, halves in (("grouped", (4, 4, 2)), ("shuffle", (4, 4, 2))):  # of 8, 12 and 5; of 8, 8 and 5
        graph = pr.trace(seeded(NETS[name].build), NETS[name].example())
        kept = half_of_channels(graph)
        assert tuple(len(kept[unit]) for unit in ("a:out", "g:out", "b:out")) == halves
        for unit in graph.units.values():  # the same number of each block
            assert len(set(np.bincount(unit.blocks[list(kept[unit.name])], minlength=unit.granule))) == 1


class Weighted(nn.Module):
    """Nothing that is timed as a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(x, self.weight).mean((2, 3))


def test_a_network_without_layers_is_all_remainder(cache: Path) -> None:
    graph = pr.trace(seeded(Weighted), torch.zeros(1, 3, 6, 6))
    table = latency_table(graph, batch=2, threads=1)
    assert table.remainder == table.whole == table.predict(graph) > 0


def test_both_ways_of_streams_have_smaller_networks_of_their_own() -> None:
    graphs = [pr.trace(seeded(OneStream), torch.zeros(1, 3, 6, 6), way) for way in ("select", "coupled")]
    assert len({measure._network_kind(graph, measure.find_grids(graph)) for graph in graphs}) == 2


@pytest.mark.parametrize("name", ["grouped", "depthwise", "transposed", "flattened", "sound", "volume"])
def test_every_kind_of_layer_as_a_graph(name: str) -> None:
    """The small ONNX graphs run, and a block has the output channels that it should have."""
    graph = pr.trace(seeded(NETS[name].build), NETS[name].example())
    for block in find_blocks(graph):
        inputs, outputs = block.widths
        content, shape = layer_blocks.onnx_graph(block, Run("block", inputs, outputs), 2)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (made,) = session.run(None, {"x": np.zeros(shape, np.float32)})
        wanted = list(block.out_shape)
        if not isinstance(block.modules[0], nn.Linear):
            wanted[2:] = [1] * (len(wanted) - 2)
        assert list(made.shape) == [2, *wanted[1:]]


def test_a_block_in_onnxruntime_is_what_is_behind_the_convolution_before_it() -> None:
    graph = small_graph()
    (block,) = [block for block in find_blocks(graph) if block.layer == "one"]
    timer = Timer(ENGINES["onnxruntime"], torch.device("cpu"), TimingCache(SETTING, {}))
    (_, sums), (_, selections) = measure._missing(timer, [measure.Grid(block, (2, 4), (8,), True, 0)]).values()
    assert sums["4->8"] == {Run("block", 4, 8): 1, Run("before", 4): -1}
    assert selections == {
        "2": {Run("selection", 2): 1, Run("before", 2): 1, Run("before", 4): -1, Run("reading", 2): -1}
    }
    for run, channels in ((Run("before", 4), 4), (Run("selection", 3), layer_blocks.READ)):
        content, shape = layer_blocks.onnx_graph(block, run, 2)
        (made,) = onnxruntime.InferenceSession(content).run(None, {"x": np.zeros(shape, np.float32)})
        assert made.shape == (2, channels, 1, 1)


def test_a_gpu_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of the test's clock, in milliseconds."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    marks: list[float] = []
    events = [Mock(), Mock()]
    events[0].elapsed_time = lambda end: 1e3 * (marks[-1] - marks[-2])
    for event in events:
        event.record = lambda: marks.append(CLOCK.now)
    turns = itertools.cycle(events)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: next(turns))
    device = torch.device("cuda", 0)
    assert not latency.processor_time(device, 1) and latency.processor_time(torch.device("cpu"), 1)
    found = latency.take_turns([lambda: CLOCK.sleep(0.25)], [device], warmup=1, rounds=2, repeats=2)
    assert found == [pytest.approx([0.25] * 4)]


def test_times_are_relative_to_a_reference(clock: Clock) -> None:
    """The machine is three times slower in the first and last round: what is 2 ms takes 6, and the reference 3."""
    pace = iter([3.0, 3.0, 1.0, 1.0, 3.0, 3.0])
    slower = [1.0]

    def reference() -> None:
        slower[0] = next(pace)
        clock.sleep(1e-3 * slower[0])

    timer = Timer(ENGINES["eager"], torch.device("cpu"), TimingCache(SETTING, {"reference": {"seconds": 5e-4}}))
    vars(timer)["_reference"] = reference
    assert timer.seconds([lambda: clock.sleep(2e-3 * slower[0])], 3, 1) == [pytest.approx(1e-3, rel=1e-3)]


def test_other_pairs_are_completed() -> None:
    """Kernels of 16 channels with an overhead on either side: the product form is exact."""
    inputs, outputs = widths_to_time(64), widths_to_time(32)
    true = lambda i, o: (1 + -(-i // 16)) * (2 + o % 2 + -(-o // 8))
    timed = {(i, o): float(true(i, o)) for i, o in pairs_to_time(inputs, outputs)}
    assert np.allclose(complete(inputs, outputs, timed), [[true(i, o) for o in outputs] for i in inputs])


def test_a_sum_is_corrected_by_the_coarse_grid() -> None:
    """A time that is no product, such as reading + computing + writing, is right to some per cent between."""
    widths = widths_to_time(64)
    true = lambda i, o: 10 * i + 10 * o + i * o
    found = complete(widths, widths, {(i, o): float(true(i, o)) for i, o in pairs_to_time(widths, widths)})
    for place in ((widths.index(16), widths.index(48)), (widths.index(32), widths.index(32))):
        assert found[place] == pytest.approx(true(widths[place[0]], widths[place[1]]))
    odd = widths.index(31)
    assert found[odd, odd] == pytest.approx(true(31, 31))
    inside = [place for place, width in enumerate(widths) if width % 4 == 0 and width >= 16]
    for a, b in itertools.product(inside, inside):
        assert found[a, b] == pytest.approx(true(widths[a], widths[b]), rel=0.03)
