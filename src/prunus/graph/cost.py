"""The cost of a network under a plan, in closed form: no model is built.

One multiply-add is one MAC. As in the paper, convolutions and linear layers count; biases, norms and activations do
not. The products of attention count too; the paper's networks have none.

    params(layer) = outputs * inputs / groups * kernel    (weights only; depthwise: outputs * kernel)
    MACs(layer)   = params(layer) * positions
    MACs(product) = channels of its result * MACs for each    (queries by keys: heads * (tokens^2 * size of a head))

with the outputs that are still alive and the inputs that are still read, for one image of the example. A product is a
layer without weights: its outputs are the heads or channels of its result, and its only input is always there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from prunus.graph.branches import Removed
from prunus.graph.discover import ChannelAnalysis
from prunus.graph.rules.attention import PRODUCTS, VALUES, WEIGHTS, products_of
from prunus.graph.rules.rulebook import is_pass_through
from prunus.graph.traced import (
    CONVOLUTIONS,
    FUNCTIONS,
    MIXING,
    TRANSPOSED,
    Traced,
    argument_of,
    batched_dims,
    is_depthwise,
)
from prunus.graph.units import Grouped, Indices, Keep, Mask


@dataclass(frozen=True)
class Liveness:
    """The channels that a plan leaves."""

    alive: Mask  # [channels] what the writers keep
    read: Mapping[str, Mask]  # reader that selects -> [channels] what it still reads; other readers read all alive
    removed: Removed = field(default_factory=Removed)  # branches that are gone


def find_alive(analysis: ChannelAnalysis, grouped: Grouped, keep: Keep, removed: Removed) -> Liveness:
    """The channels that are left if each unit in `keep` keeps only these channels, without these branches."""
    shared = np.ones(analysis.channels, dtype=bool)
    selected: dict[str, Mask] = {}
    for name, kept in keep.items():
        reader = grouped.selecting.get(name)
        mask = shared if reader is None else selected.setdefault(reader, np.ones_like(shared))
        numbers = grouped.channels[name]
        mask[numbers] = False
        mask[numbers[np.asarray(kept, dtype=np.int64)]] = True
    alive = np.zeros_like(shared)
    alive[list(grouped.frozen)] = True
    read = {reader: shared & mask for reader, mask in selected.items()}
    for reader, vector in analysis.reads.items():
        if reader not in removed.modules:
            numbers = vector[vector >= 0]
            alive[numbers[read.get(reader, shared)[numbers]]] = True
    return Liveness(alive, {reader: mask & alive for reader, mask in read.items()}, removed)


def writers_left_empty(analysis: ChannelAnalysis, live: Liveness) -> list[str]:
    """Layers that would have no output left."""
    writes = {name: vector for name, vector in analysis.writes.items() if name not in live.removed.modules}
    return [name for name, vector in writes.items() if (vector >= 0).all() and not live.alive[vector].any()]


# -- layers and what they cost


@dataclass(frozen=True)
class Layer:
    """A conv or linear layer of the network or a product of two tensors, and its cost before pruning."""

    name: str
    kind: str  # "conv", "linear", "functional" or "product"
    inputs: int
    outputs: int
    groups: int
    kernel: int  # weights per pair of channels
    positions: int  # per image
    depthwise: bool
    tied: bool = False  # its weights belong to another layer and are counted there, are fixed filters, or are none

    @property
    def params(self) -> int:
        """Weights of the whole layer."""
        return cost_of(self, self.inputs, self.outputs).params

    @property
    def macs(self) -> int:
        """Multiply-adds of the whole layer, per image."""
        return cost_of(self, self.inputs, self.outputs).macs


@dataclass(frozen=True)
class LayerCost:
    """The cost of one layer under a plan."""

    inputs: int
    outputs: int
    macs: int
    params: int


@dataclass(frozen=True)
class Cost:
    """The cost of a network under a plan: totals, and layer by layer."""

    macs: int
    params: int
    layers: Mapping[str, LayerCost]


def cost_of(layer: Layer, inputs: int, outputs: int) -> LayerCost:
    """The cost of a layer that keeps this number of inputs and outputs."""
    weights = outputs * layer.kernel if layer.depthwise else outputs * inputs // layer.groups * layer.kernel
    return LayerCost(inputs, outputs, weights * layer.positions, 0 if layer.tied else weights)


def cost_under(
    layers: Mapping[str, Layer], analysis: ChannelAnalysis, live: Liveness, reader_of: Mapping[str, str]
) -> Cost:
    """The cost of the channels that are left. `reader_of`: module behind a selection -> the reader that selects."""

    def count(vector: Indices | None, mask: Mask, default: int) -> int:
        """Number of positions that stay: fixed ones, and those whose channel is in the mask."""
        return default if vector is None else int((vector < 0).sum() + mask[vector[vector >= 0]].sum())

    costs = {}
    removed = live.removed.modules | {name for node in live.removed.nodes for name in _names_of_products(node)}
    for name, layer in layers.items():
        if name in removed:
            costs[name] = LayerCost(0, 0, 0, 0)
        elif layer.depthwise:
            seen = live.read.get(reader_of.get(name, ""), live.alive)
            kept = count(analysis.passes.get(name), seen, layer.inputs)
            costs[name] = cost_of(layer, kept, kept * (layer.outputs // layer.inputs))
        else:
            reads = None if name in analysis.find_rule.reading_all else analysis.reads.get(name)
            inputs = count(reads, live.read.get(name, live.alive), layer.inputs)
            costs[name] = cost_of(layer, inputs, count(analysis.written_by(name), live.alive, layer.outputs))
    return Cost(sum(c.macs for c in costs.values()), sum(c.params for c in costs.values()), costs)


def find_layers(analysis: ChannelAnalysis) -> dict[str, Layer]:
    """All conv and linear layers and products that the network calls, in the order of their first call."""
    traced = analysis.traced
    batch = batch_of(traced)
    layers: dict[str, Layer] = {}
    owners: dict[int, str] = {}  # id of a weight -> the layer it belongs to
    for node in traced.graph.nodes:
        layer = None
        if node.op == "call_module":
            module = traced.module(node)
            if isinstance(module, MIXING):
                layer = _module_layer(traced, node, module, batch)
                weight = module._parameters.get("weight")  # a computed one would be another tensor each time
                if weight is not None and owners.setdefault(id(weight), layer.name) != layer.name:
                    layer = replace(layer, tied=True)
        elif node.op == "call_function" and node.target in FUNCTIONS:
            layer = _functional_layer(traced, node, batch)
        for step, macs in products_of(node, traced.shapes).items():
            name = node.name + step
            channels = len(analysis.record.filters.get(name, (0,)))
            layers[name] = Layer(name, "product", 1, channels, 1, 1, macs // batch // channels, False, tied=True)
        if layer is not None:
            again = layers.get(layer.name)
            if again is not None:  # the same weights are used again, at more positions
                layer = replace(layer, positions=layer.positions + again.positions)
            layers[layer.name] = layer
    return layers


def _names_of_products(node: fx.Node) -> tuple[str, ...]:
    return (node.name, node.name + WEIGHTS, node.name + VALUES) if node.target in PRODUCTS else ()


def batch_of(traced: Traced) -> int:
    """Number of images in the example; 1 if the network takes a single image without a batch dimension."""
    for node in traced.graph.nodes:
        if node.op == "call_module" and isinstance(module := traced.module(node), CONVOLUTIONS):
            if len(_input_shape(traced, node)) < batched_dims(module):
                return 1
            break
    for node in traced.graph.nodes:
        shape = traced.shapes[node.name]
        if node.op == "placeholder" and isinstance(shape, torch.Size) and len(shape) > 1:
            return max(1, int(shape[0]))
    return 1


def _input_shape(traced: Traced, node: fx.Node) -> torch.Size:
    shape = traced.shapes[node.all_input_nodes[0].name]
    return shape if isinstance(shape, torch.Size) else torch.Size()


def _module_layer(traced: Traced, node: fx.Node, module: Any, batch: int) -> Layer:
    name = str(node.target)
    if isinstance(module, nn.Linear):
        rows = math.prod(traced.shapes[node.name][:-1])
        return Layer(name, "linear", module.in_features, module.out_features, 1, 1, max(1, rows // batch), False)
    kernel, rank = math.prod(module.kernel_size), len(module.kernel_size)
    area = _input_shape(traced, node) if isinstance(module, TRANSPOSED) else traced.shapes[node.name]
    rows = area[0] if len(area) > rank + 1 else 1
    positions = max(1, rows * math.prod(area[len(area) - rank :]) // batch)
    groups, depthwise = module.groups, is_depthwise(module)
    return Layer(name, "conv", module.in_channels, module.out_channels, groups, kernel, positions, depthwise)


def _functional_layer(traced: Traced, node: fx.Node, batch: int) -> Layer | None:
    weight = argument_of(node, 1, "weight")
    if not isinstance(weight, fx.Node) or not isinstance(shape := traced.shapes[weight.name], torch.Size):
        return None
    values = math.prod(traced.shapes[node.name]) // batch
    name, inputs, kernel = traced.function_name(node), int(shape[1]), math.prod(shape[2:])
    behind = [weight]
    for used in behind:
        behind += [other for other in used.all_input_nodes if other not in behind]
    fixed = not any(isinstance(traced.attributes.get(str(each.target)), nn.Parameter) for each in behind)
    return Layer(name, "functional", inputs, int(shape[0]), 1, kernel, values // int(shape[0]), False, tied=fixed)


# -- where channel selections go: as early as possible in front of a reader


@dataclass(frozen=True)
class SelectionChains:
    """Reader -> the modules from the reader back to the one that carries its selection."""

    chains: dict[str, list[str]]

    @cached_property
    def carriers(self) -> dict[str, str]:
        """Reader -> the module that carries its selection."""
        return {reader: chain[-1] for reader, chain in self.chains.items()}

    @cached_property
    def readers(self) -> dict[str, str]:
        """Module between a selection and its reader, both included -> the reader."""
        return {member: reader for reader, chain in self.chains.items() for member in chain}


def find_chains(analysis: ChannelAnalysis, readers: Collection[str]) -> SelectionChains:
    """The chains in front of these readers."""
    traced = analysis.traced
    chains: dict[str, list[str]] = {}
    for node in traced.graph.nodes:
        if node.op != "call_module" or str(node.target) not in readers:
            continue
        chain = chains[str(node.target)] = [str(node.target)]
        if traced.calls[chain[0]] > 1:  # each call has other layers in front of it
            continue
        while len(inputs := node.all_input_nodes) == 1 and len(inputs[0].users) == 1:
            node = inputs[0]
            if not node.op.startswith("call") or node.name in analysis.record.failed:
                break
            module = traced.module(node) if node.op == "call_module" else None
            if not is_pass_through(analysis.find_rule(node), module):
                break
            if module is not None and traced.calls[str(node.target)] > 1 and str(node.target) in analysis.passes:
                break
            if module is not None and node.args and traced.calls[str(node.target)] == 1:
                chain.append(str(node.target))
    return SelectionChains(chains)
