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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prunus.errors import FileError, RunError
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.graph.units import Keep
from prunus.timing.engines import Engine
from prunus.timing.layer_blocks import find_blocks
from prunus.util.files import read_object, write_atomically
from prunus.util.options import versioned_object

# Widths at which layers are timed, and how time between two of them is estimated.

LARGEST_BLOCK = 16  # channels that a kernel handles at a time, at most
NARROW = 16  # layers up to this width are timed at all even widths
MEDIUM = 64  # layers up to this width are timed at all multiples of 4


def widths_to_time(width: int) -> tuple[int, ...]:
    """Widths from 1 to `width`, ascending: those at which kernels step, and some between them.

    Up to 16: all even widths and some odd ones. Up to 64: multiples of 4. Above: about eighths of the width, as
    multiples of 16. Layers wider than 16 are also timed at some widths that are multiples of 4 or 8 only, or odd.
    """
    if width <= NARROW:
        found = {n for n in range(1, width) if n % 2 == 0 or n < 4 or n in (width // 2 - 1, width - 1)}
    elif width <= MEDIUM:
        found = {*range(4, width, 4), width // 8 - 1, width // 2 - 1, width - 1}
    else:
        step = max(1, round(width / 8 / LARGEST_BLOCK)) * LARGEST_BLOCK
        found = {step // 2, *range(step, width, step)}
        middle = width // 2 // LARGEST_BLOCK * LARGEST_BLOCK
        found |= {middle + 8, middle + 4, width - 4, middle - 1, width - 1}
    return tuple(sorted({n for n in found if 0 < n < width} | {width}))


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


# Seconds of a layer at the widths that were timed, and estimates between them.


@dataclass(frozen=True)
class LayerTimes:
    """Seconds per batch of a layer with its batch norm and activation, at numbers of inputs and outputs.

    Times are as measured: a narrower layer may take longer than a wider one. The outputs of a depthwise layer follow
    from its inputs, so it has one column.
    """

    inputs: tuple[int, ...]  # ascending
    outputs: tuple[int, ...]  # ascending
    seconds: tuple[tuple[float, ...], ...]  # [inputs, outputs]
    selecting: tuple[float, ...] = ()  # [inputs] further seconds if these inputs are selected from a stream

    def at(self, inputs: int, outputs: int, *, selects: bool = False) -> float:
        """Seconds for these numbers of inputs and outputs; see `shares` for widths that were not timed."""
        key = (inputs, outputs, selects)
        if key not in self._known:
            rows, columns = shares(inputs, self.inputs), shares(outputs, self.outputs)
            found = sum(a * b * self.seconds[i][j] for i, a in rows for j, b in columns)
            if selects and self.selecting:
                found += sum(share * self.selecting[i] for i, share in rows)
            self._known[key] = found
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, int, bool], float]:
        return {}

    @property
    def grid(self) -> npt.NDArray[np.float64]:
        """Seconds [inputs, outputs]."""
        return np.array(self.seconds)

    def mapped(self, change: Callable[[float], float]) -> LayerTimes:
        """The same with every time changed."""
        seconds = tuple(tuple(map(change, row)) for row in self.seconds)
        return LayerTimes(self.inputs, self.outputs, seconds, tuple(map(change, self.selecting)))

    def plus(self, other: LayerTimes) -> LayerTimes:
        """The times of two calls of one layer together."""
        pairs = zip(self.seconds, other.seconds, strict=True)
        seconds = tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in pairs)
        selecting = tuple(a + b for a, b in zip(self.selecting, other.selecting, strict=True))
        return LayerTimes(self.inputs, self.outputs, seconds, selecting)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        found = {"inputs": list(self.inputs), "outputs": list(self.outputs), "seconds": [list(r) for r in self.seconds]}
        return {**found, "selecting": list(self.selecting)} if self.selecting else found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerTimes:
        """Read what `as_dict` returns. ValueError if it is something else."""
        widths = [tuple(data[axis]) for axis in ("inputs", "outputs")]
        seconds = tuple(tuple(float(s) for s in row) for row in data["seconds"])
        selecting = tuple(float(s) for s in data.get("selecting", ()))
        for axis in widths:
            if not axis or any(type(n) is not int or n < 1 for n in axis) or list(axis) != sorted(set(axis)):
                raise ValueError(f"widths must be ascending whole numbers above 0, not {list(axis)}")
        if len(seconds) != len(widths[0]) or any(len(row) != len(widths[1]) for row in seconds):
            raise ValueError("the number of times is not the number of widths")
        if selecting and len(selecting) != len(widths[0]):
            raise ValueError("the number of times of selections is not the number of inputs")
        if not all(math.isfinite(s) for row in (*seconds, selecting) for s in row):
            raise ValueError("times must be finite numbers")
        return cls(widths[0], widths[1], seconds, selecting)


# The machine and the software that times were measured with: times hold for these only.

CPU_FILE = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class MeasuredWith:
    """Where and how layers were timed."""

    engine: str
    engine_version: str
    torch_version: str
    machine: str  # model of the processor or of the GPU
    instructions: str  # its widest vector instructions
    threads: int
    batch: int

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        where = f"{self.machine} ({self.instructions})"
        return f"{self.engine} {self.engine_version}, batch {self.batch}, {threads}, {where}"


def measured_with(engine: Engine, device: torch.device, batch: int, threads: int) -> MeasuredWith:
    """The setting of a measurement on this machine."""
    return MeasuredWith(
        engine.name, version(engine.package), torch.__version__, *machine_of(device), threads=threads, batch=batch
    )


def machine_of(device: torch.device) -> tuple[str, str]:
    """Model and instruction set of the processor, or of the GPU if the device is one."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return str(properties.name), f"sm_{properties.major}{properties.minor}"
    return processor(), torch.backends.cpu.get_cpu_capability()


@cache
def processor() -> str:
    """The model of the processor. Virtual machines hide its name, so family, model and stepping are added."""
    try:
        text = CPU_FILE.read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name, *numbers = (_entry(key, text) for key in ("model name", "cpu family", "model", "stepping"))
    return f"{name or platform.machine()} {'-'.join(filter(None, numbers))}".strip()


def _entry(key: str, text: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.+?)\s*$", text, re.MULTILINE)
    return found.group(1) if found else ""


FORMAT = "prunus-latency-table"
VERSION = 2


@dataclass(frozen=True, repr=False)
class LatencyTable:
    """Seconds per batch of the layers of a network, and what they were measured with."""

    measured_with: MeasuredWith
    layers: Mapping[str, tuple[str, ...]]  # layer -> its kind, once for each time that it is called
    times: Mapping[str, LayerTimes]  # layer -> seconds of all its calls together
    whole: float  # seconds of the whole network, unpruned
    remainder: float  # whole - sum of the layers, at least 0; what is not a layer
    outside: Mapping[str, int]  # layer whose outputs are used outside of layers -> positions of a channel

    def __repr__(self) -> str:
        return f"LatencyTable({self.measured_with}: {len(self.times)} layers, {1e3 * self.whole:.3g} ms)"

    # -- predictions

    def predict(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Seconds per batch of the network in which each unit in `keep` keeps these channels."""
        layers = self.by_layer(graph, keep)
        return sum(layers.values()) + self.remainder_of(graph, keep)

    def by_layer(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> dict[str, float]:
        """Seconds per batch of each layer, with the selection in front of it."""
        cost = graph.cost(keep).layers
        selecting = _selecting(graph, {} if keep is None else graph.keep_of(keep))
        return {
            name: self.seconds(name, cost[name].inputs, cost[name].outputs, selects=name in selecting)
            for name in self.times
            if name in cost
        }

    def seconds(self, layer: str, inputs: int, outputs: int, *, selects: bool = False) -> float:
        """Seconds per batch of a layer with these numbers of inputs and outputs.

        selects: whether it selects its inputs from a stream.
        """
        return self.times[layer].at(inputs, outputs, selects=selects)

    def remainder_of(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Seconds of what is not a layer. They shrink with what layers write for others than layers."""
        return self.remainder * self.outside_share(graph, keep)

    def outside_share(self, graph: ChannelGraph, keep: Plan | Keep | None = None) -> float:
        """Numbers that layers write for others than layers, as a share of those of the unpruned network."""
        cost = graph.cost(keep).layers
        return sum(self.outside_part(name, cost[name].outputs) for name in self.outside) if self.outside else 1.0

    def outside_part(self, layer: str, outputs: int) -> float:
        """The part of `outside_share` that a layer with this number of outputs has."""
        full = self.times[layer].outputs[-1]
        return self.outside.get(layer, 0) * min(outputs, full) / self._written_outside

    @cached_property
    def _written_outside(self) -> int:
        return sum(size * self.times[name].outputs[-1] for name, size in self.outside.items()) or 1

    def widths(self, graph: ChannelGraph) -> dict[str, tuple[int, ...]]:
        """Unit -> the numbers of kept channels at which all its readers and writers were timed, ascending."""
        found: dict[str, tuple[int, ...]] = {}
        for name, unit in graph.units.items():
            counts = set(range(unit.granule, unit.width + 1, unit.granule))
            for reader in unit.readers:
                share = reader.inputs.shape[1]
                if reader.module in self.times and len(reader.channels) == unit.width:
                    counts &= {n for n in counts if n * share in self.times[reader.module].inputs}
            selects = graph.streams == "select" and unit.kind == "stream"
            for writer in () if selects else unit.writers:
                if writer.module in self.times and len(writer.channels) == unit.width:
                    counts &= {n for n in counts if n * writer.outputs.shape[1] in self.times[writer.module].outputs}
            found[name] = tuple(sorted(counts | {unit.width}))
        return found

    # -- files

    def check(self, graph: ChannelGraph) -> None:
        """Raise RunError unless the layers of the network were timed."""
        kinds = kinds_of(graph)
        more = [name for name in self.layers if name not in kinds]
        if more:
            raise RunError(
                f"the latency table is of another network: it has layers that this one does not have, such as "
                f"{more[0]!r}; {_REMEDY}"
            )
        for name, kind in kinds.items():
            if name not in self.layers:
                raise RunError(f"the latency table is of another network: it has no layer {name!r}; {_REMEDY}")
            if self.layers[name] != kind:
                raise RunError(
                    f"the latency table is of another network: its layer {name!r} is "
                    f"{' and '.join(self.layers[name])}, not {' and '.join(kind)}; {_REMEDY}"
                )
            layer, times = graph.layers[name], self.times[name]
            if layer.inputs > times.inputs[-1] or (not layer.depthwise and layer.outputs > times.outputs[-1]):
                raise RunError(
                    f"the latency table is of another network: its layer {name!r} has {times.inputs[-1]} inputs and "
                    f"{times.outputs[-1]} outputs, not {layer.inputs} and {layer.outputs}; {_REMEDY}"
                )

    def to_json(self) -> str:
        """The table as JSON text."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "measured_with": asdict(self.measured_with),
            "whole": self.whole,
            "remainder": self.remainder,
            "layers": {
                name: {"kinds": list(self.layers[name]), "outside": self.outside.get(name, 0), **times.as_dict()}
                for name, times in self.times.items()
            },
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LatencyTable:
        """Read the text that `to_json` returns."""
        data = versioned_object(text, "latency table", FORMAT, VERSION, oldest=1)
        try:
            layers = data["layers"]
            found = cls(
                MeasuredWith(**data["measured_with"]),
                {name: tuple(map(str, layer["kinds"])) for name, layer in layers.items()},
                {name: LayerTimes.from_dict(layer) for name, layer in layers.items()},
                float(data["whole"]),
                float(data["remainder"]),
                {name: int(layer["outside"]) for name, layer in layers.items() if layer["outside"]},
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise FileError(f"not a complete latency table: something in it is missing or wrong ({error})") from error
        return found._calibrated()

    def _calibrated(self) -> LatencyTable:
        """The table with a remainder of at least 0. In version 1 it was negative where layers are slower alone."""
        if self.remainder >= 0:
            return self
        scale = self.whole / (self.whole - self.remainder)
        times = {name: one.mapped(lambda seconds: scale * seconds) for name, one in self.times.items()}
        return replace(self, times=times, remainder=0.0)

    def save(self, path: str | Path) -> None:
        """Write the table to a file, whole or not at all."""
        write_atomically(Path(path), self.to_json().encode())


_REMEDY = "measure this network: prunus latency MODEL --out table.json"


def open_table(path: str | Path, graph: ChannelGraph) -> LatencyTable:
    """Read a table that `prunus latency --out` wrote, here or on another machine, and check that it fits the network.

    FileError: the file is missing or broken. RunError: the table is of another network. `table.measured_with` says
    where it was measured; that may be another machine.
    """
    try:
        table = LatencyTable.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read the latency table {path}: {error}") from error
    except FileError as error:
        raise FileError(f"{path}: {error}") from error
    try:
        table.check(graph)
    except RunError as error:
        raise RunError(f"{path}: {error}") from error
    return table


def kinds_of(graph: ChannelGraph) -> dict[str, tuple[str, ...]]:
    """Layer -> the kind of each of its calls."""
    kinds: dict[str, tuple[str, ...]] = {}
    for block in find_blocks(graph):
        kinds[block.layer] = (*kinds.get(block.layer, ()), block.kind)
    return kinds


def _selecting(graph: ChannelGraph, keep: Keep) -> set[str]:
    """Layers that read a part of a stream."""
    if graph.streams == "coupled":
        return set()
    streams = (graph.units[n] for n, kept in keep.items() if len(kept) < graph.units[n].width)
    return {unit.readers[0].module for unit in streams if unit.kind == "stream"}


# Timings in the user's cache folder: one JSON file for each machine, engine, number of threads and batch size.

FORMAT_CACHE = "prunus-latency-cache"

Timings = dict[str, dict[str, float]]  # kind -> widths as text ("16->32") -> seconds


def cache_folder() -> Path:
    """Where timings are kept: $XDG_CACHE_HOME/prunus/latency, or ~/.cache/prunus/latency."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "prunus" / "latency"


def cache_file(setting: MeasuredWith) -> Path:
    """The file for timings of this machine, engine, number of threads and batch size."""
    text = json.dumps({**asdict(setting), "version": VERSION}, sort_keys=True)
    return cache_folder() / f"{setting.engine}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def read_cache(setting: MeasuredWith) -> Timings:
    """Known timings; none if there is no file. FileError if the file is broken."""
    path = cache_file(setting)
    if not path.exists():
        return {}
    hint = "; delete it, and layers are timed again"
    try:
        data = read_object(path)
    except FileError as error:
        raise FileError(f"{error}{hint}") from error
    if data.get("format") != FORMAT_CACHE or data.get("version") != VERSION or data.get("setting") != asdict(setting):
        raise FileError(f"{path} is not a file of timings that this prunus wrote{hint}")
    timings = data.get("timings")
    if not isinstance(timings, dict) or not all(map(_is_times, timings.values())):
        raise FileError(f"{path} holds times that are no numbers{hint}")
    return timings


def write_cache(setting: MeasuredWith, timings: Mapping[str, Mapping[str, float]]) -> None:
    """Keep timings, whole or not at all."""
    data = {"format": FORMAT_CACHE, "version": VERSION, "setting": asdict(setting), "timings": timings}
    write_atomically(cache_file(setting), json.dumps(data, indent=0).encode())


def _is_times(times: Any) -> bool:
    return isinstance(times, dict) and all(type(s) in (int, float) and math.isfinite(s) for s in times.values())
