"""Operations of ONNX with weights, and those that slide windows over images: layers and pooling of torch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.zoo.onnx_graph import Operation, Value, is_node, shape_of


def _filled(layer: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """The layer in eval mode, with these tensors as its parameters and buffers."""
    for name, tensor in tensors.items():
        if name in layer._buffers:
            layer._buffers[name] = tensor
        else:
            layer._parameters[name] = None if tensor is None else nn.Parameter(tensor)
    return layer.eval()


# -- windows


def _pairs(pads: list[int]) -> list[tuple[int, int]]:
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def _padding(op: Operation, kernel: list[int], stride: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    """Padding before and after each spatial axis."""
    auto, size = op.given.get("auto_pad", "NOTSET"), op.shape[2:]
    if auto in ("NOTSET", "VALID"):
        return _pairs(op.given.get("pads", [0] * 2 * len(kernel)) if auto == "NOTSET" else [0] * 2 * len(kernel))
    pads = []
    for n, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        missing = max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        pads.append(
            (missing - missing // 2, missing // 2) if auto == "SAME_LOWER" else (missing // 2, missing - missing // 2)
        )
    return pads


def _torch_pads(pads: list[tuple[int, int]]) -> list[int]:
    """As `F.pad` takes them: the last axis first."""
    return [amount for pair in reversed(pads) for amount in pair]


def _same_both_sides(pads: list[tuple[int, int]]) -> bool:
    return all(before == after for before, after in pads)


def _window(op: Operation, kernel: list[int]) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    stride = list(op.given.get("strides", [1] * len(kernel)))
    dilation = list(op.given.get("dilations", [1] * len(kernel)))
    return stride, dilation, _padding(op, kernel, stride, dilation)


def conv(op: Operation) -> Value:
    """Conv, Conv1d to Conv3d. Padding that differs between the sides is a call of its own."""
    x, weight = op.x, op.input(1)
    kernel = list(shape_of(weight)[2:])
    dims = len(kernel)
    stride, dilation, pads = _window(op, kernel)
    groups = op.given.get("group", 1)
    if not _same_both_sides(pads):
        x, pads = op.call(F.pad, x, _torch_pads(pads)), [(0, 0)] * dims
    padding = [before for before, _ in pads]
    bias = op.input(2)
    if not isinstance(weight, Tensor) or is_node(bias):
        function = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
        return op.call(function, x, weight, bias, stride, padding, dilation, groups)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    layer = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(kernel),
        tuple(stride),
        tuple(padding),
        tuple(dilation),
        groups,
        bias is not None,
        device="meta",
    )
    return op.at.layer(op.layer_name(weight), _filled(layer, weight=weight, bias=bias), x)


def conv_transpose(op: Operation) -> Value:
    """ConvTranspose, with equal padding on both sides; a difference between them becomes output padding or a cut."""
    weight, bias = op.constant(1), op.input(2)
    kernel = list(weight.shape[2:])
    dims = len(kernel)
    stride = list(op.given.get("strides", [1] * dims))
    dilation = list(op.given.get("dilations", [1] * dims))
    more, groups = list(op.given.get("output_padding", [0] * dims)), op.given.get("group", 1)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + o
        for n, s, k, d, o in zip(op.shape[2:], stride, kernel, dilation, more, strict=True)
    ]
    auto = op.given.get("auto_pad", "NOTSET")
    if "output_shape" in op.given or auto.startswith("SAME"):
        wanted = op.given.get("output_shape") or [n * s for n, s in zip(op.shape[2:], stride, strict=True)]
        cut = [f - w for f, w in zip(full, wanted[-dims:], strict=True)]
        lower = auto != "SAME_UPPER"
        pads = [(c - c // 2, c // 2) if lower else (c // 2, c - c // 2) for c in cut]
    else:
        pads = _pairs(op.given.get("pads", [0] * 2 * dims))
    padding = [min(pair) for pair in pads]
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    layer = kind(
        weight.shape[0],
        weight.shape[1] * groups,
        tuple(kernel),
        tuple(stride),
        tuple(padding),
        tuple(more),
        groups,
        bias is not None,
        tuple(dilation),
        device="meta",
    )
    out = op.at.layer(op.layer_name(weight), _filled(layer, weight=weight, bias=bias), op.x)
    if _same_both_sides(pads):
        return out
    return op.call(F.pad, out, _torch_pads([(-(b - p), -(a - p)) for (b, a), p in zip(pads, padding, strict=True)]))


def max_pool(op: Operation) -> Value:
    """MaxPool; the positions of the maxima are not given."""
    if op.num_outputs > 1:
        raise op.refuse("the positions of its maxima are read")
    kernel = list(op.given["kernel_shape"])
    stride, dilation, pads = _window(op, kernel)
    x, ceil = op.x, bool(op.given.get("ceil_mode", 0))
    if not _same_both_sides(pads) or any(2 * before > k for (before, _), k in zip(pads, kernel, strict=True)):
        if ceil:  # padding up to the end of the last window that begins inside the image
            pads = [
                (b, _last_window(n, k, s, d, b, a) - n - b)
                for n, k, s, d, (b, a) in zip(op.shape[2:], kernel, stride, dilation, pads, strict=True)
            ]
            ceil = False
        x, pads = op.call(F.pad, x, _torch_pads(pads), value=-math.inf), [(0, 0)] * len(kernel)
    function = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[len(kernel) - 1]
    return op.call(function, x, kernel, stride, [before for before, _ in pads], dilation, ceil)


def _last_window(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Where the last window ends, with windows that reach over the padding."""
    reach = (kernel - 1) * dilation + 1
    windows = math.ceil((size + before + after - reach) / stride) + 1
    if (windows - 1) * stride >= size + before:
        windows -= 1
    return (windows - 1) * stride + reach


def average_pool(op: Operation) -> Value:
    """AveragePool. Padding that differs between the sides can only be counted."""
    kernel = list(op.given["kernel_shape"])
    stride, dilation, pads = _window(op, kernel)
    counted = bool(op.given.get("count_include_pad", 0))
    if any(d != 1 for d in dilation):
        raise op.refuse("dilations are not supported")
    x = op.x
    if not _same_both_sides(pads):
        if not counted:
            ones = op.call(torch.ones_like, x)
            both = [
                average_pool(
                    Operation(op.at, op.kind, op.name, op.opset, (value,), {**op.given, "count_include_pad": 1})
                )
                for value in (x, ones)
            ]
            return op.call(torch.div, *both)
        x, pads = op.call(F.pad, x, _torch_pads(pads)), [(0, 0)] * len(kernel)
    function = (torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    ceil = bool(op.given.get("ceil_mode", 0))
    return op.call(function, x, kernel, stride, [before for before, _ in pads], ceil, counted)


def global_average_pool(op: Operation) -> Value:
    """GlobalAveragePool."""
    dims = len(op.shape) - 2
    return op.call((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[dims - 1], op.x, 1)


def global_max_pool(op: Operation) -> Value:
    """GlobalMaxPool."""
    return op.call(torch.amax, op.x, tuple(range(2, len(op.shape))), True)


# -- matrices


def _linear(op: Operation, x: Value, weight: Tensor, bias: Tensor | None, source: Tensor) -> Value:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return op.at.layer(op.layer_name(source), _filled(layer, weight=weight.contiguous(), bias=bias), x)


def gemm(op: Operation) -> Value:
    """Gemm, alpha A B + beta C: a linear layer if B and C are constants."""
    a, b, c = op.x, op.input(1), op.input(2)
    alpha, beta = op.given.get("alpha", 1.0), op.given.get("beta", 1.0)
    if op.given.get("transA", 0):
        a = op.call(torch.t, a)
    if isinstance(b, Tensor) and (c is None or isinstance(c, Tensor)):
        weight = b if op.given.get("transB", 0) else b.t()
        bias = None if c is None else (c * beta).expand(1, weight.shape[0]).reshape(-1)
        bias = c if beta == 1 and c is not None and c.shape == (weight.shape[0],) else bias
        return _linear(op, a, weight if alpha == 1 else alpha * weight, bias, b)
    b = op.call(torch.t, b) if op.given.get("transB", 0) else b
    out = op.call(torch.mul, op.call(torch.matmul, a, b), alpha)
    return out if c is None else op.call(torch.add, out, op.call(torch.mul, c, beta))


def matmul(op: Operation) -> Value:
    """MatMul: a linear layer if the second factor is a constant matrix."""
    b = op.input(1)
    if is_node(op.x) and isinstance(b, Tensor) and b.dim() == 2:
        return _linear(op, op.x, b.t(), None, b)
    return op.call(torch.matmul, op.x, b)


# -- norms


def batch_norm(op: Operation) -> Value:
    """BatchNormalization with stored statistics."""
    if op.given.get("training_mode", 0):
        raise op.refuse("it is in training mode; export the network in eval mode")
    weight, bias, mean, variance = (op.constant(place) for place in (1, 2, 3, 4))
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(op.shape)]
    layer = kind(len(weight), op.given.get("epsilon", 1e-5), 1 - op.given.get("momentum", 0.9), device="meta")
    layer.num_batches_tracked = torch.tensor(0)
    filled = _filled(layer, weight=weight, bias=bias, running_mean=mean.clone(), running_var=variance.clone())
    return op.at.layer(op.layer_name(weight), filled, op.x)


def instance_norm(op: Operation) -> Value:
    """InstanceNormalization."""
    weight, bias = op.constant(1), op.constant(2)
    kind: Any = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[len(op.shape)]
    layer = kind(len(weight), op.given.get("epsilon", 1e-5), affine=True, device="meta")
    return op.at.layer(op.layer_name(weight), _filled(layer, weight=weight, bias=bias), op.x)


def layer_norm(op: Operation) -> Value:
    """LayerNormalization over the last axes."""
    if op.num_outputs > 1:
        raise op.refuse("its mean or deviation is read")
    weight, bias = op.constant(1), op.input(2)
    axis = op.given.get("axis", -1) % len(op.shape)
    layer = nn.LayerNorm(op.shape[axis:], op.given.get("epsilon", 1e-5), bias=bias is not None, device="meta")
    shaped = [None if each is None else each.expand(layer.normalized_shape) for each in (weight, bias)]
    return op.at.layer(op.layer_name(weight), _filled(layer, weight=shaped[0], bias=shaped[1]), op.x)


def group_norm(op: Operation) -> Value:
    """GroupNormalization of opset 21 and later; ONNX has withdrawn the one before."""
    weight, bias, groups = op.constant(1), op.constant(2), op.given["num_groups"]
    layer = nn.GroupNorm(groups, op.shape[1], op.given.get("epsilon", 1e-5), device="meta")
    return op.at.layer(op.layer_name(weight), _filled(layer, weight=weight, bias=bias), op.x)


def response_norm(op: Operation) -> Value:
    """LRN."""
    given = op.given
    rest = given.get("alpha", 1e-4), given.get("beta", 0.75), given.get("bias", 1.0)
    return op.call(F.local_response_norm, op.x, given["size"], *rest)


def prelu(op: Operation) -> Value:
    """PRelu: one slope, or one for each channel."""
    slope = op.constant(1)
    rank = len(op.shape)
    lined = slope.reshape((1,) * (rank - slope.dim()) + tuple(slope.shape)) if slope.dim() <= rank else slope
    elsewhere = any(size != 1 for place, size in enumerate(lined.shape) if place != 1)
    if elsewhere and slope.numel() != 1 and not (slope.dim() == 1 and rank == 2):
        raise op.refuse("its slopes are not one for each channel")
    flat = slope.reshape(-1)
    layer = nn.PReLU(len(flat), device="meta")
    return op.at.layer(op.layer_name(slope), _filled(layer, weight=flat), op.x)
