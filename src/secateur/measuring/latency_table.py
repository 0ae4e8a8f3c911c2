"""Latency tables: seconds of every layer of a network at many widths, in one engine on one machine.

    table = latency_table(graph, engine="onnxruntime", batch=64, threads=1)    # secateur.measuring.layer_timing.measure
    table.predict(graph, keep)     seconds per batch if each unit keeps these channels
    table.by_layer(graph, keep)    the same, layer by layer
    table.widths(graph)            unit -> numbers of channels at which its layers were timed

A layer is timed with its batch norm and its activation, as the engine runs them, and scaled to its time inside the
network (`secateur.measuring.layer_timing.calibration`). What is not a layer (additions, pooling, overhead) is the
remainder: the measured time of the whole network minus the sum of its layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from secateur.base.atomic_files import write_atomically
from secateur.base.parsing import versioned_object
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.units import Keep
from secateur.errors import FileError, RunError
from secateur.measuring.layer_timing.blocks import find_blocks
from secateur.measuring.layer_timing.layer_times import LayerTimes
from secateur.measuring.layer_timing.machine import MeasuredWith

FORMAT = "secateur-latency-table"
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


_REMEDY = "measure this network: secateur latency MODEL --out table.json"


def open_table(path: str | Path, graph: ChannelGraph) -> LatencyTable:
    """Read a table that `secateur latency --out` wrote, here or on another machine, and check that it fits the network.

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
