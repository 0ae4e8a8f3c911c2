"""Measure a latency table: time what the user's cache folder does not hold yet, and keep it there.

Layers are timed alone, at many widths, in small programs. A layer takes longer inside a network (caches), so the times
are calibrated on two whole networks, the unpruned one and one with half of the channels:

    whole = scale x layers + remainder,    half = scale x layers of half + share of outside x remainder.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from prunus.errors import RunError
from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.plan import Plan
from prunus.graph.traced import MIXING
from prunus.graph.units import Indices, Unit
from prunus.timing.engines import ENGINES, Engine, SelectionForm
from prunus.timing.latency import prepare, processor_time, ready_to_time, repeated, take_turns
from prunus.timing.latency_table import (
    LatencyTable,
    LayerTimes,
    MeasuredWith,
    TimingCache,
    Timings,
    machine_of,
    rows_of,
    widths_to_time,
)
from prunus.timing.layer_blocks import Block, Run, Sum, find_blocks, is_shared, onnx_graph, torch_run
from prunus.util.batches import device_of, to_device
from prunus.util.progress import Progress, shown, steps
from prunus.util.state import generators_kept

Floats = npt.NDArray[np.float64]
Call = Callable[[], Any]

BATCH = 64
WHOLE = ("whole", "half")  # the two networks that are timed as a whole
WHOLE_ROUNDS = 5  # of the whole networks, before layers are timed; they run once more after each kind of layer
FEWEST, MOST = 3, 6  # rounds of a layer
REPEATS = 2  # calls of a layer in each round
ENOUGH = 0.01  # seconds that the rounds of a layer take together, unless they are more than MOST
LONGEST = 0.01  # longest run of a convolution in seconds; slower ones are timed on fewer images
TOGETHER = 16  # runs that take turns
SMALLEST = 1e-9  # seconds; a difference of two times can come out negative
LEAST_DIFFERENCE = 0.1  # of the two whole networks' layers; a smaller one says nothing about the scale
LOWEST_SCALE = 0.5  # layers do not take less than half of their time alone
ALL_PAIRS = 30  # up to this number, all pairs of widths of a layer are timed
COARSE = (0.25, 0.5, 0.75)  # widths of the coarse grid as shares of the whole width


def latency_table(
    graph: ChannelGraph,
    engine: str = "eager",
    batch: int = BATCH,
    threads: int | None = None,
    *,
    progress: Progress | bool | None = None,
) -> LatencyTable:
    """The latency table of a network in an engine on this machine.

    Times that are in the user's cache folder (see `cache_folder`) are used; the others are measured and kept there. So
    a second call is quick, and one that was interrupted goes on where it stopped.

    Args:
        graph: The traced network.
        engine: Name of the engine.
        batch: Images in a batch.
        threads: Number of CPU threads; PyTorch's current number if not given. With one thread, processor time is
            measured, so other programs matter little. Otherwise the machine should be quiet.
        progress: False shows nothing; a function is called with the runs done and their number.
    """
    if batch < 1 or (threads is not None and threads < 1):
        raise RunError(f"expected a batch and threads of at least 1, got {batch} and {threads}")
    chosen = ENGINES.find(engine)
    chosen.check_installed()
    with ready_to_time([graph.model], threads), generators_kept(0):
        grids = find_grids(graph)
        networks = _measure(graph, grids, chosen, batch, progress)
        layers = networks
        if chosen.layers_in:
            layers = _measure(graph, grids, ENGINES.find(chosen.layers_in), batch, progress, chosen.selection)
        return _calibrated_table(graph, grids, layers, networks)


def _calibrated_table(graph: ChannelGraph, grids: Sequence[Grid], layers: Timer, networks: Timer) -> LatencyTable:
    times: dict[str, LayerTimes] = {}
    for grid in grids:
        timed, selections = (layers.of(kind) for kind in layers.kinds(grid.block))
        seconds = complete(grid.inputs, grid.outputs, {(i, o): timed[f"{i}->{o}"] for i, o in grid.points})
        selecting = (*(selections[str(i)] for i in grid.selected), 0.0) if grid.selects else ()
        one = LayerTimes((grid.block.kind,), grid.inputs, grid.outputs, rows_of(seconds), selecting, grid.outside)
        name = grid.block.layer
        times[name] = times[name].plus(one) if name in times else one
    alone = LatencyTable(networks.cache.setting, networks.whole[0], 0.0, times)
    half = half_of_channels(graph)
    sums = (sum(alone.by_layer(graph).values()), sum(alone.by_layer(graph, half).values()))
    scale = scale_inside(networks.whole, sums, alone.outside_share(graph, half))
    scaled = {name: one.scaled(scale) for name, one in times.items()}
    return replace(alone, layers=scaled, remainder=max(0.0, networks.whole[0] - scale * sums[0]))


def half_of_channels(graph: ChannelGraph) -> dict[str, tuple[int, ...]]:
    """Kept channels of the smaller network: half of each unit inside a block, or of each unit if all are streams."""
    inner = [unit for unit in graph.units.values() if unit.kind == "private"]
    keep = {}
    for unit in inner or graph.units.values():
        granules = unit.width // unit.granule
        half = min(widths_to_time(granules), key=lambda count: abs(count - granules / 2))
        blocks = [np.flatnonzero(unit.blocks == block)[:half] for block in np.unique(unit.blocks)]
        keep[unit.name] = sorted(int(channel) for block in blocks for channel in block)
    return graph.balance(keep)


def scale_inside(whole: tuple[float, float], layers: tuple[float, float], outside: float) -> float:
    """Seconds of a layer inside the network for each second alone: the two equations above, solved for the scale.

    It is bounded, because times are never exact: with the highest scale nothing remains for what is not a layer.
    Networks that hardly differ say nothing; then the scale is 1, or less if the layers alone take longer than the
    network. `layers` are seconds of layers timed alone, and `outside` is the smaller network's share of the rest.
    """
    if not layers[0]:  # no layer was timed: all is remainder
        return 1.0
    highest = whole[0] / layers[0]
    difference = outside * layers[0] - layers[1]
    if difference < LEAST_DIFFERENCE * layers[0]:
        return min(1.0, highest)
    scale = (outside * whole[0] - whole[1]) / difference
    return min(highest, max(LOWEST_SCALE * min(1.0, highest), scale))


# -- which widths of which layers are timed


def pairs_to_time(inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
    """The pairs of widths that are timed, out of all pairs of these (ascending) widths."""
    if len(inputs) * len(outputs) <= ALL_PAIRS:
        return [(i, o) for i in inputs for o in outputs]
    cross = [*((i, outputs[-1]) for i in inputs), *((inputs[-1], o) for o in outputs[:-1])]
    inside = [(i, o) for i in coarse(inputs) for o in coarse(outputs)]
    return list(dict.fromkeys([*cross, *inside]))


def coarse(widths: Sequence[int]) -> list[int]:
    """The widths of the coarse grid, ascending: multiples of 4 near a quarter, a half and three quarters; an odd width
    near the half; and the whole. Widths without multiples of 4 have fewer."""
    chosen = {widths[-1]}
    for shares, among in (
        (COARSE, [n for n in widths[:-1] if n % 4 == 0]),
        (COARSE[1:2], [n for n in widths[:-1] if n % 2 == 1]),
    ):
        chosen |= {min(among, key=lambda n: abs(n - share * widths[-1])) for share in shares if among}
    return sorted(chosen)


def complete(inputs: Sequence[int], outputs: Sequence[int], timed: Mapping[tuple[int, int], float]) -> Floats:
    """Seconds [inputs, outputs] from the times of the pairs that `pairs_to_time` names.

    The product of the two edges of the grid, corrected by what was timed inside.
    """
    if all((i, o) in timed for i in inputs for o in outputs):
        return np.array([[timed[i, o] for o in outputs] for i in inputs])
    across = np.array([timed[i, outputs[-1]] for i in inputs])
    down = np.array([timed[inputs[-1], o] for o in outputs])
    grid = np.outer(across, down) / across[-1]
    rows, columns = coarse(inputs), coarse(outputs)
    product = grid[np.ix_([inputs.index(i) for i in rows], [outputs.index(o) for o in columns])]
    correction = np.array([[timed[i, o] for o in columns] for i in rows]) / product
    completed: Floats = grid * (_between(inputs, rows) @ correction @ _between(outputs, columns).T)
    return completed


def _between(widths: Sequence[int], rough: Sequence[int]) -> Floats:
    """Shares of the coarse widths in the correction at each width [widths, coarse]; each row sums to 1.

    A multiple of 4 lies between coarse multiples of 4 and the whole width. Other widths are like the odd coarse width.
    """
    weights = np.zeros((len(widths), len(rough)))
    odd = [place for place, n in enumerate(rough[:-1]) if n % 2 == 1]
    aligned = [place for place in range(len(rough)) if place not in odd]
    points = [rough[place] for place in aligned]
    for row, width in zip(weights, widths, strict=True):
        if width == rough[-1] or width % 4 == 0 or not odd:
            row[aligned] = [np.interp(width, points, unit) for unit in np.eye(len(aligned))]
        else:
            row[odd[0]] = 1.0
    return weights


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
        return pairs_to_time(self.inputs, self.outputs)

    @property
    def selected(self) -> tuple[int, ...]:
        """Numbers of inputs that may be selected. A layer that reads all of a stream selects nothing."""
        return self.inputs[:-1] if self.selects else ()


def find_grids(graph: ChannelGraph) -> list[Grid]:
    """The grids of a network's blocks, in the order of their calls."""
    units, traced = graph.units.values(), graph.analysis.traced
    selecting = {u.readers[0].module for u in units if u.kind == "stream" and graph.streams == "select"}
    grids = []
    for block in find_blocks(graph):
        width, wide = block.widths
        if block.depthwise:
            inputs = widths_to_time(width) if any(unit.width == width for unit in units) else (width,)
            outputs: tuple[int, ...] = (wide,)
        else:
            readers = [(u, r.channels, r.inputs) for u in units for r in u.readers if r.module == block.layer]
            writers = [(u, w.channels, w.outputs) for u in units for w in u.writers if w.module == block.layer]
            inputs, outputs = _axis(readers, width, block.groups), _axis(writers, wide, block.groups)
        users = () if block.last is None else block.last.users
        is_used_outside = any(u.op != "call_module" or not isinstance(traced.module(u), MIXING) for u in users)
        positions = max(1, math.prod(block.out_shape[1:]) // wide)
        grids.append(Grid(block, inputs, outputs, block.layer in selecting, positions if is_used_outside else 0))
    return grids


def _axis(parts: Sequence[tuple[Unit, Indices, Indices]], width: int, groups: int) -> tuple[int, ...]:
    """Widths of one side of a layer. A side that is one unit has the widths of the unit; a frozen one is not cut."""
    if not parts:
        return (width,)
    unit, channels, places = parts[0]
    if len(parts) == 1 and len(channels) == unit.width and places.size == width:
        times = places.shape[1] * unit.granule
        return tuple(times * n for n in widths_to_time(unit.width // unit.granule))
    return tuple(groups * n for n in widths_to_time(width // groups))


# -- timing


@dataclass(eq=False)
class Timer:
    """Times of one engine: those that are known, and a clock that measures more.

    The speed of a machine changes, so calls are timed relative to a reference that runs in between. The usual time of
    the reference is kept with the others.
    """

    engine: Engine
    device: torch.device
    cache: TimingCache
    form: SelectionForm = "gather"  # of the selections that are timed
    unshared: Timings = field(default_factory=dict)  # of layers that no other network has; not kept
    whole: tuple[float, float] = (math.nan, math.nan)  # of the unpruned network and of the smaller one

    def of(self, kind: str) -> dict[str, float]:
        """Times of a kind: widths as text -> seconds."""
        return (self.cache.timings if is_shared(kind) else self.unshared).setdefault(kind, {})

    def kinds(self, block: Block) -> tuple[str, str]:
        """The kinds of times of a block, and of the selection of its inputs."""
        area = "x".join(map(str, block.in_shape[1:-1] if block.axis > 1 else block.in_shape[2:]))
        how = "Select" if self.form == "gather" else f"Select by {self.form}"
        selection = f"{how} {area} of {block.widths[0]} {next(block.modules.parameters()).dtype}"
        return block.kind if self.engine.open_onnx is None else block.fused_kind, selection

    def open(self, block: Block, runs: Sequence[Run], images: int) -> list[Call]:
        """Functions that perform a run once, on random images."""
        if self.engine.open_onnx is None:
            return [torch_run(block, run, images, self.device) for run in runs]
        graphs = [onnx_graph(block, run, images, self.form) for run in runs]
        draw = np.random.default_rng(0)
        inputs = [draw.standard_normal(shape).astype(np.float32) for _, shape in graphs]
        programs = self.engine.open_all([model for model, _ in graphs], self.cache.setting.threads)
        return [partial(program.run, [x]) for program, x in zip(programs, inputs, strict=True)]

    def seconds(self, calls: Sequence[Call], rounds: int, repeats: int) -> list[float]:
        """Seconds of each call. In each round a call runs once untimed, and then `repeats` times."""
        took = self._turns([self._reference, *calls], rounds, repeats)
        pace = [max(SMALLEST, min(took[0][n * repeats : (n + 1) * repeats])) for n in range(rounds)]
        known = self.of("reference")
        if "seconds" not in known:
            known["seconds"] = max(SMALLEST, statistics.median(self._turns([self._reference], 15, 1)[0]))
        usual = known["seconds"]
        return [usual * statistics.median(t / pace[n // repeats] for n, t in enumerate(times)) for times in took[1:]]

    def measured(self, block: Block, sums: Mapping[str, Sum]) -> Iterator[dict[str, float]]:
        """Seconds of some of the sums at a time."""
        batch = self.cache.setting.batch
        added = [run for total in sums.values() for run, sign in total.items() if sign > 0]
        longest = max(added, key=lambda run: (run.inputs, run.outputs))
        about = max(SMALLEST, min(self._turns(self.open(block, [longest], batch), 1, 2)[0]))
        images = batch if len(block.in_shape) == 2 else max(1, min(batch, int(batch * LONGEST / about)))
        rounds = max(FEWEST, min(MOST, math.ceil(ENOUGH / REPEATS / about)))
        names = list(sums)
        for start in range(0, len(names), TOGETHER):
            part = {name: sums[name] for name in names[start : start + TOGETHER]}
            runs = list(dict.fromkeys(run for total in part.values() for run in total))
            took = dict(zip(runs, self.seconds(self.open(block, runs, images), rounds, REPEATS), strict=True))
            yield {
                name: batch / images * max(SMALLEST, sum(sign * took[run] for run, sign in total.items()))
                for name, total in part.items()
            }

    def _turns(self, calls: Sequence[Call], rounds: int, repeats: int) -> list[list[float]]:
        cpu_time = processor_time(self.device, self.cache.setting.threads)
        devices = [self.device] * len(calls)
        return take_turns(calls, devices, warmup=0, rounds=rounds, repeats=repeats, cpu_time=cpu_time)

    @cached_property
    def _reference(self) -> Call:
        width, side = 64, 14
        layer = nn.Sequential(nn.Conv2d(width, width, 3, padding=1)).eval()
        shape = torch.Size((1, width, side, side))
        block = Block("reference", "reference", layer.to(self.device), shape, shape, first=True, last=None)
        return self.open(block, [Run("block", width, width)], 8)[0]


def _measure(
    graph: ChannelGraph,
    grids: Sequence[Grid],
    engine: Engine,
    batch: int,
    progress: Progress | bool | None,
    form: SelectionForm | None = None,
) -> Timer:
    """The times of an engine. What is not known yet is measured, and kept after each kind of layer."""
    device = torch.device("cpu") if engine.open_onnx is not None else device_of(graph.model)
    versions, threads = (version(engine.package), torch.__version__), torch.get_num_threads()
    setting = MeasuredWith(engine.name, *versions, *machine_of(device), threads, batch)
    timer = Timer(engine, device, TimingCache.open(setting), form or engine.selection)
    whole = timer.of(_network_kind(graph, grids))
    jobs = {} if engine.layers_in else _missing(timer, grids)
    if jobs or not all(name in whole for name in WHOLE):
        half = prune(graph, Plan.of(graph, half_of_channels(graph)), check=False)
        images, runs = repeated(graph.example, batch), list[Call]()
        for model in (graph.model, half):
            prepared = prepare(model, engine.name, graph.example, [batch])
            runs.append(partial(prepared.run, to_device(images, prepared.device)))
        took = [timer.seconds(runs, WHOLE_ROUNDS, 1)]
        with shown(progress, steps(f"timing layers in {engine.name}")) as report:
            done, total = 0, sum(len(sums) for _, sums in jobs.values())
            report(done, total)
            for (kind, _), (block, sums) in jobs.items():
                for part in timer.measured(block, sums):
                    timer.of(kind).update(part)
                    done += len(part)
                    report(done, total)
                took.append(timer.seconds(runs, 1, 1))
                timer.cache.save()
        whole.update(zip(WHOLE, map(statistics.median, zip(*took, strict=True)), strict=True))
        timer.cache.save()
    timer.whole = (whole[WHOLE[0]], whole[WHOLE[1]])
    return timer


def _missing(timer: Timer, grids: Iterable[Grid]) -> dict[tuple[str, tuple[int, int]], tuple[Block, dict[str, Sum]]]:
    """(kind, widths) -> a block of it, and what is not known yet of the kind: widths as text -> how it is measured."""
    jobs: dict[tuple[str, tuple[int, int]], tuple[Block, dict[str, Sum]]] = {}
    for grid in grids:
        block = grid.block
        layers: dict[str, Sum] = {f"{i}->{o}": {Run("block", i, o): 1} for i, o in grid.points}
        selections: dict[str, Sum] = {str(i): {Run("selection", i): 1} for i in grid.selected}
        if timer.engine.open_onnx is not None and block.has_before:  # without what comes before it
            for i, o in grid.points:
                layers[f"{i}->{o}"][Run("before", i)] = -1
            for i in grid.selected:
                others = {Run("before", i): 1, Run("before", block.widths[0]): -1, Run("reading", i): -1}
                selections[str(i)].update(others)
        for kind, wanted in zip(timer.kinds(block), (layers, selections), strict=True):
            missing = {name: total for name, total in wanted.items() if name not in timer.of(kind)}
            if missing:
                jobs.setdefault((kind, block.widths), (block, {}))[1].update(missing)
    return jobs


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
