"""The table of ONNX operations: what each becomes in torch. An operation that is not listed is refused by its name."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.zoo import onnx_layers as layers
from prunus.zoo.onnx_graph import Operation, Value, counts_images, is_node, shape_of, type_of
from prunus.zoo.onnx_reshape import reshaped, target_of

Translation = Callable[[Operation], Value]


# -- position by position


def unary(function: Callable[..., Any], *rest: Any) -> Translation:
    """A function of one tensor, with fixed further arguments."""
    return lambda op: op.call(function, op.x, *rest)


def with_numbers(function: Callable[..., Any], **defaults: float) -> Translation:
    """A function of one tensor and of numbers, which are attributes with these names and defaults."""
    return lambda op: op.call(function, op.x, *(op.given.get(name, default) for name, default in defaults.items()))


def _operands(op: Operation) -> list[Any]:
    """The inputs; constants of one element become numbers, which follow the type and shape of the others."""
    rank = max(len(shape_of(value)) for value in op.inputs)
    kinds = {type_of(value) for value in op.inputs if is_node(value)}
    found: list[Any] = []
    for value in op.inputs:
        plain = isinstance(value, Tensor) and value.numel() == 1 and {value.dtype} == kinds != {torch.bool}
        others = max((len(shape_of(other)) for other in op.inputs if is_node(other)), default=-1)
        found.append(value.item() if plain and others == rank else value)
    return found


def binary(function: Callable[..., Any]) -> Translation:
    """A function of two tensors."""

    def translated(op: Operation) -> Value:
        left, right = _operands(op)
        if not isinstance(left, Tensor) and not is_node(left):  # torch takes a number in the second place only
            left = op.constant(0)
        return op.call(function, left, right)

    return translated


def add(op: Operation) -> Value:
    """Add. A constant for each output of a layer without biases becomes its bias."""
    for place in (0, 1):
        layer = _layer_without_bias(op, place)
        constant = op.input(1 - place)
        if layer is None or not isinstance(constant, Tensor) or not constant.is_floating_point():
            continue
        axis = -1 if isinstance(layer, nn.Linear) else 1 - len(shape_of(op.inputs[place]))
        outputs = layer.weight.shape[1] * layer.groups if isinstance(layer, TRANSPOSED) else layer.weight.shape[0]
        sizes = (1,) * (-axis - constant.dim()) + tuple(constant.shape)
        if len(sizes) <= len(shape_of(op.inputs[place])) and sizes[axis] == outputs == constant.numel():
            layer.bias = nn.Parameter(constant.reshape(-1))
            return op.inputs[place]
    return op.call(torch.add, *_ordered(op))


TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _layer_without_bias(op: Operation, place: int) -> Any:
    node = op.inputs[place]
    if not is_node(node) or node.op != "call_module" or not op.once[place]:
        return None
    layer = op.at.root.get_submodule(node.target)
    calls = sum(other.op == "call_module" and other.target == node.target for other in op.at.graph.nodes)
    return layer if calls == 1 and "bias" in layer._parameters and layer.bias is None else None


def _ordered(op: Operation) -> list[Any]:
    left, right = _operands(op)
    return [left, right] if isinstance(left, Tensor) or is_node(left) else [right, left]


def divide(op: Operation) -> Value:
    """Div; whole numbers are divided towards zero."""
    if type_of(op.x).is_floating_point:
        return binary(torch.div)(op)
    return op.call(torch.div, *op.inputs, rounding_mode="trunc")


def modulo(op: Operation) -> Value:
    """Mod, with the sign of the divisor, or with fmod=1 that of the dividend."""
    return op.call(torch.fmod if op.given.get("fmod", 0) else torch.remainder, *_operands(op))


def several(function: Callable[..., Any]) -> Translation:
    """A function of two tensors, applied to any number of them."""

    def translated(op: Operation) -> Value:
        first, *others = op.inputs
        return functools.reduce(lambda left, right: op.call(function, left, right), others, first)

    return translated


def mean(op: Operation) -> Value:
    """Mean of several tensors."""
    return op.call(torch.div, several(torch.add)(op), len(op.inputs))


def clip(op: Operation) -> Value:
    """Clip."""
    least, most = (op.numbers(name, place) for place, name in ((1, "min"), (2, "max")))
    return op.x if least is None and most is None else op.call(torch.clamp, op.x, least, most)


def hard_sigmoid(op: Operation) -> Value:
    """HardSigmoid, max(0, min(1, alpha x + beta))."""
    alpha, beta = op.given.get("alpha", 0.2), op.given.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return op.call(F.hardsigmoid, op.x)
    return op.call(torch.clamp, op.call(torch.add, op.call(torch.mul, op.x, alpha), beta), 0.0, 1.0)


def gelu(op: Operation) -> Value:
    """Gelu."""
    return op.call(F.gelu, op.x, approximate=op.given.get("approximate", "none"))


def softmax(function: Callable[..., Any]) -> Translation:
    """Softmax along one axis; before opset 13, over all axes from there on."""

    def translated(op: Operation) -> Value:
        rank = len(op.shape)
        axis = op.given.get("axis", 1 if op.opset < 13 else -1) % rank
        if op.opset >= 13 or axis == rank - 1:
            return op.call(function, op.x, axis)
        flat = op.call(torch.flatten, op.x, axis, -1)
        return reshaped(op.at, op.call(function, flat, axis), op.shape)

    return translated


def cast(op: Operation) -> Value:
    """Cast."""
    kind = TYPES.get(op.given["to"])
    if kind is None:
        raise op.refuse(f"type {op.given['to']} of ONNX has no counterpart")
    return op.x if type_of(op.x) == kind else op.at.method("to", op.x, kind)


def cast_like(op: Operation) -> Value:
    """CastLike."""
    kind = type_of(op.inputs[1])
    return op.x if type_of(op.x) == kind else op.at.method("to", op.x, kind)


TYPES = {  # of TensorProto
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    11: torch.float64,
}


# -- over axes


def _axes(op: Operation) -> tuple[int, ...]:
    given = op.numbers("axes", 1)
    rank = len(op.shape)
    if given is None:
        return () if op.given.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in given))


def reduction(function: Callable[..., Any], before: Callable[..., Any] | None = None, after: Any = None) -> Translation:
    """A reduction over axes, perhaps of a function of the elements, and perhaps with a function of the result."""

    def translated(op: Operation) -> Value:
        axes, x = _axes(op), op.x if before is None else op.call(before, op.x)
        if axes:
            x = op.call(function, x, axes, bool(op.given.get("keepdims", 1)))
        return x if after is None else op.call(after, x)

    return translated


def product(op: Operation) -> Value:
    """ReduceProd."""
    x, keep = op.x, bool(op.given.get("keepdims", 1))
    for axis in reversed(_axes(op)):
        x = op.call(torch.prod, x, axis, keep)
    return x


def extreme_place(function: Callable[..., Any]) -> Translation:
    """ArgMax, ArgMin."""

    def translated(op: Operation) -> Value:
        if op.given.get("select_last_index", 0):
            raise op.refuse("select_last_index is not supported")
        return op.call(function, op.x, op.given.get("axis", 0), bool(op.given.get("keepdims", 1)))

    return translated


def top_k(op: Operation) -> Value:
    """TopK: values and places."""
    number = int(op.constant(1).reshape(-1)[0])
    rest = op.given.get("axis", -1), bool(op.given.get("largest", 1)), bool(op.given.get("sorted", 1))
    both = op.call(torch.topk, op.x, number, *rest)
    return tuple(op.call(operator.getitem, both, place) for place in (0, 1))


def unit_length(op: Operation) -> Value:
    """LpNormalization."""
    return op.call(F.normalize, op.x, float(op.given.get("p", 2)), op.given.get("axis", -1))


# -- shapes


def shape(op: Operation) -> Value:
    """Shape, as a constant: the number of images is a number that stands for it."""
    sizes = op.shape[op.given.get("start", 0) : op.given.get("end", len(op.shape))]
    return torch.tensor(sizes, dtype=torch.int64)


def reshape(op: Operation) -> Value:
    """Reshape, to sizes that are known."""
    wanted = op.constant(1).tolist()
    copies = not op.given.get("allowzero", 0)
    return reshaped(op.at, op.x, target_of(op.shape, wanted, op.at.batch, zero_copies=copies))


def flatten(op: Operation) -> Value:
    """Flatten to two axes."""
    axis = op.given.get("axis", 1)
    axis = axis % len(op.shape) if axis < 0 else axis
    return reshaped(op.at, op.x, (math.prod(op.shape[:axis]), math.prod(op.shape[axis:])))


def squeeze(op: Operation) -> Value:
    """Squeeze."""
    axes = op.numbers("axes", 1)
    axes = [place for place, size in enumerate(op.shape) if size == 1] if axes is None else axes
    x = op.x
    for axis in sorted((axis % len(op.shape) for axis in axes), reverse=True):
        x = op.call(torch.squeeze, x, axis)
    return x


def unsqueeze(op: Operation) -> Value:
    """Unsqueeze."""
    axes, x = op.numbers("axes", 1), op.x
    for axis in sorted(axis % (len(op.shape) + len(axes)) for axis in axes):
        x = op.call(torch.unsqueeze, x, axis)
    return x


def transpose(op: Operation) -> Value:
    """Transpose."""
    return op.call(torch.permute, op.x, tuple(op.given.get("perm", range(len(op.shape) - 1, -1, -1))))


def concat(op: Operation) -> Value:
    """Concat. In a file for one image, what has one image beside the images of others is repeated for each."""
    parts, axis = list(op.inputs), op.given["axis"]
    many = any(counts_images(shape_of(part)[0]) for part in parts if shape_of(part))
    if many and axis % len(op.shape):
        parts = [_for_all_images(op, part) for part in parts]
    return op.call(torch.cat, parts, axis)


def _for_all_images(op: Operation, part: Value) -> Value:
    sizes = shape_of(part)
    if counts_images(sizes[0]) or sizes[0] != 1:
        return part
    part = op.at.attribute(part) if isinstance(part, Tensor) else part
    return op.at.method("expand", part, op.at.number_of_images(), *(-1 for _ in sizes[1:]))


def split(op: Operation) -> Value:
    """Split: in equal parts, or in parts of given sizes."""
    axis = op.given.get("axis", 0) % len(op.shape)
    size, sizes = op.shape[axis], op.numbers("split", 1)
    count = op.num_outputs if sizes is None else len(sizes)
    if sizes is None:
        each = math.ceil(size / count)
        sizes = [*[each] * (count - 1), size - each * (count - 1)]
    if len(set(sizes)) == 1:
        parts = op.call(torch.chunk, op.x, count, axis)
    else:
        parts = op.call(torch.split, op.x, list(sizes), axis)
    return tuple(op.call(operator.getitem, parts, place) for place in range(count))


def slices(op: Operation) -> Value:
    """Slice. An equal part of the channels is taken by chunk, so that they can be removed in equal parts."""
    starts, ends = op.numbers("starts", 1), op.numbers("ends", 2)
    axes, steps = op.numbers("axes", 3, list(range(len(starts)))), op.numbers("steps", 4, [1] * len(starts))
    x, rank = op.x, len(op.shape)
    index = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis, size = axis % rank, op.shape[axis]
        if step < 0:
            places = range(size)[slice(start, None if end < -size else end, step)]
            x = op.call(torch.index_select, x, axis, torch.tensor(list(places)))
            continue
        first, last, _ = slice(start, end).indices(size)
        taken = last - first
        if (
            axis == 1
            and step == 1
            and 0 < taken < size
            and not size % taken
            and not first % taken
            and size // taken <= 8
        ):
            parts = op.call(torch.chunk, x, size // taken, axis)
            x = op.call(operator.getitem, parts, first // taken)
        elif (first, last, step) != (0, size, 1):
            index[axis] = slice(first or None, None if last == size else last, None if step == 1 else step)
    if all(part == slice(None) for part in index):
        return x
    return op.call(operator.getitem, x, tuple(index))


def gather(op: Operation) -> Value:
    """Gather along an axis, at constant places; or rows of a constant table."""
    axis, places = op.given.get("axis", 0) % len(op.shape), op.inputs[1]
    if not isinstance(places, Tensor):
        if axis:
            raise op.refuse("its places are computed from the images")
        return op.call(F.embedding, places, op.x)
    size = op.shape[axis]
    places = torch.where(places < 0, places + size, places)
    if not places.dim():
        return op.call(torch.select, op.x, axis, int(places))
    if places.dim() == 1 and torch.equal(places, torch.arange(size)):
        return op.x
    found = op.call(torch.index_select, op.x, axis, places.reshape(-1))
    return (
        found if places.dim() == 1 else reshaped(op.at, found, (*op.shape[:axis], *places.shape, *op.shape[axis + 1 :]))
    )


def expand(op: Operation) -> Value:
    """Expand, by the rules of broadcasting."""
    wanted = [int(size) for size in op.constant(1).tolist()]
    out = torch.broadcast_shapes(op.shape, wanted)  # type: ignore[no-untyped-call]
    if tuple(out) == op.shape:
        return op.x
    own = [*[0] * (len(out) - len(op.shape)), *op.shape]
    sizes = [-1 if size == old else size for size, old in zip(out, own, strict=True)]
    x = op.at.attribute(op.x) if isinstance(op.x, Tensor) and any(map(counts_images, out)) else op.x
    return op.at.method("expand", x, *op.at.sizes(sizes))


def tile(op: Operation) -> Value:
    """Tile."""
    return op.at.method("repeat", op.x, *op.at.sizes([int(times) for times in op.constant(1).tolist()]))


def filled(op: Operation) -> Value:
    """ConstantOfShape."""
    sizes, value = op.constant(0).tolist(), op.given.get("value", torch.zeros(1))
    if not any(map(counts_images, sizes)):
        return torch.full(sizes, value.item(), dtype=value.dtype)
    return op.call(torch.full, tuple(op.at.sizes(sizes)), value.item(), dtype=value.dtype)


def numbers_between(op: Operation) -> Value:
    """Range."""
    start, end, step = (op.constant(place).item() for place in range(3))
    if isinstance(end, int) and counts_images(end):
        raise op.refuse("it counts images")
    return torch.arange(start, end, step, dtype=type_of(op.x))


def pad(op: Operation) -> Value:
    """Pad: with a value, by reflection, with the edge or around."""
    pads, mode = op.numbers("pads", 1), op.given.get("mode", "constant")
    rank = len(op.shape)
    axes = op.numbers("axes", 3, list(range(rank)))
    both = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        both[axis % rank] = (int(pads[place]), int(pads[place + len(axes)]))
    first = next((place for place, pair in enumerate(both) if pair != (0, 0)), rank)
    if first == rank:
        return op.x
    if mode == "constant":
        value = op.numbers("value", 2, 0.0)
        value = value[0] if isinstance(value, list) else value
        amounts = [amount for pair in reversed(both[first:]) for amount in pair]
        return op.call(F.pad, op.x, amounts, value=float(value)) if value else op.call(F.pad, op.x, amounts)
    amounts = [amount for pair in reversed(both[2:]) for amount in pair]
    names = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if first < 2 or mode not in names:
        raise op.refuse(f"padding of images or channels in mode {mode} is not supported")
    return op.call(F.pad, op.x, amounts, mode=names[mode])


def where(op: Operation) -> Value:
    """Where."""
    return op.call(torch.where, *op.inputs)


def depth_to_space(op: Operation) -> Value:
    """DepthToSpace: torch's pixel shuffle, or with the channels of a position in another order."""
    block, x = op.given["blocksize"], op.x
    if op.given.get("mode", "DCR") == "CRD":
        return op.call(F.pixel_shuffle, x, block)
    x = op.call(torch.permute, op.call(torch.unflatten, x, 1, (block, block, -1)), (0, 3, 4, 1, 5, 2))
    return op.call(torch.flatten, op.call(torch.flatten, x, 4, 5), 2, 3)


def space_to_depth(op: Operation) -> Value:
    """SpaceToDepth."""
    block, x = op.given["blocksize"], op.x
    x = op.call(torch.unflatten, op.call(torch.unflatten, x, 3, (-1, block)), 2, (-1, block))
    return op.call(torch.flatten, op.call(torch.permute, x, (0, 3, 5, 1, 2, 4)), 1, 3)


# -- resizing


def resize(op: Operation) -> Value:
    """Resize of the spatial axes, as far as torch's `interpolate` computes the same."""
    given, rank = op.given, len(op.shape)
    mode, where_ = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    factors, sizes = (op.numbers("scales", 1 if op.opset < 11 else 2), op.numbers("sizes", 3))
    axes = given.get("axes", list(range(rank)))
    if sizes is not None and given.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise op.refuse("keep_aspect_ratio_policy is not supported")
    new, scale = list(op.shape), [1.0] * rank
    for place, axis in enumerate(axes):
        new[axis] = int(sizes[place]) if sizes is not None else math.floor(op.shape[axis] * factors[place] + 1e-6)
        scale[axis] = new[axis] / op.shape[axis] if sizes is not None else float(factors[place])
    new[0] = op.shape[0] if op.at.batch else new[0]
    if new[:2] != list(op.shape[:2]):
        raise op.refuse("images or channels are resized")
    if new == list(op.shape):
        return op.x
    if mode == "nearest":
        return _nearest(op, new[2:], scale[2:])
    kind = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    corners = where_ == "align_corners"
    if (mode, rank) not in kind or (where_ not in ("half_pixel", "pytorch_half_pixel") and not corners):
        raise op.refuse(f"mode {mode} with {where_} for {rank - 2} axes is not supported")
    if mode == "cubic" and given.get("cubic_coeff_a", -0.75) != -0.75:
        raise op.refuse("cubic_coeff_a is not torch's")
    by = {"scale_factor": tuple(scale[2:])} if sizes is None else {"size": tuple(new[2:])}
    fine = bool(given.get("antialias", 0)) and mode in ("linear", "cubic")
    return op.call(
        F.interpolate, op.x, **by, mode=kind[mode, rank], align_corners=corners, **({"antialias": True} if fine else {})
    )


def _nearest(op: Operation, new: list[int], scale: list[float]) -> Value:
    """Nearest neighbours: torch's own places, or else those of the file along each axis."""
    how = (
        op.given.get("coordinate_transformation_mode", "half_pixel"),
        op.given.get("nearest_mode", "round_prefer_floor"),
    )
    old = op.shape[2:]
    wanted = [_places(n, o, s, *how) for n, o, s in zip(new, old, scale, strict=True)]
    whole = all(factor == int(factor) for factor in scale)
    by: dict[str, Any] = {"scale_factor": tuple(scale)} if whole else {"size": tuple(new)}
    for mode in ("nearest", "nearest-exact"):
        if all(_torch_places(n, o, mode) == w for n, o, w in zip(new, old, wanted, strict=True)):
            return op.call(F.interpolate, op.x, **by, mode=mode)
    x = op.x
    for axis, places in enumerate(wanted, start=2):
        x = op.call(torch.index_select, x, axis, torch.tensor(places))
    return x


def _torch_places(new: int, old: int, mode: str) -> list[int]:
    line = torch.arange(old, dtype=torch.float32).reshape(1, 1, old)
    found: list[int] = F.interpolate(line, size=new, mode=mode).reshape(-1).to(torch.int64).tolist()
    return found


def _places(new: int, old: int, scale: float, transformed: str, rounded: str) -> list[int]:
    """The place in the old axis of each place in the new one, by the formulas of the ONNX operator."""
    rounding: dict[str, Callable[[float], float]] = {
        "floor": math.floor,
        "ceil": math.ceil,
        "round_prefer_floor": lambda v: math.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: math.floor(v + 0.5),
    }
    found = []
    for place in range(new):
        if transformed == "asymmetric":
            at = place / scale
        elif transformed == "align_corners":
            at = 0.0 if new == 1 else place * (old - 1) / (new - 1)
        else:
            at = 0.0 if transformed == "pytorch_half_pixel" and new == 1 else (place + 0.5) / scale - 0.5
        found.append(min(max(int(rounding[rounded](at)), 0), old - 1))
    return found


def grid_sample(op: Operation) -> Value:
    """GridSample."""
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(
        op.given.get("mode", "linear"), op.given.get("mode", "bilinear")
    )
    rest = mode, op.given.get("padding_mode", "zeros"), bool(op.given.get("align_corners", 0))
    grid = _for_all_images(op, op.inputs[1]) if counts_images(op.shape[0]) else op.inputs[1]
    return op.call(F.grid_sample, op.x, grid, *rest)


def same(op: Operation) -> Value:
    """Identity, and Dropout, which does nothing outside training."""
    return op.x


def constant(op: Operation) -> Value:
    """Constant."""
    value = next(iter(op.given.values()))
    return value if isinstance(value, Tensor) else torch.tensor(value)


def triangle(op: Operation) -> Value:
    """Trilu."""
    offset = int(op.constant(1)) if op.has(1) else 0
    return op.call(torch.triu if op.given.get("upper", 1) else torch.tril, op.x, offset)


def cumulated(op: Operation) -> Value:
    """CumSum, forward and with the element itself."""
    if op.given.get("exclusive", 0) or op.given.get("reverse", 0):
        raise op.refuse("exclusive and reverse are not supported")
    return op.call(torch.cumsum, op.x, int(op.constant(1)))


def einsum(op: Operation) -> Value:
    """Einsum."""
    return op.call(torch.einsum, op.given["equation"], *op.inputs)


# -- the table

OPERATIONS: dict[str, Translation] = {
    # layers
    "Conv": layers.conv,
    "ConvTranspose": layers.conv_transpose,
    "Gemm": layers.gemm,
    "MatMul": layers.matmul,
    "BatchNormalization": layers.batch_norm,
    "InstanceNormalization": layers.instance_norm,
    "LayerNormalization": layers.layer_norm,
    "GroupNormalization": layers.group_norm,
    "LRN": layers.response_norm,
    "PRelu": layers.prelu,
    "MaxPool": layers.max_pool,
    "AveragePool": layers.average_pool,
    "GlobalAveragePool": layers.global_average_pool,
    "GlobalMaxPool": layers.global_max_pool,
    # activations
    "Relu": unary(torch.relu),
    "LeakyRelu": with_numbers(F.leaky_relu, alpha=0.01),
    "Elu": with_numbers(F.elu, alpha=1.0),
    "Celu": with_numbers(F.celu, alpha=1.0),
    "Selu": unary(F.selu),
    "ThresholdedRelu": lambda op: op.call(F.threshold, op.x, op.given.get("alpha", 1.0), 0.0),
    "Softplus": unary(F.softplus),
    "Softsign": unary(F.softsign),
    "Sigmoid": unary(torch.sigmoid),
    "Tanh": unary(torch.tanh),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": unary(F.hardswish),
    "Mish": unary(F.mish),
    "Gelu": gelu,
    "Clip": clip,
    "Softmax": softmax(torch.softmax),
    "LogSoftmax": softmax(torch.log_softmax),
    # arithmetic
    "Add": add,
    "Sub": binary(torch.sub),
    "Mul": lambda op: op.call(torch.mul, *_ordered(op)),
    "Div": divide,
    "Pow": binary(torch.pow),
    "Mod": modulo,
    "Sqrt": unary(torch.sqrt),
    "Exp": unary(torch.exp),
    "Log": unary(torch.log),
    "Abs": unary(torch.abs),
    "Neg": unary(torch.neg),
    "Reciprocal": unary(torch.reciprocal),
    "Floor": unary(torch.floor),
    "Ceil": unary(torch.ceil),
    "Round": unary(torch.round),
    "Sign": unary(torch.sign),
    "Erf": unary(torch.erf),
    "Sin": unary(torch.sin),
    "Cos": unary(torch.cos),
    "Sum": several(torch.add),
    "Mean": mean,
    "Max": several(torch.maximum),
    "Min": several(torch.minimum),
    "Equal": binary(torch.eq),
    "Greater": binary(torch.gt),
    "GreaterOrEqual": binary(torch.ge),
    "Less": binary(torch.lt),
    "LessOrEqual": binary(torch.le),
    "Not": unary(torch.logical_not),
    "And": binary(torch.logical_and),
    "Or": binary(torch.logical_or),
    "Where": where,
    "Cast": cast,
    "CastLike": cast_like,
    # over axes
    "ReduceMean": reduction(torch.mean),
    "ReduceSum": reduction(torch.sum),
    "ReduceMax": reduction(torch.amax),
    "ReduceMin": reduction(torch.amin),
    "ReduceProd": product,
    "ReduceL1": reduction(torch.sum, before=torch.abs),
    "ReduceL2": reduction(torch.sum, before=torch.square, after=torch.sqrt),
    "ReduceSumSquare": reduction(torch.sum, before=torch.square),
    "ReduceLogSumExp": reduction(torch.logsumexp),
    "ArgMax": extreme_place(torch.argmax),
    "ArgMin": extreme_place(torch.argmin),
    "TopK": top_k,
    "CumSum": cumulated,
    "LpNormalization": unit_length,
    # shapes and places
    "Shape": shape,
    "Size": lambda op: torch.tensor(math.prod(op.shape)),
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slices,
    "Gather": gather,
    "Expand": expand,
    "Tile": tile,
    "ConstantOfShape": filled,
    "Range": numbers_between,
    "Pad": pad,
    "Resize": resize,
    "GridSample": grid_sample,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": triangle,
    "Einsum": einsum,
    "Constant": constant,
    "Identity": same,
    "Dropout": same,
}
