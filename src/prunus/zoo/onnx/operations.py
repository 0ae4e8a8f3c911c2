"""The table of ONNX operations: what each becomes in torch. An operation that is not listed is refused by its name."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.errors import ModelError
from prunus.zoo.onnx import layers
from prunus.zoo.onnx.graph import NUM_IMAGES, Operation, Value, counts_images, is_node, shape_of, tensor_of

Translation = Callable[[Operation], Value]
TYPES = {  # of TensorProto
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    11: torch.float64,
}

# -- position by position


def unary(function: Callable[..., Any], **attributes: Any) -> Translation:
    """A function of one tensor and of attributes, which have these names and defaults."""
    return lambda op: op.call(function, op.x, *(op.get(name, default) for name, default in attributes.items()))


def _operands(op: Operation) -> list[Any]:
    """The inputs; constants of one element become numbers, which follow the type and shape of the others."""
    nodes = [value for value in op.inputs if is_node(value)]
    kinds = {tensor_of(value).dtype for value in nodes}
    of_nodes = max((len(shape_of(value)) for value in nodes), default=-1) == max(len(shape_of(v)) for v in op.inputs)
    return [
        value.item()
        if isinstance(value, Tensor) and value.numel() == 1 and {value.dtype} == kinds != {torch.bool} and of_nodes
        else value
        for value in op.inputs
    ]


def binary(function: Callable[..., Any], symmetric: bool = False) -> Translation:
    """A function of two tensors; `symmetric`: their order does not matter."""

    def translated(op: Operation) -> Value:
        left, right = _operands(op)
        if not isinstance(left, Tensor) and not is_node(left):  # torch takes a number in the second place only
            left, right = (right, left) if symmetric else (op.constant(0), right)
        return op.call(function, left, right)

    return translated


def add(op: Operation) -> Value:
    """Add. A constant for each output of a layer without biases becomes its bias."""
    for place in (0, 1):
        node, constant = op.inputs[place], op.input(1 - place)
        if not is_node(node) or node.op != "call_module" or not op.once[place]:
            continue
        if not isinstance(constant, Tensor) or not constant.is_floating_point():
            continue
        layer: Any = op.builder.root.get_submodule(node.target)
        calls = sum(other.op == "call_module" and other.target == node.target for other in op.builder.graph.nodes)
        if calls != 1 or layer._parameters.get("bias", 0) is not None:
            continue
        axis = -1 if isinstance(layer, nn.Linear) else 1 - len(shape_of(node))
        transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
        outputs = layer.weight.shape[1] * layer.groups if transposed else layer.weight.shape[0]
        sizes = (1,) * (-axis - constant.dim()) + tuple(constant.shape)
        if len(sizes) <= len(shape_of(node)) and sizes[axis] == outputs == constant.numel():
            layer.bias = nn.Parameter(constant.reshape(-1))
            return node
    return binary(torch.add, symmetric=True)(op)


def divide(op: Operation) -> Value:
    """Div; whole numbers are divided towards zero."""
    if tensor_of(op.x).dtype.is_floating_point:
        return binary(torch.div)(op)
    return op.call(torch.div, *op.inputs, rounding_mode="trunc")


def several(function: Callable[..., Any]) -> Translation:
    """A function of two tensors, applied to any number of them."""
    return lambda op: functools.reduce(functools.partial(op.call, function), op.inputs)


def clip(op: Operation) -> Value:
    least, most = op.numbers("min", 1), op.numbers("max", 2)
    return op.x if least is None and most is None else op.call(torch.clamp, op.x, least, most)


def hard_sigmoid(op: Operation) -> Value:
    """HardSigmoid, max(0, min(1, alpha x + beta))."""
    alpha, beta = op.get("alpha", 0.2), op.get("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return op.call(F.hardsigmoid, op.x)
    return op.call(torch.clamp, op.call(torch.add, op.call(torch.mul, op.x, alpha), beta), 0.0, 1.0)


def softmax(function: Callable[..., Any]) -> Translation:
    """Softmax along one axis; before opset 13, over all axes from there on."""

    def translated(op: Operation) -> Value:
        rank = len(op.shape)
        axis = op.get("axis", 1 if op.opset < 13 else -1) % rank
        if op.opset >= 13 or axis == rank - 1:
            return op.call(function, op.x, axis)
        flat = op.call(torch.flatten, op.x, axis, -1)
        return op.builder.reshape(op.call(function, flat, axis), op.shape)

    return translated


def _cast(op: Operation, kind: torch.dtype | None) -> Value:
    if kind is None:
        raise ModelError(f"type {op.attributes['to']} of ONNX has no counterpart")
    return op.x if tensor_of(op.x).dtype == kind else op.call("to", op.x, kind)


# -- over axes


def _reduced_axes(op: Operation) -> tuple[int, ...]:
    given, rank = op.numbers("axes", 1), len(op.shape)
    if given is None:
        return () if op.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in given))


def reduction(function: Callable[..., Any], before: Callable[..., Any] | None = None, after: Any = None) -> Translation:
    """A reduction over axes, perhaps of a function of the elements, and perhaps with a function of the result."""

    def translated(op: Operation) -> Value:
        axes, x = _reduced_axes(op), op.x if before is None else op.call(before, op.x)
        if axes:
            x = op.call(function, x, axes, bool(op.get("keepdims", 1)))
        return x if after is None else op.call(after, x)

    return translated


def product(op: Operation) -> Value:
    x, keep = op.x, bool(op.get("keepdims", 1))
    for axis in reversed(_reduced_axes(op)):
        x = op.call(torch.prod, x, axis, keep)
    return x


def extreme_place(function: Callable[..., Any]) -> Translation:
    def translated(op: Operation) -> Value:
        if op.get("select_last_index", 0):
            raise ModelError("select_last_index is not supported")
        return op.call(function, op.x, op.get("axis", 0), bool(op.get("keepdims", 1)))

    return translated


def top_k(op: Operation) -> Value:
    """TopK: values and places."""
    number = int(op.constant(1).reshape(-1)[0])
    both = op.call(torch.topk, op.x, number, op.get("axis", -1), bool(op.get("largest", 1)), bool(op.get("sorted", 1)))
    return tuple(op.call(operator.getitem, both, place) for place in (0, 1))


def cumulated(op: Operation) -> Value:
    """CumSum, forward and with the element itself."""
    if op.get("exclusive", 0) or op.get("reverse", 0):
        raise ModelError("exclusive and reverse are not supported")
    return op.call(torch.cumsum, op.x, int(op.constant(1)))


# -- shapes


def reshape(op: Operation) -> Value:
    """Reshape, to sizes that are known: 0 stands for the same size, and -1 for the rest."""
    shape, batch = op.shape, op.builder.batch
    sizes = [int(size) for size in op.constant(1).tolist()]
    if not op.get("allowzero", 0):
        sizes = [shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    if batch and sizes and shape and counts_images(shape[0]) and not any(map(counts_images, sizes)):
        # The file is for a fixed number of images: a multiple of it, or of the images of the input, counts them.
        first = sizes[0]
        rest = math.prod(shape) // math.prod(size for size in sizes[1:] if size != -1) if first != -1 else 0
        if first == batch or (-1 not in sizes and first * NUM_IMAGES == rest * batch):
            sizes[0] = first * NUM_IMAGES // batch
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // known if known else 0
    return op.builder.reshape(op.x, sizes)


def flatten(op: Operation) -> Value:
    """Flatten to two axes."""
    axis = op.get("axis", 1)
    axis = axis % len(op.shape) if axis < 0 else axis
    return op.builder.reshape(op.x, (math.prod(op.shape[:axis]), math.prod(op.shape[axis:])))


def squeeze(op: Operation) -> Value:
    axes, x = op.numbers("axes", 1), op.x
    axes = [place for place, size in enumerate(op.shape) if size == 1] if axes is None else axes
    for axis in sorted((axis % len(op.shape) for axis in axes), reverse=True):
        x = op.call(torch.squeeze, x, axis)
    return x


def unsqueeze(op: Operation) -> Value:
    axes, x = op.numbers("axes", 1), op.x
    for axis in sorted(axis % (len(op.shape) + len(axes)) for axis in axes):
        x = op.call(torch.unsqueeze, x, axis)
    return x


def concat(op: Operation) -> Value:
    """Concat. In a file for one image, what has one image beside the images of others is repeated for each."""
    parts, axis = list(op.inputs), op.attributes["axis"]
    many = any(counts_images(shape_of(part)[0]) for part in parts if shape_of(part))
    if many and axis % len(op.shape):
        parts = [_for_all_images(op, part) for part in parts]
    return op.call(torch.cat, parts, axis)


def _for_all_images(op: Operation, part: Value) -> Value:
    sizes = shape_of(part)
    if sizes[0] != 1:
        return part
    part = op.builder.attribute(part) if isinstance(part, Tensor) else part
    return op.call("expand", part, *op.builder.sizes([NUM_IMAGES]), *(-1 for _ in sizes[1:]))


def split(op: Operation) -> Value:
    """Split: in equal parts, or in parts of given sizes."""
    axis = op.get("axis", 0) % len(op.shape)
    size, sizes = op.shape[axis], op.numbers("split", 1)
    count = op.num_outputs if sizes is None else len(sizes)
    if sizes is None:
        each = math.ceil(size / count)
        sizes = [*[each] * (count - 1), size - each * (count - 1)]
    equal = len(set(sizes)) == 1
    parts = op.call(torch.chunk, op.x, count, axis) if equal else op.call(torch.split, op.x, list(sizes), axis)
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
        equal_parts = 0 < taken < size and not size % taken and not first % taken and size // taken <= 8
        if axis == 1 and step == 1 and equal_parts:
            parts = op.call(torch.chunk, x, size // taken, axis)
            x = op.call(operator.getitem, parts, first // taken)
        elif (first, last, step) != (0, size, 1):
            index[axis] = slice(first or None, None if last == size else last, None if step == 1 else step)
    if all(part == slice(None) for part in index):
        return x
    return op.call(operator.getitem, x, tuple(index))


def gather(op: Operation) -> Value:
    """Gather along an axis, at constant places; or rows of a constant table."""
    axis, places = op.get("axis", 0) % len(op.shape), op.inputs[1]
    if not isinstance(places, Tensor):
        if axis:
            raise ModelError("its places are computed from the images")
        return op.call(F.embedding, places, op.x)
    size = op.shape[axis]
    places = torch.where(places < 0, places + size, places)
    if not places.dim():
        return op.call(torch.select, op.x, axis, int(places))
    if places.dim() == 1 and torch.equal(places, torch.arange(size)):
        return op.x
    rows = op.call(torch.index_select, op.x, axis, places.reshape(-1))
    if places.dim() == 1:
        return rows
    return op.builder.reshape(rows, (*op.shape[:axis], *places.shape, *op.shape[axis + 1 :]))


def expand(op: Operation) -> Value:
    """Expand, by the rules of broadcasting."""
    wanted = [int(size) for size in op.constant(1).tolist()]
    out = torch.broadcast_shapes(op.shape, wanted)  # type: ignore[no-untyped-call]
    if tuple(out) == op.shape:
        return op.x
    old = [*[0] * (len(out) - len(op.shape)), *op.shape]
    sizes = [-1 if size == before else size for size, before in zip(out, old, strict=True)]
    x = op.builder.attribute(op.x) if isinstance(op.x, Tensor) and any(map(counts_images, out)) else op.x
    return op.call("expand", x, *op.builder.sizes(sizes))


def filled(op: Operation) -> Value:
    sizes, value = op.constant(0).tolist(), op.get("value", torch.zeros(1))
    return op.call(torch.full, tuple(op.builder.sizes(sizes)), value.item(), dtype=value.dtype)


def numbers_between(op: Operation) -> Value:
    start, end, step = (op.constant(place).item() for place in range(3))
    if isinstance(end, int) and counts_images(end):
        raise ModelError("it counts images")
    return torch.arange(start, end, step, dtype=op.x.dtype)


def constant(op: Operation) -> Value:
    return torch.as_tensor(next(iter(op.attributes.values())))


def pad(op: Operation) -> Value:
    """Pad: with a value, by reflection, with the edge or around."""
    pads, mode, rank = op.numbers("pads", 1), op.get("mode", "constant"), len(op.shape)
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
        return op.call(F.pad, op.x, layers.torch_pads(both[first:]), **({"value": float(value)} if value else {}))
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    if first < 2 or mode not in modes:
        raise ModelError(f"padding of images or channels in mode {mode} is not supported")
    return op.call(F.pad, op.x, layers.torch_pads(both[2:]), mode=modes[mode])


def depth_to_space(op: Operation) -> Value:
    """DepthToSpace: torch's pixel shuffle, or with the channels of a position in another order."""
    block, x = op.attributes["blocksize"], op.x
    if op.get("mode", "DCR") == "CRD":
        return op.call(F.pixel_shuffle, x, block)
    x = op.call(torch.permute, op.call(torch.unflatten, x, 1, (block, block, -1)), (0, 3, 4, 1, 5, 2))
    return op.call(torch.flatten, op.call(torch.flatten, x, 4, 5), 2, 3)


def space_to_depth(op: Operation) -> Value:
    block, x = op.attributes["blocksize"], op.x
    x = op.call(torch.unflatten, op.call(torch.unflatten, x, 3, (-1, block)), 2, (-1, block))
    return op.call(torch.flatten, op.call(torch.permute, x, (0, 3, 5, 1, 2, 4)), 1, 3)


# -- resizing


def resize(op: Operation) -> Value:
    """Resize of the spatial axes, as far as torch's `interpolate` computes the same."""
    rank, mode = len(op.shape), op.get("mode", "nearest")
    transformation = op.get("coordinate_transformation_mode", "half_pixel")
    factors, sizes = op.numbers("scales", 2), op.numbers("sizes", 3)
    if sizes is not None and op.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ModelError("keep_aspect_ratio_policy is not supported")
    new, scale = list(op.shape), [1.0] * rank
    for place, axis in enumerate(op.get("axes", list(range(rank)))):
        new[axis] = int(sizes[place]) if sizes is not None else math.floor(op.shape[axis] * factors[place] + 1e-6)
        scale[axis] = new[axis] / op.shape[axis] if sizes is not None else float(factors[place])
    new[0] = op.shape[0] if op.builder.batch else new[0]
    if new[:2] != list(op.shape[:2]):
        raise ModelError("images or channels are resized")
    if new == list(op.shape):
        return op.x
    if mode == "nearest":
        return _nearest(op, new[2:], scale[2:], transformation)
    kinds = {("linear", 3): "linear", ("linear", 4): "bilinear", ("linear", 5): "trilinear", ("cubic", 4): "bicubic"}
    corners = transformation == "align_corners"
    if (mode, rank) not in kinds or (transformation not in ("half_pixel", "pytorch_half_pixel") and not corners):
        raise ModelError(f"mode {mode} with {transformation} for {rank - 2} axes is not supported")
    if mode == "cubic" and op.get("cubic_coeff_a", -0.75) != -0.75:
        raise ModelError("cubic_coeff_a is not torch's")
    by = {"scale_factor": tuple(scale[2:])} if sizes is None else {"size": tuple(new[2:])}
    fine = {"antialias": True} if op.get("antialias", 0) else {}
    return op.call(F.interpolate, op.x, **by, mode=kinds[mode, rank], align_corners=corners, **fine)


def _nearest(op: Operation, new: Sequence[int], scale: Sequence[float], transformation: str) -> Value:
    """Nearest neighbours: torch's own places, or else those of the file along each axis."""
    old, rounding = op.shape[2:], op.get("nearest_mode", "round_prefer_floor")
    wanted = [_places(n, o, s, transformation, rounding) for n, o, s in zip(new, old, scale, strict=True)]
    whole = all(factor == int(factor) for factor in scale)
    by: dict[str, Any] = {"scale_factor": tuple(scale)} if whole else {"size": tuple(new)}
    for mode in ("nearest", "nearest-exact"):
        lines = [torch.arange(o, dtype=torch.float32).reshape(1, 1, o) for o in old]
        places = [F.interpolate(line, size=n, mode=mode).flatten().long() for line, n in zip(lines, new, strict=True)]
        if [each.tolist() for each in places] == wanted:
            return op.call(F.interpolate, op.x, **by, mode=mode)
    x = op.x
    for axis, places_of_axis in enumerate(wanted, start=2):
        x = op.call(torch.index_select, x, axis, torch.tensor(places_of_axis))
    return x


_ROUNDING: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda v: math.ceil(v - 0.5),
    "round_prefer_ceil": lambda v: math.floor(v + 0.5),
}


def _places(new: int, old: int, scale: float, transformation: str, rounding: str) -> list[int]:
    """The place in the old axis of each place in the new one, by the formulas of the ONNX operator."""

    def original(place: int) -> float:
        if transformation == "asymmetric":
            return place / scale
        if transformation == "align_corners":
            return 0.0 if new == 1 else place * (old - 1) / (new - 1)
        return 0.0 if transformation == "pytorch_half_pixel" and new == 1 else (place + 0.5) / scale - 0.5

    return [min(max(int(_ROUNDING[rounding](original(place))), 0), old - 1) for place in range(new)]


def grid_sample(op: Operation) -> Value:
    mode = op.get("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    grid = _for_all_images(op, op.inputs[1]) if counts_images(op.shape[0]) else op.inputs[1]
    rest = op.get("padding_mode", "zeros"), bool(op.get("align_corners", 0))
    return op.call(F.grid_sample, op.x, grid, mode, *rest)


# -- the table

SAME_NAME = "Relu Sigmoid Tanh Sqrt Exp Log Abs Neg Reciprocal Floor Ceil Round Sign Erf Sin Cos"  # in torch
SAME_NAME_OF_LAYER = "Selu Softplus Softsign HardSwish Mish"  # in torch.nn.functional
POOLS = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)

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
    "LRN": unary(F.local_response_norm, size=None, alpha=1e-4, beta=0.75, bias=1.0),
    "PRelu": layers.prelu,
    "MaxPool": layers.max_pool,
    "AveragePool": layers.average_pool,
    "GlobalAveragePool": lambda op: op.call(POOLS[len(op.shape) - 3], op.x, 1),
    "GlobalMaxPool": lambda op: op.call(torch.amax, op.x, tuple(range(2, len(op.shape))), True),
    # position by position
    **{kind: unary(getattr(torch, kind.lower())) for kind in SAME_NAME.split()},
    **{kind: unary(getattr(F, kind.lower())) for kind in SAME_NAME_OF_LAYER.split()},
    "LeakyRelu": unary(F.leaky_relu, alpha=0.01),
    "Elu": unary(F.elu, alpha=1.0),
    "Celu": unary(F.celu, alpha=1.0),
    "ThresholdedRelu": lambda op: op.call(F.threshold, op.x, op.get("alpha", 1.0), 0.0),
    "HardSigmoid": hard_sigmoid,
    "Gelu": lambda op: op.call(F.gelu, op.x, approximate=op.get("approximate", "none")),
    "Clip": clip,
    "Softmax": softmax(torch.softmax),
    "LogSoftmax": softmax(torch.log_softmax),
    "Add": add,
    "Sub": binary(torch.sub),
    "Mul": binary(torch.mul, symmetric=True),
    "Div": divide,
    "Pow": binary(torch.pow),
    "Mod": lambda op: op.call(torch.fmod if op.get("fmod", 0) else torch.remainder, *_operands(op)),
    "Sum": several(torch.add),
    "Mean": lambda op: op.call(torch.div, several(torch.add)(op), len(op.inputs)),
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
    "Where": lambda op: op.call(torch.where, *op.inputs),
    "Cast": lambda op: _cast(op, TYPES.get(op.attributes["to"])),
    "CastLike": lambda op: _cast(op, tensor_of(op.inputs[1]).dtype),
    "Identity": lambda op: op.x,
    "Dropout": lambda op: op.x,  # it does nothing outside training
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
    "LpNormalization": lambda op: op.call(F.normalize, op.x, float(op.get("p", 2)), op.get("axis", -1)),
    "Einsum": lambda op: op.call(torch.einsum, op.attributes["equation"], *op.inputs),
    # shapes and places. The number of images is a number that stands for it
    "Shape": lambda op: torch.tensor(op.shape[op.get("start", 0) : op.get("end", len(op.shape))], dtype=torch.int64),
    "Size": lambda op: torch.tensor(math.prod(op.shape)),
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": lambda op: op.call(torch.permute, op.x, tuple(op.get("perm", range(len(op.shape) - 1, -1, -1)))),
    "Concat": concat,
    "Split": split,
    "Slice": slices,
    "Gather": gather,
    "Expand": expand,
    "Tile": lambda op: op.call("repeat", op.x, *op.builder.sizes([int(times) for times in op.constant(1).tolist()])),
    "ConstantOfShape": filled,
    "Constant": constant,
    "Range": numbers_between,
    "Pad": pad,
    "Resize": resize,
    "GridSample": grid_sample,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": lambda op: op.call(
        torch.triu if op.get("upper", 1) else torch.tril, op.x, 0 if op.input(1) is None else int(op.constant(1))
    ),
}
