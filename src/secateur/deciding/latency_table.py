"""Cost as measured time: a table of layer timings, so that equal measured time is compared, not equal MACs.

Kernels work on 8 or 16 channels at a time, so time is not a smooth function of width: a convolution with 10 outputs
often takes as long as one with 16. So each layer, with the batch norm right after it, is timed at many widths of its
inputs and outputs: at multiples of 8, or at eighths of its width if that is more. Between these widths time is
interpolated linearly, so that one channel is worth its share of a step. A layer that selects its inputs from a stream
is charged for that as well.

Use cost="latency" with round_to=8, so that decisions fall on widths that were timed.

Layers of the same kind and shape are timed once, on their own input shape, on the device of the model, in turns. The
shortest time counts, because other work on the machine only adds to it.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn

from secateur.base.batches import device_of
from secateur.base.preserve_state import generators_kept
from secateur.channels import layer_surgery
from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import is_depthwise
from secateur.channels.selection import selection_of, unselect
from secateur.channels.units import Indices, Keep

ROUNDS = 5
BATCH = 16
STEP = 8  # smallest number of channels between timed widths
LEVELS = 8  # approximate number of timed widths of a wide layer
LONGEST = 0.01  # longest run of a layer in seconds; slower layers are timed on fewer images

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerTime:
    """Seconds of a layer at the widths that were timed. A narrower layer never takes longer."""

    inputs: tuple[int, ...]  # ascending
    outputs: tuple[int, ...]
    seconds: Floats  # [inputs, outputs]
    selecting: Floats  # [inputs, outputs] the same, if the inputs are selected from a wider stream

    def at(self, inputs: int, outputs: int, *, selects: bool = False) -> float:
        """Seconds for these numbers of inputs and outputs, linear between timed widths."""
        table = self.selecting if selects else self.seconds
        rows = [np.interp(outputs, self.outputs, row) for row in table]
        return float(np.interp(inputs, self.inputs, rows))


def layer_time(inputs: Sequence[int], outputs: Sequence[int], seconds: Floats, select: Sequence[float]) -> LayerTime:
    """A table from timings [inputs, outputs] and from the seconds that selecting the inputs takes.

    If a layer takes longer than a wider one, this is noise, or a slow kernel that the wider layer does not use.
    """
    extra = np.append(np.asarray(select)[:-1], 0.0)  # a layer that reads all channels selects nothing
    return LayerTime(tuple(inputs), tuple(outputs), _monotone(seconds), _monotone(seconds + extra[:, None]))


def _monotone(table: Floats) -> Floats:
    """Each entry becomes the minimum of all entries that are at least as wide, in both directions."""
    for axis in (0, 1):
        table = np.flip(np.minimum.accumulate(np.flip(table, axis), axis), axis)
    return table


def layer_times(graph: ChannelGraph, batch: int = BATCH, rounds: int = ROUNDS) -> dict[str, LayerTime]:
    """Time every conv and linear layer of the network at many widths."""
    traced = graph.found.traced
    table: dict[str, LayerTime] = {}
    alike: dict[tuple[str, ...], LayerTime] = {}
    with torch.no_grad(), generators_kept(0):
        for node in traced.graph.nodes:
            name = str(node.target)
            if node.op != "call_module" or name not in graph.layers or name in table:
                continue
            block = _block(graph, node)
            shape = traced.shapes[node.all_input_nodes[0].name]
            kind = (repr(block), str(shape), str(next(block.parameters()).dtype))
            if kind not in alike:
                alike[kind] = _time(block, shape, batch, rounds, device_of(graph.model))
            table[name] = alike[kind]
    return table


def measured_cost(graph: ChannelGraph, batch: int = BATCH, rounds: int = ROUNDS) -> Callable[[Keep], float]:
    """Cost of kept channels in seconds per batch, from a table that is measured once, now."""
    table = layer_times(graph, batch, rounds)
    at = functools.cache(lambda name, *widths, selects: table[name].at(*widths, selects=selects))

    def latency(keep: Keep) -> float:
        cost = graph.cost(keep)
        selecting = _selecting(graph, keep)
        return float(sum(at(n, cost.layers[n].inputs, cost.layers[n].outputs, selects=n in selecting) for n in table))

    return latency


def _selecting(graph: ChannelGraph, keep: Keep) -> set[str]:
    """Layers that read a part of a stream."""
    if graph.streams == "coupled":
        return set()
    streams = (graph.units[n] for n, kept in keep.items() if len(kept) < graph.units[n].width)
    return {unit.readers[0].module for unit in streams if unit.kind == "stream"}


def _block(graph: ChannelGraph, node: fx.Node) -> nn.Sequential:
    """A copy of a layer, and of the batch norm after it if nothing else reads the layer."""
    traced = graph.found.traced
    parts = [traced.module(node)]
    behind = next(iter(node.users)) if len(node.users) == 1 else None
    if behind is not None and behind.op == "call_module":
        norm = traced.module(behind)
        if isinstance(norm, nn.modules.batchnorm._BatchNorm) and selection_of(norm) is None:
            parts.append(norm)
    block = nn.Sequential(*(copy.deepcopy(part) for part in parts)).eval()
    unselect(block[0])
    return block


def _time(block: nn.Sequential, shape: torch.Size, batch: int, rounds: int, device: torch.device) -> LayerTime:
    layer = block[0]
    axis = len(shape) - 1 if isinstance(layer, nn.Linear) else 1
    size = [batch, *shape[1:]]
    size[axis] = _widths(layer)[0]
    x = torch.randn(size, device=device, dtype=next(layer.parameters()).dtype)
    whole = _least([lambda: block(x)], 2)[0]
    x = x[: max(1, min(batch, int(batch * LONGEST / whole)))]
    inputs, outputs = _levels(layer)
    runs: list[Callable[[], Tensor]] = []
    for kept in inputs:
        narrow = x.narrow(axis, 0, len(kept)).contiguous()
        runs += [functools.partial(_cut(block, kept, made), narrow) for made in outputs]
    indices = [torch.from_numpy(kept).to(device) for kept in inputs]
    runs += [functools.partial(x.index_select, axis, index) for index in indices]
    images = batch / len(x)
    seconds = images * np.array(_least(runs, rounds))
    grid = seconds[: len(inputs) * len(outputs)].reshape(len(inputs), len(outputs))
    return layer_time([len(k) for k in inputs], [len(m) for m in outputs], grid, seconds[grid.size :].tolist())


def _widths(layer: nn.Module) -> tuple[int, int]:
    names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else ("in_channels", "out_channels")
    return getattr(layer, names[0]), getattr(layer, names[1])


def _levels(layer: nn.Module) -> tuple[list[Indices], list[Indices]]:
    """Inputs and outputs to keep. Groups keep equal parts; outputs of a depthwise layer follow from its inputs."""
    width, out = _widths(layer)
    groups = 1 if is_depthwise(layer) else int(getattr(layer, "groups", 1))
    inputs, outputs = (
        [np.arange(w).reshape(groups, -1)[:, :n].reshape(-1) for n in levels(w // groups)] for w in (width, out)
    )
    return inputs, outputs[-1:] if is_depthwise(layer) else outputs


def levels(width: int) -> list[int]:
    """Widths to time: multiples of 8 or of about an eighth, half a step, and the width itself."""
    step = max(STEP, STEP * round(width / STEP / LEVELS))
    return sorted({n for n in (step // 2, *range(step, width, step)) if n < width} | {max(1, width // 2), width})


def _cut(block: nn.Sequential, inputs: Indices, outputs: Indices) -> nn.Sequential:
    cut = copy.deepcopy(block)
    if is_depthwise(block[0]):
        layer_surgery.shrink_depthwise(cut[0], inputs)
        outputs = layer_surgery.depthwise_filters(block[0], inputs)
    else:
        layer_surgery.shrink_mixing(cut[0], inputs, outputs)
    for norm in list(cut)[1:]:
        layer_surgery.shrink_channelwise(norm, outputs, _widths(block[0])[1])
    return cut


def _least(runs: Sequence[Callable[[], Tensor]], rounds: int) -> list[float]:
    """The shortest time of each run; runs take turns, and the first turn is a warm-up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds + 1):
        for run, spent in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            if run().device.type != "cpu":
                torch.accelerator.synchronize()  # the call returns before the device is done
            if turn:
                spent.append(time.perf_counter() - start)
    return [min(spent) for spent in seconds]
