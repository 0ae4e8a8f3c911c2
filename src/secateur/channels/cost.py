"""What a network costs under a plan, in closed form.

One multiply-add is one MAC; convolutions and linear layers count; biases, norms and activations do not, as in the
paper.

    params(layer) = outputs * inputs / groups * kernel    (weights only; depthwise: outputs * kernel)
    MACs(layer)   = params(layer) * positions

with the outputs that still live and the inputs that are still read. Per image of the example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import fx, nn

from secateur.channels.rules import CONVOLUTIONS, MIXING, TRANSPOSED, is_depthwise
from secateur.channels.traced import Traced


@dataclass(frozen=True)
class Layer:
    """A conv or linear layer of the network and what it costs whole."""

    name: str
    kind: str  # "conv", "linear" or "functional"
    inputs: int
    outputs: int
    groups: int
    kernel: int  # weights per pair of channels
    positions: int  # per image
    depthwise: bool
    tied: bool = False  # its weights are another layer's, and counted there

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
    """What one layer costs under a plan."""

    inputs: int
    outputs: int
    macs: int
    params: int


@dataclass(frozen=True)
class Cost:
    """What a network costs under a plan: totals, and layer by layer."""

    macs: int
    params: int
    layers: Mapping[str, LayerCost]


def cost_of(layer: Layer, inputs: int, outputs: int) -> LayerCost:
    """The cost of a layer that keeps so many inputs and outputs."""
    weights = outputs * layer.kernel if layer.depthwise else outputs * inputs // layer.groups * layer.kernel
    return LayerCost(inputs, outputs, weights * layer.positions, 0 if layer.tied else weights)


def find_layers(traced: Traced) -> dict[str, Layer]:
    """All conv and linear layers that the network calls, in the order of their first call."""
    batch = _batch(traced)
    layers: dict[str, Layer] = {}
    owners: dict[int, str] = {}  # whose a weight is
    for node in traced.graph.nodes:
        layer = None
        if node.op == "call_module":
            module = traced.module(node)
            if isinstance(module, MIXING):
                layer = _module_layer(traced, node, module, batch)
                if owners.setdefault(id(module.weight), layer.name) != layer.name:
                    layer = replace(layer, tied=True)
        elif node.op == "call_function" and node.target in _FUNCTIONAL:
            layer = _functional_layer(traced, node, batch)
        if layer is not None:
            again = layers.get(layer.name)
            if again is not None:  # the same weights at work again: as many more positions
                layer = replace(layer, positions=layer.positions + again.positions)
            layers[layer.name] = layer
    return layers


_FUNCTIONAL = (F.conv1d, F.conv2d, F.conv3d, torch.conv1d, torch.conv2d, torch.conv3d, F.linear)


def _batch(traced: Traced) -> int:
    """Images in the example; 1 where the network takes a single image without a batch dimension."""
    for node in traced.graph.nodes:
        if node.op == "call_module" and isinstance(module := traced.module(node), CONVOLUTIONS):
            if len(_input_shape(traced, node)) < module.weight.dim():
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


def _module_layer(traced: Traced, node: fx.Node, module: nn.Module, batch: int) -> Layer:
    name = str(node.target)
    if isinstance(module, nn.Linear):
        rows = math.prod(traced.shapes[node.name][:-1])
        return Layer(name, "linear", module.in_features, module.out_features, 1, 1, max(1, rows // batch), False)
    assert isinstance(module, CONVOLUTIONS)
    kernel = math.prod(module.kernel_size)
    rank = len(module.kernel_size)
    area = _input_shape(traced, node) if isinstance(module, TRANSPOSED) else traced.shapes[node.name]
    rows = area[0] if len(area) > rank + 1 else 1
    positions = max(1, rows * math.prod(area[len(area) - rank :]) // batch)
    groups, depthwise = module.groups, is_depthwise(module)
    return Layer(name, "conv", module.in_channels, module.out_channels, groups, kernel, positions, depthwise)


def _functional_layer(traced: Traced, node: fx.Node, batch: int) -> Layer | None:
    weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
    if not isinstance(weight, fx.Node) or not isinstance(shape := traced.shapes[weight.name], torch.Size):
        return None
    out = traced.shapes[node.name]
    values = math.prod(out) // batch
    name = weight.target if weight.op == "get_attr" else node.name
    inputs, kernel = int(shape[1]), math.prod(shape[2:])
    return Layer(str(name), "functional", inputs, int(shape[0]), 1, kernel, values // int(shape[0]), False)
