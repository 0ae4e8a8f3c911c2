"""Blocks: what an engine runs as one kernel. A convolution or linear layer, its batch norm and its activation."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import fx, nn

from prunus.graph import surgery
from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.selection import selection_of, unselect
from prunus.graph.traced import CONVOLUTIONS, MIXING, TRANSPOSED, Traced, is_depthwise, only_user
from prunus.timing.engines import SelectionForm

# Activations that engines fuse with the layer before them -> the operation of ONNX, its attributes, and the functions
# and methods that compute the same
ACTIVATIONS: Mapping[type[nn.Module], tuple[str, Mapping[str, float], tuple[Any, ...]]] = {
    nn.ReLU: ("Relu", {}, (F.relu, torch.relu, torch.relu_, "relu", "relu_")),
    nn.ReLU6: ("Clip", {}, (F.relu6,)),  # between 0 and 6
    nn.LeakyReLU: ("LeakyRelu", {}, ()),
    nn.Hardswish: ("HardSwish", {}, (F.hardswish,)),
    nn.Hardsigmoid: ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, (F.hardsigmoid,)),
    nn.SiLU: ("Sigmoid", {}, (F.silu,)),  # times its input
    nn.Sigmoid: ("Sigmoid", {}, (torch.sigmoid, "sigmoid")),
    nn.Tanh: ("Tanh", {}, ()),
}


@dataclass(frozen=True, eq=False)
class Block:
    """One call of a layer with what follows it. Blocks of one kind are timed together."""

    layer: str
    kind: str  # all that its time depends on except the widths
    modules: nn.Sequential  # copies of the layer, of its batch norm and of its activation, as far as it has them
    in_shape: torch.Size  # of the example
    out_shape: torch.Size
    first: bool  # reads the network's input
    last: fx.Node | None  # whose value is the block's

    @property
    def widths(self) -> tuple[int, int]:
        layer = self.modules[0]
        names = ("in_features", "out_features") if isinstance(layer, nn.Linear) else ("in_channels", "out_channels")
        return int(getattr(layer, names[0])), int(getattr(layer, names[1]))

    @property
    def axis(self) -> int:
        """The dimension of the input that channels are on."""
        return len(self.in_shape) - 1 if isinstance(self.modules[0], nn.Linear) else 1

    @property
    def depthwise(self) -> bool:
        return is_depthwise(self.modules[0])

    @property
    def groups(self) -> int:
        """Groups of channels that must stay equally wide."""
        return 1 if self.depthwise else int(getattr(self.modules[0], "groups", 1))

    @property
    def fused_kind(self) -> str:
        """The kind for engines that fold batch norms and biases into the layer, and take no time for a ReLU."""
        return re.sub(r"( BatchNorm\dd| ReLU(?= )|\+b)", "", self.kind)

    @property
    def has_before(self) -> bool:
        """Whether a convolution is put in front of it when it is timed as an ONNX graph."""
        return not self.first and not isinstance(self.modules[0], nn.Linear)


def find_blocks(graph: ChannelGraph) -> list[Block]:
    """The blocks of a network in the order of their calls. A layer that is called twice has two."""
    traced = graph.analysis.traced
    calls = [n for n in traced.graph.nodes if n.op == "call_module" and str(n.target) in graph.layers]
    return [_block(traced, node) for node in calls if isinstance(traced.module(node), MIXING)]


def _block(traced: Traced, node: fx.Node) -> Block:
    modules, last = [traced.module(node)], node
    norm = traced.batch_norm_after(node)
    if norm is not None and selection_of(traced.module(norm)) is None:
        modules, last = [*modules, traced.module(norm)], norm
    user, activation = only_user(last), None
    if user is not None and user.op == "call_module":
        module = traced.module(user)
        activation = module if type(module) in ACTIVATIONS and _is_plain(module) else None
    elif user is not None and user.op in ("call_function", "call_method") and user.all_input_nodes == [last]:
        activation = next((kind() for kind, (*_, same) in ACTIVATIONS.items() if user.target in same), None)
    if user is not None and activation is not None:
        modules, last = [*modules, activation], user
    block = nn.Sequential(*(copy.deepcopy(module) for module in modules)).eval()
    unselect(block[0])
    name, read = str(node.target), node.all_input_nodes[0]
    in_shape, out_shape, first = traced.shapes[read.name], traced.shapes[node.name], read.op == "placeholder"
    inside = slice(1, -1) if isinstance(block[0], nn.Linear) else slice(2, None)
    area = f"{_joined(in_shape[inside])}->{_joined(out_shape[inside])}"
    parts = [_settings(block[0]), area, *(_settings(module) for module in list(block)[1:])]
    parts.append(str(next(block.parameters()).dtype).removeprefix("torch."))
    parts += ["first"] * first
    # Only layers of torch itself are known by their settings: two layers of another class may differ in something that
    # does not show, so the name of the layer tells them apart.
    if not all(_is_plain(module) for module in block):
        parts.append(f"layer {name}")
    return Block(name, " ".join(filter(None, parts)), block, in_shape, out_shape, first, last)


def is_shared(kind: str) -> bool:
    """Whether a kind says all about a block, so that its timings hold for other networks too."""
    return " layer " not in kind


def _settings(module: nn.Module) -> str:
    if isinstance(module, nn.Linear):
        return f"Linear{'' if module.bias is None else '+b'}"
    if not isinstance(module, CONVOLUTIONS):
        return type(module).__name__
    names = ("kernel_size", "stride", "padding", "dilation")
    parts = [f"{name[0]}{_joined(getattr(module, name))}" for name in names]
    groups = "depthwise" if is_depthwise(module) else f"g{module.groups}"
    turned = "Transposed" if isinstance(module, TRANSPOSED) else ""
    return f"{turned}Conv{len(module.kernel_size)}d {' '.join(parts)} {groups}{'' if module.bias is None else '+b'}"


def _joined(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is of torch's own class and nothing was added to the instance."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return type(module).__module__.startswith("torch.nn.") and not any(hooks) and "forward" not in vars(module)


# -- runs: what is timed for a layer or a selection. In PyTorch it is the block itself, in others small ONNX graphs.


@dataclass(frozen=True)
class Run:
    """Something that can be run and timed.

    block: the block with these numbers of inputs and outputs. before: what comes before it. reading: what comes before
    it and a 1x1 convolution. selection: the same, with the inputs selected from a wider stream.
    """

    what: Literal["block", "before", "selection", "reading"]
    inputs: int
    outputs: int = 0


Sum = dict[Run, int]  # a time as a sum of the times of runs: run -> 1, or -1 if it is subtracted


def torch_run(block: Block, run: Run, images: int, device: torch.device) -> Callable[[], Any]:
    """A call, on random images, of the block with only the first channels of each group, or of their selection."""
    (width, wide), size = block.widths, [images, *block.in_shape[1:]]
    size[block.axis] = width if run.what == "selection" else run.inputs
    weight = next(block.modules.parameters())
    x = torch.randn(size, device=device, dtype=weight.dtype)
    if weight.dim() == 4 and not weight.is_contiguous():  # in the layout of the weights
        x = x.contiguous(memory_format=torch.channels_last)
    kept, made = (
        np.arange(n).reshape(block.groups, -1)[:, : count // block.groups].reshape(-1)
        for n, count in ((width, run.inputs), (wide, run.outputs))
    )
    if run.what == "selection":
        return partial(x.index_select, block.axis, torch.from_numpy(kept).to(device))
    cut = copy.deepcopy(block.modules)
    if block.depthwise:
        surgery.shrink_depthwise(cut[0], kept)
        made = surgery.depthwise_filters(block.modules[0], kept)
    else:
        surgery.shrink_mixing(cut[0], kept, made)
    for module in list(cut)[1:]:
        surgery.shrink_channelwise(module, made, wide)
    return partial(cut, x)


# -- small ONNX graphs, for engines that read ONNX

FED = 4  # channels that the convolution before a block reads
READ = 16  # outputs of the convolution behind a selection
OPSET = 18


class OnnxGraph:
    """An ONNX graph that grows at its end. All of its layers have random weights."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape, self._draw = shape, np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self.end = "x"

    def add(self, operation: str, *inputs: str, **attributes: Any) -> None:
        """An operation on the value at the end, and its other inputs. Its value is the new end."""
        from onnx import helper

        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, [self.end, *inputs], [name], **attributes))
        self.end = name

    def constant(self, values: npt.NDArray[Any]) -> str:
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
        from onnx import TensorProto, helper

        first = helper.make_tensor_value_info("x", TensorProto.FLOAT, self._shape)
        last = helper.make_tensor_value_info(self.end, TensorProto.FLOAT, None)
        graph = helper.make_graph(self._nodes, "block", [first], [last], self._weights)
        opset = helper.make_opsetid("", OPSET)
        made: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
        return made


def onnx_graph(block: Block, run: Run, images: int, form: SelectionForm = "gather") -> tuple[bytes, tuple[int, ...]]:
    """The graph of a run, and the shape of its input."""
    is_linear = isinstance(block.modules[0], nn.Linear)
    width = block.widths[0] if run.what == "selection" else run.inputs
    size, ones = [images, *block.in_shape[1:]], [1] * (len(block.in_shape) - 2)
    size[block.axis] = FED if block.has_before else width
    graph, area = OnnxGraph(tuple(size)), block.in_shape[2:]
    if block.has_before:
        graph.add("Conv", graph.random(width, FED, *ones), graph.random(width))
        graph.add("Relu")
    if run.what == "selection":
        chosen = np.sort(np.random.default_rng(0).permutation(width)[: run.inputs]).astype(np.int64)
        if form == "gather":
            graph.add("Gather", graph.constant(chosen), axis=block.axis)
        else:
            weight = np.eye(width, dtype=np.float32)[chosen]  # one-hot, see `prunus.graph.selection`
            if is_linear:
                graph.add("MatMul", graph.constant(np.ascontiguousarray(weight.T)))
            else:
                graph.add("Conv", graph.constant(weight.reshape(run.inputs, width, *ones)))
    if run.what == "block":
        area = block.out_shape[2:]
        if not is_linear:
            _add_convolution(graph, block, run.inputs, run.outputs)
        elif len(block.in_shape) == 2:
            graph.add("Gemm", graph.random(run.outputs, run.inputs), graph.random(run.outputs), transB=1)
        else:
            graph.add("MatMul", graph.random(run.inputs, run.outputs))
            graph.add("Add", graph.random(run.outputs))
        for module in block.modules:
            operation, attributes, _ = ACTIVATIONS.get(type(module), ("", {}, ()))
            before, edges = graph.end, (0.0, 6.0) if operation == "Clip" else ()
            if operation:  # a batch norm is folded into the layer before it, so it adds nothing
                graph.add(operation, *(graph.constant(np.array(n, dtype=np.float32)) for n in edges), **attributes)
            if isinstance(module, nn.SiLU):
                graph.add("Mul", before)
    elif run.what != "before" and not is_linear:
        graph.add("Conv", graph.random(READ, run.inputs, *ones), graph.random(READ))
    if not is_linear:  # one position of the image: takes no time, and any layout
        graph.add("MaxPool", kernel_shape=[1] * len(area), strides=[max(1, n) for n in area])
    return graph.serialized(), tuple(size)


def _add_convolution(graph: OnnxGraph, block: Block, inputs: int, outputs: int) -> None:
    layer: Any = block.modules[0]
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    shared = {"kernel_shape": kernel, "strides": stride, "dilations": dilation}
    if block.depthwise:
        outputs = inputs * layer.out_channels // layer.in_channels
    groups = inputs if block.depthwise else layer.groups
    if isinstance(layer, TRANSPOSED):
        shared |= {"pads": [*layer.padding, *layer.padding], "output_padding": list(layer.output_padding)}
        weight = graph.random(inputs, outputs // groups, *kernel)
        graph.add("ConvTranspose", weight, graph.random(outputs), group=groups, **shared)
        return
    sizes = zip(block.in_shape[2:], block.out_shape[2:], kernel, stride, dilation, strict=True)
    missing = [max(0, (out - 1) * s + d * (k - 1) + 1 - size) for size, out, k, s, d in sizes]
    pads = [n // 2 for n in missing] + [n - n // 2 for n in missing]
    weight = graph.random(outputs, inputs // groups, *kernel)
    graph.add("Conv", weight, graph.random(outputs), group=groups, pads=pads, **shared)
