"""A network from an .onnx file: read, imported as a torch.fx GraphModule, and compared with onnxruntime.

    model = prunus.from_onnx("model.onnx")
    graph = prunus.trace(model, torch.zeros(1, 3, 224, 224))

The operations are in `prunus.zoo.onnx.operations`. A file is run beside its import on random inputs; if an output
differs, the import is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import FileError, ModelError
from prunus.util.text import count
from prunus.zoo.onnx.graph import NUM_IMAGES, GraphBuilder, Operation, is_node
from prunus.zoo.onnx.operations import OPERATIONS, TYPES

OLDEST = 11  # opset
TOLERANCE = 1e-3  # of how much an output varies: other kernels add in another order
ROUNDING = 5e-7  # of values of the size of one: a sigmoid near 0 hardly varies, and engines compute it differently
QUANTISED = ("Quantize", "Dequantize", "QLinear", "ConvInteger", "MatMulInteger", "DynamicQuantize")
BUILT_IN = ("", "ai.onnx")  # the domain of ONNX's own operators


@dataclass(frozen=True)
class FileInput:
    """An input of a file."""

    name: str
    sizes: tuple[int | None, ...]  # None where any size is taken
    kind: torch.dtype


@dataclass(frozen=True)
class OnnxModel:
    """The content of an .onnx file."""

    path: Path
    proto: Any

    @property
    def opset(self) -> int:
        """The version of its operators."""
        return next((int(each.version) for each in self.proto.opset_import if each.domain in BUILT_IN), 0)

    @cached_property
    def inputs(self) -> tuple[FileInput, ...]:
        """What the network takes, without its weights."""
        weights = {each.name for each in self.proto.graph.initializer}
        inputs = []
        for each in self.proto.graph.input:
            if each.name not in weights:
                tensor = each.type.tensor_type
                sizes = tuple(size.dim_value if size.dim_value > 0 else None for size in tensor.shape.dim)
                inputs.append(FileInput(each.name, sizes, _type(self.path, each.name, tensor.elem_type)))
        return tuple(inputs)

    @cached_property
    def image(self) -> FileInput:
        """Its only input, if that can be images."""
        if len(self.inputs) != 1 or len(self.inputs[0].sizes) != 4:
            shown = ", ".join(f"{each.name} {shown_sizes(each.sizes)}" for each in self.inputs)
            raise ModelError(f"{self.path}: expected one input of images [N, C, H, W], the file has {shown}")
        return self.inputs[0]

    @property
    def num_classes(self) -> int | None:
        """The number of its outputs for an image, if it has one output [N, classes]."""
        sizes = [each.type.tensor_type.shape.dim for each in self.proto.graph.output]
        return int(sizes[0][1].dim_value) or None if len(sizes) == 1 and len(sizes[0]) == 2 else None

    def content(self) -> bytes:
        """The file as bytes, with the weights that lie beside it."""
        return bytes(self.proto.SerializeToString())


def shown_sizes(sizes: Sequence[int | None]) -> str:
    """[N, 3, ?, ?]: the first size is the number of images."""
    unknown = ["N", *"?" * len(sizes)]
    return f"[{', '.join(unknown[place] if size is None else str(size) for place, size in enumerate(sizes))}]"


def _type(path: Path, name: str, number: int) -> torch.dtype:
    if number == 10:
        raise ModelError(f"{path}: {name} is in half precision: give the file of the network in 32 bits")
    if number not in TYPES:
        raise ModelError(
            f"{path}: {name} has type {number} of ONNX, and only 32-bit floats, integers and booleans are read"
        )
    return TYPES[number]


# -- reading


def read_onnx(path: str | Path) -> OnnxModel:
    """The content of an .onnx file, checked.

    Raises:
        FileError: There is no such file, or it is no ONNX file, or it is damaged.
        ModelError: It is quantised, of an old opset, or has operations without a translation.
    """
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: {'is a folder, not an .onnx file' if path.is_dir() else 'this file does not exist'}")
    try:
        proto = onnx.load(path)
        empty = not proto.graph.node or not proto.opset_import
        if not empty:
            onnx.checker.check_model(path)
    except FileNotFoundError as error:
        raise FileError(f"{path}: its weights are in another file, which is missing: {error}") from error
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        raise FileError(f"{path}: is not a complete .onnx file ({_first_line(error)})") from error
    if empty:
        raise FileError(f"{path}: is not an .onnx file, or has no operations")
    if proto.functions:
        from onnx.inliner import inline_local_functions

        proto = inline_local_functions(proto)
    model = OnnxModel(path, proto)
    kinds = {(node.domain if node.domain not in BUILT_IN else "", node.op_type) for node in proto.graph.node}
    names = sorted(kind for _, kind in kinds)
    if quantised := [kind for kind in names if kind.startswith(QUANTISED)]:
        raise ModelError(
            f"{path}: is quantised ({', '.join(quantised)}). Prune the network in 32 bits, and quantise what "
            "comes out: prunus export RUN small.onnx --int8 --data DATA"
        )
    if foreign := sorted(f"{domain}.{kind}" for domain, kind in kinds if domain):
        raise ModelError(
            f"{path}: has operations that are not ONNX's own: {', '.join(foreign)}. If an optimiser has written "
            "the file (onnxruntime's fused operations), give the file from before"
        )
    if unknown := [kind for kind in names if kind not in OPERATIONS]:
        raise ModelError(
            f"{path}: no translation for {', '.join(unknown)}. If it belongs to what follows the network, such "
            "as the selection of boxes, cut the file in front of it (onnx.utils.extract_model)"
        )
    if model.opset < OLDEST:
        raise ModelError(
            f"{path}: has opset {model.opset}, and {OLDEST} or later is read; onnx.version_converter converts it"
        )
    return model


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# -- importing


class OnnxNetwork(fx.GraphModule):
    """The network of an .onnx file. An error of a call is raised as by any other module, without print."""

    def recompile(self) -> Any:
        """Compile the graph's code."""
        code = super().recompile()
        type(self).__call__ = nn.Module.__call__  # type: ignore[method-assign]  # torch.fx's own prints
        return code


def from_onnx(path: str | Path, size: int | Sequence[int] | None = None, *, check: bool = True) -> fx.GraphModule:
    """The network in an .onnx file, as plain layers and functions of PyTorch. It is in eval mode.

    Arithmetic on shapes is carried out, so that the graph can be pruned and takes any number of images. Layers and
    parameters have the names of the file's weights.

    Args:
        path: the file, of opset 11 or later.
        size: height and width of the images, for a file that takes any. One number stands for both.
        check: run the file in onnxruntime on random inputs, and compare.

    Raises:
        FileError: there is no such file, it is damaged, or it is not an ONNX file.
        ModelError: the file is quantised, has an operation without a translation, does not take images of this size,
            or its import computes something else.
    """
    file = read_onnx(path)
    shapes = _input_shapes(file, size)
    fixed = file.inputs[0].sizes[0] if file.inputs and file.inputs[0].sizes else None
    try:
        built = _build(file, shapes, fixed)
    except ModelError as error:
        if fixed is None:
            raise
        raise ModelError(
            f"{error}. The file is for {count(fixed, 'image')} at a time; export it for any number "
            "(dynamic_axes or dynamic_shapes of torch.onnx.export)"
        ) from error
    built.graph.lint()
    model = OnnxNetwork(built.root, built.graph, "OnnxNetwork")
    model.eval()
    for node in model.graph.nodes:
        node.meta.pop("value", None)
    if check:
        _check_equal(file, model, shapes, fixed)
    return model


def _input_shapes(file: OnnxModel, size: int | Sequence[int] | None) -> dict[str, tuple[int, ...]]:
    """Input -> its shape without the images."""
    sides = (size, size) if isinstance(size, int) else None if size is None else tuple(size)
    shapes = {}
    for each in file.inputs:
        if not each.sizes:
            raise ModelError(f"{file.path}: its input {each.name} is a single number; an input of images is expected")
        wanted = list(each.sizes[1:])
        if sides is not None and len(wanted) == 1 + len(sides):
            if any(size not in (None, side) for size, side in zip(wanted[1:], sides, strict=True)):
                raise ModelError(f"{file.path}: takes images {shown_sizes(each.sizes)}, not of {sides[0]} x {sides[1]}")
            wanted[1:] = sides
        if None in wanted:
            raise ModelError(
                f"{file.path}: takes images of any size, {shown_sizes(each.sizes)}: give their height and width "
                "(--size 224, or size=224)"
            )
        shapes[each.name] = tuple(int(number) for number in wanted if number is not None)
    return shapes


def _build(file: OnnxModel, shapes: Mapping[str, tuple[int, ...]], fixed: int | None) -> GraphBuilder:
    """The file's graph as a torch.fx graph."""
    graph, builder = file.proto.graph, GraphBuilder(batch=fixed)
    for each in file.inputs:
        word = re.sub(r"\W", "_", each.name)
        node = builder.graph.placeholder(word if word.isidentifier() else f"input_{word}")
        node.meta["value"] = torch.empty((NUM_IMAGES, *shapes[each.name]), dtype=each.kind, device="meta")
        builder.set(each.name, node)
    for weight in graph.initializer:
        _type(file.path, weight.name, weight.data_type)
        builder.set(weight.name, _tensor(weight))
    outputs = [each.name for each in graph.output]
    uses = Counter([*outputs, *(name for node in graph.node for name in node.input)])
    for node in graph.node:
        # Of what nobody reads, such as the mask of a Dropout, there is no translation. Split divides by its number.
        read = [place for place, name in enumerate(node.output, start=1) if uses[name] or node.op_type == "Split"]
        op = Operation(
            builder,
            node.op_type,
            node.name,
            file.opset,
            inputs=[builder.values[name] if name else None for name in node.input],
            attributes={each.name: _attribute(each) for each in node.attribute},
            num_outputs=max(read, default=1),
            once=[uses[name] == 1 for name in node.input],
        )
        try:
            result = OPERATIONS[node.op_type](op)
        except (ModelError, ValueError, RuntimeError, IndexError, KeyError, TypeError, NotImplementedError) as error:
            where = f"{node.op_type} {node.name or node.output[0]}"
            raise ModelError(f"{file.path}: {where}: {_first_line(error)}".replace(str(NUM_IMAGES), "N")) from error
        for name, value in zip(node.output, result if isinstance(result, tuple) else (result,), strict=False):
            builder.set(name, value)
    for name in outputs:
        if not is_node(builder.values[name]):
            raise ModelError(f"{file.path}: its output {name} does not depend on the input")
    nodes = tuple(builder.values[name] for name in outputs)
    builder.graph.output(nodes[0] if len(nodes) == 1 else nodes)
    return builder


def _tensor(stored: Any) -> Tensor:
    from onnx import numpy_helper

    return torch.from_numpy(np.array(numpy_helper.to_array(stored)))


def _attribute(given: Any) -> Any:
    import onnx

    if given.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        return None
    value = onnx.helper.get_attribute_value(given)
    if isinstance(value, onnx.TensorProto):
        return _tensor(value)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if given.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


# -- comparing with onnxruntime


def _check_equal(file: OnnxModel, model: nn.Module, shapes: Mapping[str, tuple[int, ...]], fixed: int | None) -> None:
    """ModelError if the import computes something else than the file."""
    for images in (1, 3):
        inputs = _random_inputs(file, shapes, images)
        wanted = _run(file, inputs, fixed)
        with torch.no_grad():
            got = [leaf for leaf in tree_leaves(model(*inputs.values())) if isinstance(leaf, Tensor)]
        trouble = next((why for a, b in zip(got, wanted, strict=True) if (why := difference(a, b))), None)
        if trouble is not None:
            raise ModelError(
                f"{file.path}: its import computes something else than onnxruntime for {count(images, 'image')} "
                f"({trouble})"
            )


def difference(got: Tensor, wanted: Tensor) -> str | None:
    """How two results differ, in words; None if they are equal up to rounding."""
    if got.shape != wanted.shape:
        return f"shape {list(got.shape)} instead of {list(wanted.shape)}"
    if not wanted.numel():
        return None
    if not wanted.is_floating_point():
        equal = float((got == wanted).double().mean())
        return None if equal >= 0.99 else f"{1 - equal:.1%} of the values differ"
    a, b = got.double(), wanted.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return "other values are infinite or not a number"
    a, b = a[b.isfinite()], b[b.isfinite()]
    scale = float(b.std()) if b.numel() > 1 else 0.0
    scale = max(scale, 1e-3 * float(b.abs().max()) if b.numel() else 0.0, 1e-6)
    largest = max(0.0, float((a - b).abs().max()) - ROUNDING) / scale if b.numel() else 0.0
    return None if largest <= TOLERANCE else f"a difference of {largest:.1e} of how much the values vary"


def _random_inputs(file: OnnxModel, shapes: Mapping[str, tuple[int, ...]], images: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(images)
    inputs = {}
    for each in file.inputs:
        noise = torch.randn(images, *shapes[each.name], generator=draw)
        inputs[each.name] = noise.to(each.kind) if each.kind.is_floating_point else (noise.abs() * 50).to(each.kind)
    return inputs


def _run(file: OnnxModel, inputs: Mapping[str, Tensor], fixed: int | None) -> list[Tensor]:
    """The outputs in onnxruntime. A file for a fixed number of images gets as many at a time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    images = len(next(iter(inputs.values())))
    step = fixed or images
    parts = []
    try:
        session = onnxruntime.InferenceSession(file.content(), options, providers=["CPUExecutionProvider"])
        for first in range(0, images, step):
            # fewer images than the file takes: the last ones again
            rows = [min(first + place, images - 1) for place in range(step)]
            part = session.run(None, {name: value[rows].numpy() for name, value in inputs.items()})
            parts.append([torch.from_numpy(np.asarray(each)) for each in part])
    except Exception as error:
        raise ModelError(f"{file.path}: onnxruntime cannot run the file: {_first_line(error)}") from error
    if images == step:
        return parts[0]
    return [torch.cat(each)[:images] if each[0].dim() else each[0] for each in zip(*parts, strict=True)]
