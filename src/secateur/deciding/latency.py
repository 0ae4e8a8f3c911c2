"""Cost as measured time: a table of layer timings, so that equal measured time is compared, not equal MACs.

Each layer is timed whole, with half of its inputs, with half of its outputs and with half of both; in between, its
time is taken to be bilinear in the shares of inputs and outputs that are left:

    t(i, o) = a + b i + c o + d i o    with a, b, c, d >= 0, so that no layer gets slower by losing channels

Layers are timed on their own input shape, on the device of the model, in turns.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

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
            seconds += layer_time.at(now.inputs / layer.inputs, now.outputs / layer.outputs)
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
    versions = {}
    for inputs, outputs in ((False, False), (True, False), (False, True), (True, True)):
        shares, cut = _half(whole, inputs=inputs, outputs=outputs)
        versions[shares] = (cut, x.narrow(axis, 0, _width(cut)).contiguous())
    return fitted(_in_turns(versions, rounds))


def fitted(seconds: Mapping[tuple[float, float], float]) -> LayerTime:
    """The coefficients that fit seconds at shares (inputs, outputs) best, none of them negative."""
    points = np.array([[1.0, i, o, i * o] for i, o in seconds])  # [times, 4]
    times = np.array(list(seconds.values()))
    best, error = np.zeros(4), np.inf
    for used in product((False, True), repeat=4):  # few enough to try all subsets that may be above 0
        found = np.zeros(4)
        found[list(used)] = np.linalg.lstsq(points[:, list(used)], times, rcond=None)[0]
        missed = float(np.square(points @ found - times).sum())
        if found.min() >= 0 and missed < error * (1 - 1e-9):
            best, error = found, missed
    return LayerTime(*best.tolist())


def _width(layer: nn.Module) -> int:
    return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)  # type: ignore[arg-type]


def _half(layer: nn.Module, *, inputs: bool, outputs: bool) -> tuple[tuple[float, float], nn.Module]:
    """A copy with half of the inputs and / or outputs, and the shares that are left; groups keep equal parts."""
    cut = copy.deepcopy(layer)
    width = _width(layer)
    out = int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]
    if is_depthwise(layer):  # its inputs are its outputs
        keep = np.arange(max(1, width // 2) if inputs or outputs else width)
        layers.shrink_depthwise(cut, keep)
        return (len(keep) / width, len(keep) / width), cut
    groups = int(getattr(layer, "groups", 1))
    ins, outs = np.arange(width).reshape(groups, -1), np.arange(out).reshape(groups, -1)
    ins = ins[:, : max(1, ins.shape[1] // 2)] if inputs else ins
    outs = outs[:, : max(1, outs.shape[1] // 2)] if outputs else outs
    layers.shrink_mixing(cut, ins.reshape(-1), outs.reshape(-1))
    return (ins.size / width, outs.size / out), cut


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
