"""Cost as measured time: a table of layer timings, so that equal measured time is compared, not equal MACs.

Each layer is timed whole, with half of its inputs, with half of its outputs and with half of both; in between, its
time is taken to be bilinear in the shares of inputs and outputs that are left:

    t(i, o) = a + b i + c o + d i o

Layers are timed on their own input shape, on the device of the model, in turns.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from secateur.channels import layers
from secateur.channels.graph import ChannelGraph, Keep
from secateur.channels.rules import is_depthwise
from secateur.measuring.batches import device_of
from secateur.measuring.keeping import generators_kept

ROUNDS = 7
BATCH = 16


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a layer as a function of the shares of inputs and outputs that are left."""

    a: float
    b: float
    c: float
    d: float

    def at(self, inputs: float, outputs: float) -> float:
        """Seconds with these shares left."""
        return self.a + self.b * inputs + self.c * outputs + self.d * inputs * outputs


def layer_times(graph: ChannelGraph, batch: int = BATCH, rounds: int = ROUNDS) -> dict[str, LayerTime]:
    """Time every conv and linear layer of the network at four widths."""
    table = {}
    with torch.no_grad(), generators_kept(0):
        for node in graph.found.traced.graph.nodes:
            name = str(node.target)
            if node.op != "call_module" or name not in graph.layers or name in table:
                continue
            shape = graph.found.traced.shapes[node.all_input_nodes[0].name]
            table[name] = _time_layer(graph.model.get_submodule(name), shape, batch, rounds, device_of(graph.model))
    return table


def measured_cost(graph: ChannelGraph, batch: int = BATCH, rounds: int = ROUNDS) -> Callable[[Keep], float]:
    """Cost of kept channels in seconds per batch, from a table that is measured once, now."""
    table = layer_times(graph, batch, rounds)

    def latency(keep: Keep) -> float:
        cost = graph.cost(keep)
        seconds = 0.0
        for name, layer_time in table.items():
            layer, now = graph.layers[name], cost.layers[name]
            seconds += max(0.0, layer_time.at(now.inputs / layer.inputs, now.outputs / layer.outputs))
        return seconds

    return latency


def _time_layer(layer: nn.Module, shape: torch.Size, batch: int, rounds: int, device: torch.device) -> LayerTime:
    from secateur.channels.selection import unselect

    whole = copy.deepcopy(layer).eval()
    unselect(whole)
    axis = len(shape) - 1 if isinstance(layer, nn.Linear) else 1
    size = [batch, *shape[1:]]
    size[axis] = _width(whole)
    x = torch.randn(size, device=device, dtype=next(layer.parameters()).dtype)
    half_in, half_out = _half(whole, inputs=True), _half(whole, inputs=False)
    versions = {
        (1.0, 1.0): (whole, x),
        (half_in[0], half_out[0] if is_depthwise(whole) else 1.0): (half_in[1], _cut(x, half_in[1], axis)),
        (1.0, half_out[0]): (half_out[1], _cut(x, half_out[1], axis)),
    }
    seconds = _in_turns(versions, rounds)
    points = np.array([[1.0, i, o, i * o] for i, o in seconds])
    values = np.array(list(seconds.values()))
    a, b, c, d = np.linalg.lstsq(points, values, rcond=None)[0]
    return LayerTime(float(a), float(b), float(c), float(d))


def _width(layer: nn.Module) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)  # type: ignore[arg-type]


def _half(layer: nn.Module, *, inputs: bool) -> tuple[float, nn.Module]:
    """A copy with half of the inputs (or outputs) and the share that is left; groups keep equal parts."""
    cut = copy.deepcopy(layer)
    width = _width(layer)
    out = int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]
    groups = int(getattr(layer, "groups", 1))
    if is_depthwise(layer):
        keep = np.arange(max(1, width // 2))
        layers.shrink_depthwise(cut, keep)
        return len(keep) / width, cut
    ins, outs = np.arange(width).reshape(groups, -1), np.arange(out).reshape(groups, -1)
    if inputs:
        ins = ins[:, : max(1, ins.shape[1] // 2)]
    else:
        outs = outs[:, : max(1, outs.shape[1] // 2)]
    layers.shrink_mixing(cut, ins.reshape(-1), outs.reshape(-1))
    return (ins.size / width if inputs else outs.size / out), cut


def _cut(x: Tensor, layer: nn.Module, axis: int) -> Tensor:
    return x.narrow(axis, 0, _width(layer)).contiguous()


def _in_turns(
    versions: dict[tuple[float, float], tuple[nn.Module, Tensor]], rounds: int
) -> dict[tuple[float, float], float]:
    seconds: dict[tuple[float, float], list[float]] = {key: [] for key in versions}
    for turn in range(rounds + 1):
        for key, (layer, x) in versions.items():
            start = time.perf_counter()
            layer(x)
            if turn:  # the first turn warms up
                seconds[key].append(time.perf_counter() - start)
    return {key: float(np.median(values)) for key, values in seconds.items()}
