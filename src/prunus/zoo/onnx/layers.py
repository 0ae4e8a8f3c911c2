"""Operations of ONNX with weights, and those that slide windows over images: layers and pooling of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.errors import ModelError
from prunus.zoo.onnx.graph import Operation, Value, is_node, shape_of

Pads = list[tuple[int, int]]  # before and after each spatial axis


def _pairs(pads: list[int]) -> Pads:
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))


def torch_pads(pads: Sequence[tuple[int, int]]) -> list[int]:
    """As `F.pad` takes them: the last axis first."""
    return [amount for pair in reversed(pads) for amount in pair]


def _same_both_sides(pads: Pads) -> bool:
    return all(before == after for before, after in pads)


def _window(op: Operation, kernel: list[int]) -> tuple[list[int], list[int], Pads]:
    """Stride, dilation and padding."""
    stride, dilation = (list(op.get(name, [1] * len(kernel))) for name in ("strides", "dilations"))
    auto = op.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        none = [0] * 2 * len(kernel)
        return stride, dilation, _pairs(op.get("pads", none) if auto == "NOTSET" else none)
    pads = []
    for n, k, s, d in zip(op.shape[2:], kernel, stride, dilation, strict=True):
        missing = max(0, (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n)
        less, more = missing // 2, missing - missing // 2
        pads.append((more, less) if auto == "SAME_LOWER" else (less, more))
    return stride, dilation, pads


def conv(op: Operation) -> Value:
    """Conv, Conv1d to Conv3d. Padding that differs between the sides is a call of its own."""
    x, weight, bias = op.x, op.input(1), op.input(2)
    kernel = list(shape_of(weight)[2:])
    dims, groups = len(kernel), op.get("group", 1)
    stride, dilation, pads = _window(op, kernel)
    if not _same_both_sides(pads):
        x, pads = op.call(F.pad, x, torch_pads(pads)), [(0, 0)] * dims
    padding = [before for before, _ in pads]
    if not isinstance(weight, Tensor) or is_node(bias):
        function = (torch.conv1d, torch.conv2d, torch.conv3d)[dims - 1]
        return op.call(function, x, weight, bias, stride, padding, dilation, groups)
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    window = map(tuple, (kernel, stride, padding, dilation))
    layer = kind(weight.shape[1] * groups, weight.shape[0], *window, groups, bias is not None, device="meta")
    return op.layer(layer, x, weight=weight, bias=bias)


def conv_transpose(op: Operation) -> Value:
    """ConvTranspose, with equal padding on both sides; a difference between them becomes output padding or a cut."""
    weight, bias = op.constant(1), op.input(2)
    kernel, groups = list(weight.shape[2:]), op.get("group", 1)
    dims = len(kernel)
    stride, dilation = (list(op.get(name, [1] * dims)) for name in ("strides", "dilations"))
    more = list(op.get("output_padding", [0] * dims))
    auto = op.get("auto_pad", "NOTSET")
    if "output_shape" in op.attributes or auto.startswith("SAME"):
        wanted = op.get("output_shape") or [n * s for n, s in zip(op.shape[2:], stride, strict=True)]
        pads = []
        for n, s, k, d, o, size in zip(op.shape[2:], stride, kernel, dilation, more, wanted[-dims:], strict=True):
            cut = (n - 1) * s + (k - 1) * d + 1 + o - size
            pads.append((cut // 2, cut - cut // 2) if auto == "SAME_UPPER" else (cut - cut // 2, cut // 2))
    else:
        pads = _pairs(op.get("pads", [0] * 2 * dims))
    padding = [min(pair) for pair in pads]
    kind: Any = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    window = map(tuple, (kernel, stride, padding, more))
    sizes = weight.shape[0], weight.shape[1] * groups
    layer = kind(*sizes, *window, groups, bias is not None, tuple(dilation), device="meta")
    out = op.layer(layer, op.x, weight=weight, bias=bias)
    if _same_both_sides(pads):
        return out
    return op.call(F.pad, out, torch_pads([(p - b, p - a) for (b, a), p in zip(pads, padding, strict=True)]))


def max_pool(op: Operation) -> Value:
    """MaxPool; the positions of the maxima are not given."""
    if op.num_outputs > 1:
        raise ModelError("the positions of its maxima are read")
    kernel = list(op.attributes["kernel_shape"])
    stride, dilation, pads = _window(op, kernel)
    x, ceil = op.x, bool(op.get("ceil_mode", 0))
    if not _same_both_sides(pads) or any(2 * before > k for (before, _), k in zip(pads, kernel, strict=True)):
        if ceil:  # padding up to the end of the last window that begins inside the image
            ceil, given, pads = False, pads, []
            for n, k, s, d, (before, after) in zip(op.shape[2:], kernel, stride, dilation, given, strict=True):
                reach = (k - 1) * d + 1
                windows = math.ceil((n + before + after - reach) / s) + 1
                if (windows - 1) * s >= n + before:
                    windows -= 1
                pads.append((before, (windows - 1) * s + reach - n - before))
        x, pads = op.call(F.pad, x, torch_pads(pads), value=-math.inf), [(0, 0)] * len(kernel)
    function = (torch.max_pool1d, torch.max_pool2d, torch.max_pool3d)[len(kernel) - 1]
    return op.call(function, x, kernel, stride, [before for before, _ in pads], dilation, ceil)


def average_pool(op: Operation) -> Value:
    """AveragePool. Padding that differs between the sides can only be counted."""
    kernel = list(op.attributes["kernel_shape"])
    stride, dilation, pads = _window(op, kernel)
    counted = bool(op.get("count_include_pad", 0))
    if any(d != 1 for d in dilation):
        raise ModelError("dilations are not supported")
    x = op.x
    if not _same_both_sides(pads):
        if not counted:
            counting = {**op.attributes, "count_include_pad": 1}
            both = [
                average_pool(replace(op, inputs=(value,), attributes=counting))
                for value in (x, op.call(torch.ones_like, x))
            ]
            return op.call(torch.div, *both)
        x, pads = op.call(F.pad, x, torch_pads(pads)), [(0, 0)] * len(kernel)
    function = (torch.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
    ceil = bool(op.get("ceil_mode", 0))
    return op.call(function, x, kernel, stride, [before for before, _ in pads], ceil, counted)


def _linear(op: Operation, x: Value, weight: Tensor, bias: Tensor | None, source: Tensor) -> Value:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    return op.layer(layer, x, source=source, weight=weight.contiguous(), bias=bias)


def gemm(op: Operation) -> Value:
    """Gemm, alpha A B + beta C: a linear layer if B and C are constants."""
    a, b, c = op.x, op.input(1), op.input(2)
    alpha, beta = op.get("alpha", 1.0), op.get("beta", 1.0)
    if op.get("transA", 0):
        a = op.call(torch.t, a)
    if isinstance(b, Tensor) and (c is None or isinstance(c, Tensor)):
        weight = b if op.get("transB", 0) else b.t()
        bias = c
        if c is not None and (beta != 1 or c.shape != (weight.shape[0],)):
            bias = (c * beta).expand(1, weight.shape[0]).reshape(-1)
        return _linear(op, a, weight if alpha == 1 else alpha * weight, bias, b)
    b = op.call(torch.t, b) if op.get("transB", 0) else b
    out = op.call(torch.mul, op.call(torch.matmul, a, b), alpha)
    return out if c is None else op.call(torch.add, out, op.call(torch.mul, c, beta))


def matmul(op: Operation) -> Value:
    """MatMul: a linear layer if the second factor is a constant matrix."""
    b = op.input(1)
    if is_node(op.x) and isinstance(b, Tensor) and b.dim() == 2:
        return _linear(op, op.x, b.t(), None, b)
    return op.call(torch.matmul, op.x, b)


def batch_norm(op: Operation) -> Value:
    """BatchNormalization with stored statistics."""
    if op.get("training_mode", 0):
        raise ModelError("it is in training mode; export the network in eval mode")
    weight, bias, mean, variance = (op.constant(place) for place in (1, 2, 3, 4))
    kind: Any = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(op.shape)]
    layer = kind(len(weight), op.get("epsilon", 1e-5), 1 - op.get("momentum", 0.9), device="meta")
    statistics = {"running_mean": mean.clone(), "running_var": variance.clone(), "num_batches_tracked": torch.tensor(0)}
    return op.layer(layer, op.x, weight=weight, bias=bias, **statistics)


def instance_norm(op: Operation) -> Value:
    weight, bias = op.constant(1), op.constant(2)
    kind: Any = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}[len(op.shape)]
    layer = kind(len(weight), op.get("epsilon", 1e-5), affine=True, device="meta")
    return op.layer(layer, op.x, weight=weight, bias=bias)


def layer_norm(op: Operation) -> Value:
    """LayerNormalization over the last axes."""
    if op.num_outputs > 1:
        raise ModelError("its mean or deviation is read")
    weight, bias = op.constant(1), op.input(2)
    sizes = op.shape[op.get("axis", -1) % len(op.shape) :]
    layer = nn.LayerNorm(sizes, op.get("epsilon", 1e-5), bias=bias is not None, device="meta")
    bias = None if bias is None else bias.expand(sizes)
    return op.layer(layer, op.x, source=weight, weight=weight.expand(sizes), bias=bias)


def group_norm(op: Operation) -> Value:
    """GroupNormalization of opset 21 and later; ONNX has withdrawn the one before."""
    layer = nn.GroupNorm(op.attributes["num_groups"], op.shape[1], op.get("epsilon", 1e-5), device="meta")
    return op.layer(layer, op.x, weight=op.constant(1), bias=op.constant(2))


def prelu(op: Operation) -> Value:
    """PRelu: one slope, or one for each channel."""
    slope = op.constant(1)
    rank = len(op.shape)
    sizes = (1,) * (rank - slope.dim()) + tuple(slope.shape)
    elsewhere = any(size != 1 for place, size in enumerate(sizes) if place != 1)
    if elsewhere and slope.numel() != 1 and not (slope.dim() == 1 and rank == 2):
        raise ModelError("its slopes are not one for each channel")
    return op.layer(nn.PReLU(slope.numel(), device="meta"), op.x, source=slope, weight=slope.reshape(-1))
