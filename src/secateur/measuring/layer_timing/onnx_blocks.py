"""Blocks as small ONNX graphs, for engines that read ONNX.

Such engines keep images in layouts of their own between layers, and convert where a graph begins and ends. Inside a
network this happens only where a layer cannot read the layout of the layer before it. So a block is timed behind
another convolution (`before`), which writes the engine's layout, and in front of a pooling that takes one position, so
that next to nothing leaves the graph. The time of the same graph without the block is subtracted:

    seconds(inputs, outputs) = T(before, block, pool) - T(before, pool)

A block that reads the network's input has nothing before it. A selection in front of a layer often needs a conversion
too; it is what remains of T(before, selection, 1x1 convolution, pool) when its other parts are subtracted.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from secateur.channels.layer_kinds import TRANSPOSED
from secateur.measuring.layer_timing.blocks import Block

FED = 4  # channels that the convolution before a block reads
READ = 16  # outputs of the convolution behind a selection
OPSET = 18
_SIMPLE = {
    nn.ReLU: "Relu",
    nn.LeakyReLU: "LeakyRelu",
    nn.Hardswish: "HardSwish",
    nn.Sigmoid: "Sigmoid",
    nn.Tanh: "Tanh",
}


class OnnxGraph:
    """An ONNX graph that grows at its end. All of its layers have random weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        from onnx import TensorProto, helper

        self._draw = np.random.default_rng(0)
        self._helper: Any = helper
        self._input: Any = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        self._float: int = TensorProto.FLOAT
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._end = "x"

    def add(self, operation: str, *inputs: str, **attributes: Any) -> str:
        """An operation on the value at the end, and its other inputs. Its value is the new end."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._helper.make_node(operation, [self._end, *inputs], [name], **attributes))
        self._end = name
        return name

    def constant(self, values: npt.NDArray[Any]) -> str:
        """A weight."""
        from onnx import numpy_helper

        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def random(self, *shape: int) -> str:
        """A weight of random numbers, scaled so that values stay of order 1."""
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:])))
        return self.constant((scale * self._draw.standard_normal(shape)).astype(np.float32))

    def serialized(self) -> bytes:
        """The graph as the bytes of an ONNX file."""
        output = self._helper.make_tensor_value_info(self._end, self._float, None)
        graph = self._helper.make_graph(self._nodes, "block", [self._input], [output], self._weights)
        opset = self._helper.make_opsetid("", OPSET)
        made: bytes = self._helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
        return made


def onnx_block(block: Block, inputs: int, outputs: int, images: int) -> tuple[bytes, tuple[int, ...]]:
    """The graph of a block with these numbers of inputs and outputs, and the shape of its input."""
    graph, shape = _begun(block, inputs, images)
    if isinstance(block.modules[0], nn.Linear):
        _add_linear(graph, block, inputs, outputs)
    else:
        _add_convolution(graph, block, inputs, outputs)
    for module in list(block.modules)[1:]:
        _add_activation(graph, module)
    if not isinstance(block.modules[0], nn.Linear):
        _add_pool(graph, tuple(block.out_shape[2:]))
    return graph.serialized(), shape


def onnx_before(block: Block, inputs: int, images: int) -> tuple[bytes, tuple[int, ...]]:
    """The graph in front of a block that reads this number of inputs."""
    graph, shape = _begun(block, inputs, images)
    _add_pool(graph, tuple(block.in_shape[2:]))
    return graph.serialized(), shape


def onnx_reading(block: Block, inputs: int, images: int, *, selected_from: int = 0) -> tuple[bytes, tuple[int, ...]]:
    """A 1x1 convolution of this number of inputs, which may be selected from a wider stream."""
    graph, shape = _begun(block, selected_from or inputs, images)
    if selected_from:
        chosen = np.sort(np.random.default_rng(0).permutation(selected_from)[:inputs]).astype(np.int64)
        graph.add("Gather", graph.constant(chosen), axis=block.axis)
    if block.axis == 1 and not isinstance(block.modules[0], nn.Linear):
        ones = [1] * (len(block.in_shape) - 2)
        graph.add("Conv", graph.random(READ, inputs, *ones), graph.random(READ))
        _add_pool(graph, tuple(block.in_shape[2:]))
    return graph.serialized(), shape


def has_before(block: Block) -> bool:
    """Whether a convolution is put in front of a block."""
    return not block.first and not isinstance(block.modules[0], nn.Linear)


def _begun(block: Block, inputs: int, images: int) -> tuple[OnnxGraph, tuple[int, ...]]:
    size = [images, *block.in_shape[1:]]
    if not has_before(block):
        size[block.axis] = inputs
        return OnnxGraph(tuple(size)), tuple(size)
    size[1] = FED
    graph = OnnxGraph(tuple(size))
    graph.add("Conv", graph.random(inputs, FED, *[1] * (len(size) - 2)), graph.random(inputs))
    graph.add("Relu")
    return graph, tuple(size)


def _add_linear(graph: OnnxGraph, block: Block, inputs: int, outputs: int) -> None:
    if len(block.in_shape) == 2:
        graph.add("Gemm", graph.random(outputs, inputs), graph.random(outputs), transB=1)
    else:
        graph.add("MatMul", graph.random(inputs, outputs))
        graph.add("Add", graph.random(outputs))


def _add_convolution(graph: OnnxGraph, block: Block, inputs: int, outputs: int) -> None:
    layer: Any = block.modules[0]
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    shared = {"kernel_shape": kernel, "strides": stride, "dilations": dilation}
    if block.depthwise:
        outputs = inputs * layer.out_channels // layer.in_channels
    groups = inputs if block.depthwise else layer.groups
    if isinstance(layer, TRANSPOSED):
        pads, more = [*layer.padding, *layer.padding], list(layer.output_padding)
        weight = graph.random(inputs, outputs // groups, *kernel)
        graph.add(
            "ConvTranspose", weight, graph.random(outputs), group=groups, pads=pads, output_padding=more, **shared
        )
        return
    sizes = zip(block.in_shape[2:], block.out_shape[2:], kernel, stride, dilation, strict=True)
    missing = [max(0, (out - 1) * s + d * (k - 1) + 1 - size) for size, out, k, s, d in sizes]
    pads = [n // 2 for n in missing] + [n - n // 2 for n in missing]
    weight = graph.random(outputs, inputs // groups, *kernel)
    graph.add("Conv", weight, graph.random(outputs), group=groups, pads=pads, **shared)


def _add_activation(graph: OnnxGraph, module: nn.Module) -> None:
    """A batch norm is folded into the layer before it, so it adds nothing."""
    if type(module) in _SIMPLE:
        graph.add(_SIMPLE[type(module)])
    elif isinstance(module, nn.ReLU6):
        graph.add("Clip", *(graph.constant(np.array(edge, dtype=np.float32)) for edge in (0.0, 6.0)))
    elif isinstance(module, nn.Hardsigmoid):
        graph.add("HardSigmoid", alpha=1 / 6, beta=0.5)
    elif isinstance(module, nn.SiLU):
        before = graph._end
        graph.add("Sigmoid")
        graph.add("Mul", before)


def _add_pool(graph: OnnxGraph, area: tuple[int, ...]) -> None:
    """One position of the image: takes no time, and any layout."""
    graph.add("MaxPool", kernel_shape=[1] * len(area), strides=[max(1, n) for n in area])
