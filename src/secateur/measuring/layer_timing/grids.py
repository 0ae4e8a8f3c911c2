"""Which widths of which layers are timed for a network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import MIXING
from secateur.channels.traced import Traced
from secateur.channels.units import Indices, Unit
from secateur.measuring.layer_timing.blocks import Block, find_blocks
from secateur.measuring.layer_timing.completion import pairs_to_time
from secateur.measuring.layer_timing.widths import widths_to_time


@dataclass(frozen=True, eq=False)
class Grid:
    """A block and the widths to time it at."""

    block: Block
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]  # of a depthwise layer only all of them: they follow from the inputs
    selects: bool  # it may select its inputs from a stream
    outside: int  # positions of a channel, if its outputs are used outside of layers; otherwise 0

    @property
    def points(self) -> list[tuple[int, int]]:
        """The pairs of widths to time."""
        return pairs_to_time(self.inputs, self.outputs)


def find_grids(graph: ChannelGraph) -> list[Grid]:
    """The grids of a network's blocks, in the order of their calls."""
    selecting = {u.readers[0].module for u in graph.units.values() if u.kind == "stream" and graph.streams == "select"}
    return [_grid(graph, block, block.layer in selecting) for block in find_blocks(graph)]


def _grid(graph: ChannelGraph, block: Block, selects: bool) -> Grid:
    width, wide = block.widths
    readers = [(u, r.channels, r.inputs) for u in graph.units.values() for r in u.readers if r.module == block.layer]
    writers = [(u, w.channels, w.outputs) for u in graph.units.values() for w in u.writers if w.module == block.layer]
    if block.depthwise:
        passing = [u for u in graph.units.values() if u.width == width]
        inputs = widths_to_time(width) if passing else (width,)
        outputs: tuple[int, ...] = (wide,)
    else:
        inputs, outputs = _axis(readers, width, block.groups), _axis(writers, wide, block.groups)
    size = _positions(block) if _is_used_outside(graph.found.traced, block.last) else 0
    return Grid(block, inputs, outputs, selects, size)


def _axis(parts: Iterable[tuple[Unit, Indices, Indices]], width: int, groups: int) -> tuple[int, ...]:
    """Widths of one side of a layer. A side that is one unit has the widths of the unit; a frozen one is not cut."""
    found = list(parts)
    if not found:
        return (width,)
    unit, channels, places = found[0]
    if len(found) == 1 and len(channels) == unit.width and places.size == width:
        times = places.shape[1] * unit.granule
        return tuple(times * n for n in widths_to_time(unit.width // unit.granule))
    return tuple(groups * n for n in widths_to_time(width // groups))


def _positions(block: Block) -> int:
    shape = block.out_shape
    total = 1
    for size in shape[1:]:
        total *= int(size)
    return max(1, total // block.widths[1])


def _is_used_outside(traced: Traced, last: fx.Node | None) -> bool:
    """Whether anything but layers uses the value of a block."""
    users = () if last is None else last.users
    return any(u.op != "call_module" or not isinstance(traced.module(u), MIXING) for u in users)
