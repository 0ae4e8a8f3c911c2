"""Latency tables: seconds of every layer of a network at many widths, in one engine on one machine.

    table = latency_table(graph, engine="onnxruntime", batch=64, threads=1)    # prunus.timing.layer_timing
    table.predict(graph, keep)     seconds per batch if each unit keeps these channels
    table.by_layer(graph, keep)    the same, layer by layer
    table.widths(graph)            unit -> numbers of channels at which its layers were timed

A layer is timed with its batch norm and its activation, as the engine runs them, and scaled to its time inside the
network (`prunus.timing.layer_timing`). What is not a layer (additions, pooling, overhead) is the
remainder: the measured time of the whole network minus the sum of its layers.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from prunus.errors import FileError, RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.units import Keep
from prunus.timing.layer_blocks import find_blocks
from prunus.util.text import count
from prunus.util.typed_json import read_record, write_record

LARGEST_BLOCK = 16  # channels that a kernel handles at a time, at most


def widths_to_time(width: int) -> tuple[int, ...]:
    """Widths from 1 to `width`, ascending: those at which kernels step, and some between them.

    Up to 16: all even widths and some odd ones. Up to 64: multiples of 4. Above: about eighths of the width, as
    multiples of 16. Layers wider than 16 are also timed at some widths that are multiples of 4 or 8 only, or odd.
    """
    if width <= 16:
        widths = {n for n in range(1, width) if n % 2 == 0 or n < 4 or n in (width // 2 - 1, width - 1)}
    elif width <= 64:
        widths = {*range(4, width, 4), width // 8 - 1, width // 2 - 1, width - 1}
    else:
        step = max(1, round(width / 8 / LARGEST_BLOCK)) * LARGEST_BLOCK
        widths = {step // 2, *range(step, width, step)}
        middle = width // 2 // LARGEST_BLOCK * LARGEST_BLOCK
        widths |= {middle + 8, middle + 4, width - 4, middle - 1, width - 1}
    return tuple(sorted({n for n in widths if 0 < n < width} | {width}))


def alignment(width: int) -> int:
    """The largest power of two up to 16 that divides a width."""
    return min(width & -width, LARGEST_BLOCK)


def shares(width: int, timed: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """Indices of timed widths (ascending) and their shares in the estimate for `width`; shares sum to 1.

    A timed width stands for itself. Otherwise the estimate is linear between its neighbours of the same alignment, or
    of any if there are none on both sides. Outside the timed widths the nearest one counts.
    """
    place = bisect_left(timed, width)
    if place < len(timed) and timed[place] == width:
        return ((place, 1.0),)
    alike = [i for i, n in enumerate(timed) if alignment(n) == alignment(width)]
    for among in (alike, range(len(timed))):
        below = [i for i in among if timed[i] < width]
        above = [i for i in among if timed[i] > width]
        if below and above:
            low, high = below[-1], above[0]
            share = (width - timed[low]) / (timed[high] - timed[low])
            return ((low, 1 - share), (high, share))
    return ((0, 1.0),) if width < timed[0] else ((len(timed) - 1, 1.0),)


@dataclass(frozen=True)
class LayerTimes:
    """Seconds per batch of all calls of a layer, each with its batch norm and activation, at some widths.

    Times are as measured: a narrower layer may take longer than a wider one. The outputs of a depthwise layer follow
    from its inputs, so it has one column.
    """

    kinds: tuple[str, ...]  # kind of each call, see `prunus.timing.layer_blocks`
    inputs: tuple[int, ...]  # ascending
    outputs: tuple[int, ...]  # ascending
    seconds: tuple[tuple[float, ...], ...]  # [inputs, outputs]
    selecting: tuple[float, ...] = ()  # [inputs] further seconds if these inputs are selected from a stream
    outside: int = 0  # positions of a channel, if anything but layers uses the outputs; otherwise 0

    def __post_init__(self) -> None:
        """ValueError unless widths ascend and there is a finite time for each of them."""
        for axis in (self.inputs, self.outputs):
            if not axis or min(axis) < 1 or list(axis) != sorted(set(axis)):
                raise ValueError(f"widths must be ascending whole numbers above 0, not {list(axis)}")
        if len(self.seconds) != len(self.inputs) or any(len(row) != len(self.outputs) for row in self.seconds):
            raise ValueError("the number of times is not the number of widths")
        if self.selecting and len(self.selecting) != len(self.inputs):
            raise ValueError("the number of times of selections is not the number of inputs")
        if not all(math.isfinite(second) for row in (*self.seconds, self.selecting) for second in row):
            raise ValueError("times must be finite numbers")

    @cached_property
    def _estimates(self) -> dict[tuple[int, int, bool], float]:
        return {}

    def at(self, inputs: int, outputs: int, *, selects: bool = False) -> float:
        """Seconds for these numbers of inputs and outputs; see `shares` for widths that were not timed.

        A layer without inputs or outputs is removed: 0.
        """
        if not inputs or not outputs:
            return 0.0
        known, key = self._estimates, (inputs, outputs, selects)
        if key not in known:
            rows, columns = shares(inputs, self.inputs), shares(outputs, self.outputs)
            known[key] = sum(a * b * self.seconds[i][j] for i, a in rows for j, b in columns)
            if selects and self.selecting:
                known[key] += sum(share * self.selecting[i] for i, share in rows)
        return known[key]

    @property
    def grid(self) -> npt.NDArray[np.float64]:
        return np.array(self.seconds)

    def scaled(self, factor: float) -> LayerTimes:
        selecting = tuple(factor * second for second in self.selecting)
        return replace(self, seconds=rows_of(factor * self.grid), selecting=selecting)

    def plus(self, other: LayerTimes) -> LayerTimes:
        """The times of further calls of the same layer added."""
        return replace(
            self,
            kinds=(*self.kinds, *other.kinds),
            seconds=rows_of(self.grid + other.grid),
            selecting=tuple(a + b for a, b in zip(self.selecting, other.selecting, strict=True)),
            outside=self.outside + other.outside,
        )


def rows_of(grid: npt.NDArray[np.float64]) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, grid.tolist()))


@dataclass(frozen=True)
class MeasuredWith:
    """Machine, engine and setting of the measurement. Times hold for these only."""

    engine: str
    engine_version: str
    torch_version: str
    machine: str  # model of the processor or of the GPU
    instructions: str  # its widest vector instructions
    threads: int
    batch: int

    def __str__(self) -> str:
        where = f"{self.machine} ({self.instructions})"
        return f"{self.engine} {self.engine_version}, batch {self.batch}, {count(self.threads, 'thread')}, {where}"


@cache
def machine_of(device: torch.device) -> tuple[str, str]:
    """Model and instruction set of the processor, or of the GPU if the device is one."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return str(properties.name), f"sm_{properties.major}{properties.minor}"
    instructions = torch.backends.cpu.get_cpu_capability()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine(), instructions

    def entry(key: str) -> str:
        line = re.search(rf"^{key}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
        return line.group(1) if line else ""

    # Virtual machines hide the processor's name, so family, model and stepping are added.
    numbers = "-".join(filter(None, (entry(key) for key in ("cpu family", "model", "stepping"))))
    return f"{entry('model name') or platform.machine()} {numbers}".strip(), instructions


FORMAT, CACHE_FORMAT, VERSION = "prunus-latency-table", "prunus-latency-cache", 1
_REMEDY = "measure this network: prunus inspect MODEL --latency --out table.json"


@dataclass(frozen=True, repr=False)
class LatencyTable:
    """Seconds per batch of the layers of a network, and what they were measured with."""

    measured_with: MeasuredWith
    whole: float  # seconds of the whole network, unpruned
    remainder: float  # whole - sum of the layers, at least 0; what is not a layer
    layers: Mapping[str, LayerTimes]

    def __repr__(self) -> str:
        return f"LatencyTable({self.measured_with}: {len(self.layers)} layers, {1e3 * self.whole:.3g} ms)"

    # -- predictions

    def predict(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Seconds per batch of the network in which each unit in `keep` keeps these channels."""
        return sum(self.by_layer(graph, keep).values()) + self.remainder_of(graph, keep)

    def by_layer(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> dict[str, float]:
        """Seconds per batch of each layer, with the selection in front of it."""
        cost, kept = graph.cost(keep).layers, {} if keep is None else graph.keep_of(keep)
        cut = [name for name, channels in kept.items() if len(channels) < graph.units[name].width]
        selecting = {graph.grouped.selecting.get(name) for name in cut}  # layers that read a part of a stream
        return {
            name: times.at(cost[name].inputs, cost[name].outputs, selects=name in selecting)
            for name, times in self.layers.items()
            if name in cost
        }

    def remainder_of(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Seconds of what is not a layer. They shrink with what layers write for others than layers."""
        return self.remainder * self.outside_share(graph, keep)

    def outside_share(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Numbers that layers write for others than layers, as a share of those of the unpruned network."""
        if not any(times.outside for times in self.layers.values()):
            return 1.0
        cost = graph.cost(keep).layers
        return sum(self.outside_part(name, cost[name].outputs) for name in self.layers if name in cost)

    def outside_part(self, layer: str, outputs: int) -> float:
        """The part of `outside_share` that a layer with this number of outputs has."""
        times = self.layers[layer]
        return times.outside * min(outputs, times.outputs[-1]) / self._written_outside

    @cached_property
    def _written_outside(self) -> int:
        return sum(times.outside * times.outputs[-1] for times in self.layers.values()) or 1

    def widths(self, graph: ChannelGraph) -> dict[str, tuple[int, ...]]:
        """Unit -> the numbers of kept channels at which all its readers and writers were timed, ascending."""
        widths: dict[str, tuple[int, ...]] = {}
        for name, unit in graph.units.items():
            counts = set(range(unit.granule, unit.width + 1, unit.granule))
            selects = graph.streams == "select" and unit.kind == "stream"  # its writers do not follow its readers
            sides = [(r.module, r.channels, r.inputs.shape[1], "inputs") for r in unit.readers]
            sides += [] if selects else [(w.module, w.channels, w.outputs.shape[1], "outputs") for w in unit.writers]
            for layer, channels, share, axis in sides:
                if layer in self.layers and len(channels) == unit.width:
                    counts &= {n for n in counts if n * share in getattr(self.layers[layer], axis)}
            widths[name] = tuple(sorted(counts | {unit.width}))
        return widths

    # -- files

    def check(self, graph: ChannelGraph, where: str = "") -> None:
        """Raise RunError unless the layers of the network were timed. where: the beginning of its message."""
        kinds = kinds_of(graph)
        wrong = [f"it has layers that this one does not have, such as {n!r}" for n in self.layers if n not in kinds]
        for name, kind in kinds.items():
            layer, times = graph.layers[name], self.layers.get(name)
            if times is None:
                wrong.append(f"it has no layer {name!r}")
            elif times.kinds != kind:
                wrong.append(f"its layer {name!r} is {' and '.join(times.kinds)}, not {' and '.join(kind)}")
            elif layer.inputs > times.inputs[-1] or (not layer.depthwise and layer.outputs > times.outputs[-1]):
                timed = f"{times.inputs[-1]} inputs and {times.outputs[-1]} outputs"
                wrong.append(f"its layer {name!r} has {timed}, not {layer.inputs} and {layer.outputs}")
        if wrong:
            raise RunError(f"{where}the latency table is of another network: {wrong[0]}; {_REMEDY}")

    def save(self, path: str | Path) -> None:
        write_record(Path(path), self, FORMAT, VERSION)

    @classmethod
    def load(cls, path: str | Path) -> LatencyTable:
        """Read a table that `save` wrote. FileError if the file is missing or broken."""
        return read_record(Path(path), cls, FORMAT, VERSION)


def open_table(path: str | Path, graph: ChannelGraph) -> LatencyTable:
    """Read a table that `prunus inspect --latency --out` wrote, here or on another machine; it must fit the network."""
    table = LatencyTable.load(path)
    table.check(graph, f"{path}: ")
    return table


def kinds_of(graph: ChannelGraph) -> dict[str, tuple[str, ...]]:
    kinds: dict[str, tuple[str, ...]] = {}
    for block in find_blocks(graph):
        kinds[block.layer] = (*kinds.get(block.layer, ()), block.kind)
    return kinds


Timings = dict[str, dict[str, float]]  # kind -> widths as text ("16->32") -> seconds


@dataclass(frozen=True)
class TimingCache:
    """Timings of one setting, in the user's cache folder."""

    setting: MeasuredWith
    timings: Timings

    @staticmethod
    def path(setting: MeasuredWith) -> Path:
        """The file for this machine, engine, number of threads and batch size."""
        text = json.dumps({**asdict(setting), "version": VERSION}, sort_keys=True)
        return cache_folder() / f"{setting.engine}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    @classmethod
    def open(cls, setting: MeasuredWith) -> TimingCache:
        """Known timings; none if there is no file. FileError if the file is broken."""
        path = cls.path(setting)
        if not path.exists():
            return cls(setting, {})
        try:
            cache = read_record(path, cls, CACHE_FORMAT, VERSION)
            finite = all(math.isfinite(second) for times in cache.timings.values() for second in times.values())
            if cache.setting != setting or not finite:
                raise FileError(f"{path} is not a file of timings that this prunus wrote")
        except FileError as error:
            raise FileError(f"{error}; delete it, and layers are timed again") from error
        return cache

    def save(self) -> None:
        write_record(self.path(self.setting), self, CACHE_FORMAT, VERSION)


def cache_folder() -> Path:
    """Where timings are kept: $XDG_CACHE_HOME/prunus/latency, or ~/.cache/prunus/latency."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "prunus" / "latency"
