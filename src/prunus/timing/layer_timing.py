"""Measure a latency table: time what the user's cache folder does not hold yet, and keep it there."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn

from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.plan import Plan
from prunus.graph.traced import MIXING, Traced
from prunus.graph.units import Indices, Unit
from prunus.timing.engines import ENGINES, Engine
from prunus.timing.latency import placed, prepare, ready_to_time, repeated
from prunus.timing.latency_table import (
    LatencyTable,
    LayerTimes,
    MeasuredWith,
    Timings,
    measured_with,
    read_cache,
    widths_to_time,
    write_cache,
)
from prunus.timing.layer_blocks import Block, Run, Sum, find_blocks, is_shared, layer_sum, open_run, selection_sum
from prunus.timing.turns import Stopwatch, processor_time
from prunus.util.batches import device_of
from prunus.util.progress import Progress, shown, steps
from prunus.util.state import generators_kept

# How long layers take inside a network, from two whole networks: the unpruned one and a smaller one.

LEAST_DIFFERENCE = 0.1  # of the unpruned network's layers; a smaller one says nothing about the scale
LOWEST = 0.5  # smallest scale: layers do not take less than half of their time alone


def half_of_channels(graph: ChannelGraph) -> dict[str, tuple[int, ...]]:
    """Kept channels of the smaller network: half of each unit inside a block, or of each unit if all are streams."""
    inner = [unit for unit in graph.units.values() if unit.kind == "private"]
    keep = {}
    for unit in inner or graph.units.values():
        steps = unit.width // unit.granule
        half = min(widths_to_time(steps), key=lambda count: abs(count - steps / 2))
        blocks = [np.flatnonzero(unit.blocks == block)[:half] for block in np.unique(unit.blocks)]
        keep[unit.name] = sorted(int(channel) for block in blocks for channel in block)
    return graph.balance(keep)


def scale_inside(whole: tuple[float, float], layers: tuple[float, float], outside: float) -> float:
    """Seconds of a layer inside the network for each second alone.

    whole, layers: seconds of the unpruned and of the smaller network; outside: see above, for the smaller one.

    The two equations are solved for the scale. It is bounded, because times are never exact: with the highest scale
    nothing remains for what is not a layer. Networks that hardly differ say nothing; then the scale is 1, or less if
    the layers alone take longer than the network.
    """
    if not layers[0]:  # no layer was timed: all is remainder
        return 1.0
    highest = whole[0] / layers[0]
    difference = outside * layers[0] - layers[1]
    if difference < LEAST_DIFFERENCE * layers[0]:
        return min(1.0, highest)
    found = (outside * whole[0] - whole[1]) / difference
    return min(highest, max(LOWEST * min(1.0, highest), found))


# Which pairs of widths of a layer are timed, and how the others follow from them.

FEW = 30  # up to this number, all pairs are timed
COARSE = (0.25, 0.5, 0.75)  # widths of the coarse grid as shares of the whole width

Floats = npt.NDArray[np.float64]


def pairs_to_time(inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of widths that are timed, out of all pairs of these (ascending) widths."""
    if len(inputs) * len(outputs) <= FEW:
        return [(i, o) for i in inputs for o in outputs]
    cross = [*((i, outputs[-1]) for i in inputs), *((inputs[-1], o) for o in outputs[:-1])]
    inside = [(i, o) for i in coarse(inputs) for o in coarse(outputs)]
    return list(dict.fromkeys([*cross, *inside]))


def coarse(widths: Sequence[int]) -> list[int]:
    """The widths of the coarse grid, ascending: multiples of 4 near a quarter, a half and three quarters; an odd width
    near the half; and the whole. Widths without multiples of 4 have fewer."""
    chosen = {widths[-1]}
    for shares, fits in ((COARSE, _is_aligned), (COARSE[1:2], _is_odd)):
        among = [n for n in widths[:-1] if fits(n)]
        chosen |= {min(among, key=lambda n: abs(n - share * widths[-1])) for share in shares if among}
    return sorted(chosen)


def complete(inputs: Sequence[int], outputs: Sequence[int], timed: Mapping[tuple[int, int], float]) -> Floats:
    """Seconds [inputs, outputs] from the times of the pairs that `pairs_to_time` names."""
    if all((i, o) in timed for i in inputs for o in outputs):
        return np.array([[timed[i, o] for o in outputs] for i in inputs])
    across = np.array([timed[i, outputs[-1]] for i in inputs])
    down = np.array([timed[inputs[-1], o] for o in outputs])
    grid = np.outer(across, down) / across[-1]
    rows, columns = coarse(inputs), coarse(outputs)
    product = grid[np.ix_([inputs.index(i) for i in rows], [outputs.index(o) for o in columns])]
    correction = np.array([[timed[i, o] for o in columns] for i in rows]) / product
    whole: Floats = grid * (_between(inputs, rows) @ correction @ _between(outputs, columns).T)
    return whole


def _between(widths: Sequence[int], rough: Sequence[int]) -> Floats:
    """Shares of the coarse widths in the correction at each width [widths, coarse]; each row sums to 1.

    A multiple of 4 lies between coarse multiples of 4 and the whole width. Other widths are like the odd coarse width.
    """
    found = np.zeros((len(widths), len(rough)))
    odd = [place for place, n in enumerate(rough[:-1]) if _is_odd(n)]
    aligned = [place for place in range(len(rough)) if place not in odd]
    for row, width in zip(found, widths, strict=True):
        if width == rough[-1] or _is_aligned(width) or not odd:
            row[aligned] = [
                np.interp(width, [rough[p] for p in aligned], np.eye(len(aligned))[k]) for k in range(len(aligned))
            ]
        else:
            row[odd[0]] = 1.0
    return found


def _is_aligned(width: int) -> bool:
    return width % 4 == 0


def _is_odd(width: int) -> bool:
    return width % 2 == 1


# Which widths of which layers are timed for a network.


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
    size = _positions(block) if _is_used_outside(graph.analysis.traced, block.last) else 0
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


BATCH = 64
WHOLE_ROUNDS = 5  # of the whole network, before its layers are timed; it runs once more after each of them
FEWEST, MOST = 3, 6  # rounds of a layer
REPEATS = 2  # calls of a layer in each round
ENOUGH = 0.01  # seconds that the rounds of a layer take together, unless they are more than MOST
LONGEST = 0.01  # longest run of a convolution in seconds; slower ones are timed on fewer images
TOGETHER = 16  # runs that take turns
LEAST = 1e-9  # seconds; a difference of two times can come out negative
WHOLE = ("whole", "half")  # the two networks that are timed as a whole


def latency_table(
    graph: ChannelGraph,
    engine: str = "eager",
    batch: int = BATCH,
    threads: int | None = None,
    *,
    progress: Progress | bool | None = None,
) -> LatencyTable:
    """The latency table of a network in an engine on this machine.

    threads: number of CPU threads; PyTorch's current number if not given. With one thread, processor time is measured,
        so other programs matter little. Otherwise the machine should be quiet.

    Times that are in the user's cache folder (see `cache_folder`) are used; the others are measured and kept there. So
    a second call is quick, and one that was interrupted goes on where it stopped.
    """
    if batch < 1 or (threads is not None and threads < 1):
        raise RunError(f"expected a batch and threads of at least 1, got {batch} and {threads}")
    chosen = ENGINES.find(engine)
    chosen.check_installed()
    with ready_to_time([graph.model], threads), generators_kept(0):
        grids = find_grids(graph)
        found = _measure(graph, grids, chosen, batch, progress)
        if chosen.times_layers:
            return _table(graph, grids, found, found)
        return _table(graph, grids, _measure(graph, grids, ENGINES.find("eager"), batch, progress), found)


@dataclass(eq=False)
class _Measured:
    """Timings of one engine: those that are known, and the means to measure more."""

    engine: Engine
    setting: MeasuredWith
    device: torch.device
    known: Timings
    own: Timings = field(default_factory=dict)  # of layers that no other network has; not kept
    whole: tuple[float, float] = (math.nan, math.nan)  # of the unpruned network and of the smaller one

    def of(self, kind: str) -> dict[str, float]:
        """Timings of a kind: widths as text -> seconds."""
        return (self.known if is_shared(kind) else self.own).setdefault(kind, {})

    def keep(self) -> None:
        """Write all timings that other networks can use."""
        write_cache(self.setting, self.known)

    @cached_property
    def stopwatch(self) -> Stopwatch:
        """Times calls in the engine."""
        threads = self.setting.threads
        cpu_time = processor_time(self.device, threads)
        return Stopwatch(self.engine, self.device, threads, cpu_time, self.known.setdefault("reference", {}))


def _measure(
    graph: ChannelGraph, grids: Sequence[Grid], engine: Engine, batch: int, progress: Progress | bool | None
) -> _Measured:
    threads = torch.get_num_threads()
    device = torch.device("cpu") if engine.open_onnx is not None else device_of(graph.model)
    setting = measured_with(engine, device, batch, threads)
    found = _Measured(engine, setting, device, read_cache(setting))
    whole = found.of(_network_kind(graph, grids))
    jobs = list(_jobs(found, grids)) if engine.times_layers else []
    if jobs or not all(name in whole for name in WHOLE):
        runs = [_whole_run(model, graph, engine, batch) for model in _whole_networks(graph)]
        took = [found.stopwatch.seconds(runs, WHOLE_ROUNDS, 1)]
        with shown(progress, steps(f"timing layers in {engine.name}")) as report:
            total = sum(len(job.sums) for job in jobs)
            done = 0
            report(done, total)
            for job in jobs:
                for part in job.measured(found):
                    found.of(job.kind).update(part)
                    done += len(part)
                    report(done, total)
                took.append(found.stopwatch.seconds(runs, 1, 1))
                found.keep()
        whole.update(zip(WHOLE, map(statistics.median, zip(*took, strict=True)), strict=True))
        found.keep()
    found.whole = (whole[WHOLE[0]], whole[WHOLE[1]])
    return found


@dataclass(frozen=True, eq=False)
class _Job:
    """Times of one kind that are not known yet."""

    kind: str
    block: Block
    sums: dict[str, Sum]  # widths as text -> what is to be measured

    def measured(self, found: _Measured) -> Iterator[dict[str, float]]:
        """Seconds of some of the sums at a time."""
        threads, batch = found.setting.threads, found.setting.batch
        watch = found.stopwatch

        def opened(run: Run, images: int) -> Callable[[], Any]:
            return open_run(found.engine, self.block, run, images, found.device, threads)

        longest = max((run for s in self.sums.values() for run in s.plus), key=lambda run: (run.inputs, run.outputs))
        trial = watch.trial(opened(longest, batch))
        images = batch if len(self.block.in_shape) == 2 else max(1, min(batch, int(batch * LONGEST / trial)))
        rounds = max(FEWEST, min(MOST, math.ceil(ENOUGH / REPEATS / trial)))
        names = list(self.sums)
        for start in range(0, len(names), TOGETHER):
            part = {name: self.sums[name] for name in names[start : start + TOGETHER]}
            runs = list(dict.fromkeys(run for s in part.values() for run in (*s.plus, *s.minus)))
            took = watch.seconds([opened(run, images) for run in runs], rounds, REPEATS)
            seconds = dict(zip(runs, took, strict=True))
            yield {name: batch / images * _value(total, seconds) for name, total in part.items()}


def _value(total: Sum, seconds: dict[Run, float]) -> float:
    return max(LEAST, sum(seconds[run] for run in total.plus) - sum(seconds[run] for run in total.minus))


def _jobs(found: _Measured, grids: Sequence[Grid]) -> Iterator[_Job]:
    """What is not known yet, each kind once."""
    wanted: dict[tuple[str, tuple[int, int]], _Job] = {}
    for grid in grids:
        block = grid.block
        sums = {f"{i}->{o}": layer_sum(found.engine, block, i, o) for i, o in grid.points}
        chosen = {str(i): selection_sum(found.engine, block, i) for i in _selected(grid)}
        for kind, asked in ((_timed_kind(found.engine, block), sums), (_selection_kind(block), chosen)):
            known = found.of(kind)
            missing = {name: total for name, total in asked.items() if name not in known}
            if missing:
                job = wanted.setdefault((kind, block.widths), _Job(kind, block, {}))
                job.sums.update(missing)
    yield from wanted.values()


def _selected(grid: Grid) -> tuple[int, ...]:
    """Numbers of inputs that may be selected. A layer that reads all of a stream selects nothing."""
    return grid.inputs[:-1] if grid.selects else ()


def _timed_kind(engine: Engine, block: Block) -> str:
    return block.kind if engine.open_onnx is None else block.fused_kind


def _selection_kind(block: Block) -> str:
    area = "x".join(map(str, block.in_shape[1:-1] if block.axis > 1 else block.in_shape[2:]))
    return f"Select {area} of {block.widths[0]} {next(block.modules.parameters()).dtype}"


def _table(graph: ChannelGraph, grids: Sequence[Grid], inside: _Measured, found: _Measured) -> LatencyTable:
    """The table of the times of layers in `inside`, calibrated on the whole networks in `found`."""
    layers: dict[str, tuple[str, ...]] = {}
    times: dict[str, LayerTimes] = {}
    outside: dict[str, int] = {}
    for grid in grids:
        name = grid.block.layer
        layers[name] = (*layers.get(name, ()), grid.block.kind)
        one = _layer_times(grid, inside)
        times[name] = one if name not in times else times[name].plus(one)
        if grid.outside:
            outside[name] = outside.get(name, 0) + grid.outside
    alone = LatencyTable(found.setting, layers, times, found.whole[0], 0.0, outside)
    half = half_of_channels(graph)
    sums = (sum(alone.by_layer(graph).values()), sum(alone.by_layer(graph, half).values()))
    scale = scale_inside(found.whole, sums, alone.outside_share(graph, half))
    scaled = {name: one.mapped(lambda seconds: scale * seconds) for name, one in times.items()}
    return replace(alone, times=scaled, remainder=max(0.0, found.whole[0] - scale * sums[0]))


def _layer_times(grid: Grid, found: _Measured) -> LayerTimes:
    known, chosen = found.of(_timed_kind(found.engine, grid.block)), found.of(_selection_kind(grid.block))
    timed = {(i, o): known[f"{i}->{o}"] for i, o in grid.points}
    seconds = tuple(tuple(row) for row in complete(grid.inputs, grid.outputs, timed).tolist())
    selecting = (*(chosen[str(i)] for i in _selected(grid)), 0.0) if grid.selects else ()
    return LayerTimes(grid.inputs, grid.outputs, seconds, selecting)


def _whole_networks(graph: ChannelGraph) -> tuple[nn.Module, nn.Module]:
    """The unpruned network and the smaller one."""
    return graph.model, prune(graph, Plan.of(graph, half_of_channels(graph)), check=False)


def _whole_run(model: nn.Module, graph: ChannelGraph, engine: Engine, batch: int) -> Callable[[], Any]:
    prepared = prepare(model, engine.name, graph.example, [batch])
    return partial(prepared.run, placed(repeated(graph.example, batch), prepared.device))


def _network_kind(graph: ChannelGraph, grids: Sequence[Grid]) -> str:
    """What the times of the whole networks depend on: calls, shapes, and what the smaller one keeps.

    They are not kept if a layer is not shared.
    """
    traced = graph.analysis.traced
    calls = [
        (n.op, getattr(n.target, "__name__", str(n.target)), str(traced.shapes.get(n.name))) for n in traced.graph.nodes
    ]
    kinds = [(grid.block.layer, grid.block.kind) for grid in grids]
    modules = [(name, repr(module)) for name, module in traced.modules.items()]
    half = {name: len(kept) for name, kept in half_of_channels(graph).items()}
    about = (type(graph.model).__qualname__, calls, kinds, modules, half)
    mark = hashlib.sha256(repr(about).encode()).hexdigest()[:16]
    shared = all(is_shared(grid.block.kind) for grid in grids)
    return f"network {mark}" if shared else f"network {mark} layer {grids[0].block.layer}"
