"""Rules for operations that only move elements: they run on the labels themselves.

A number in the code cannot follow the channels, so a channel axis that is reshaped or expanded to such a number is
kept as it is.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from prunus.graph.labels import ZERO, Call, padded, tensors_in, varying
from prunus.graph.rules.running import compute, execute


def structural(call: Call) -> Any:
    """Elements are only moved: run the operation on the labels."""
    if not tensors_in((call.args, call.kwargs)):
        return compute(call)
    return execute(call)


def stack(call: Call) -> Any:
    """stack: the tensors must keep equal sizes, so the same number of channels is kept in each of them."""
    tensors = list(call.argument(0, "tensors"))
    for dim in sorted({d for t in tensors for d in varying(t)}):
        vectors = [call.vector(t, dim) for t in tensors]
        found = [v for v in vectors if v is not None]
        if len(found) < len(vectors) or any((v < 0).any() for v in found):
            call.hold(tensors, f"{call.what} puts it beside channels that must be kept")
        else:
            call.balance(torch.stack(found), f"{call.what} needs {len(found)} tensors of equal width")
    return execute(call)


def concatenate(call: Call) -> Any:
    """cat, run on labels that have size 1 wherever none of the tensors varies."""
    tensors = list(call.argument(0, "tensors"))
    dim = call.argument(1, "dim", call.kwargs.get("axis", 0)) % tensors[0].dim()
    still = [
        d for d in range(tensors[0].dim()) if d != dim and all(t.stride(d) == 0 or t.size(d) == 1 for t in tensors)
    ]
    full = [*tensors[0].shape]
    full[dim] = sum(t.size(dim) for t in tensors)
    for d in still:
        tensors = [t.narrow(d, 0, 1) for t in tensors]
    return torch.cat(tensors, dim).expand([n if d in still else -1 for d, n in enumerate(full)])


def pad(call: Call) -> Any:
    """F.pad: new channels are ZERO, new pixels belong to the channel they are added to."""
    x, amounts = call.x, list(call.argument(1, "pad"))
    moving = call.axes(x)
    for i in range(len(amounts) // 2):
        dim, before, after = x.dim() - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        if dim in moving:
            if min(before, after) < 0 or call.argument(2, "mode", "constant") != "constant":
                return call.unknown(f"{call.what} changes channels")
            x = padded(x, dim, before, after, ZERO)
        elif before or after:
            x = x.narrow(dim, 0, 1).expand(*x.shape[:dim], x.size(dim) + before + after, *x.shape[dim + 1 :])
    return x


def repeat_interleave(call: Call) -> Any:
    """repeat_interleave by one number: each channel becomes a run."""
    return execute(call) if isinstance(call.argument(1, "repeats"), int) else call.unknown()


def windows(call: Call) -> Any:
    """Tensor.unfold: windows along an axis, in a new axis at the end."""
    if call.argument(1, "dimension") % call.x.dim() in call.axes(call.x):
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    return execute(call)


def expand(call: Call) -> Any:
    """expand. An axis of channels keeps its size."""
    x = call.x
    sizes = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.args[1:]
    spelled = (
        call.node.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.node.args[1:]
    )
    out = execute(call)
    offset = len(sizes) - x.dim()
    for dim in call.axes(x):
        literal = spelled[dim + offset] if isinstance(spelled, tuple | list) else None
        if isinstance(literal, int) and literal != -1:
            call.hold(x, f"{call.what} fixes the number of channels, {literal}")
    return out


def reshape(call: Call) -> Any:
    """view and reshape. At least one axis that carries channels must not be a number in the code.

    [g * n] -> [g, n] with the number g: g blocks that keep the same number of channels (channel shuffle);
    [n * g] -> [n, g] with the number g: each run of g channels is pruned together.
    """
    x = call.x
    before = call.axes(x)
    target = call.args[1:] or tuple(call.kwargs.values())
    if str(call.node.target) in ("view_as", "reshape_as"):
        target = (call.args[1].shape,)
    if isinstance(target[0], torch.dtype):
        return call.unknown()
    out = x.reshape(*target)  # also for view, because labels have another memory layout than activations
    return _split_axes(call, out, _target_sizes(call, out.dim())) if before else out


def unflatten(call: Call) -> Any:
    """unflatten: as reshape, of one axis."""
    x = call.x
    if call.node.op == "call_module":
        layer: Any = call.module
        dim, sizes, spelled = layer.dim, layer.unflattened_size, layer.unflattened_size
    else:
        dim, sizes, spelled = call.argument(1, "dim"), call.argument(2, "sizes"), call.literal(2, "sizes")
    if not isinstance(dim, int) or not isinstance(spelled, tuple | list):
        return call.unknown()
    out = x.unflatten(dim, tuple(sizes))  # type: ignore[no-untyped-call]
    others = x.dim() - 1 - dim % x.dim()
    return _split_axes(call, out, [*[None] * (dim % x.dim()), *spelled, *[None] * others]) if call.axes(x) else out


def _split_axes(call: Call, out: Tensor, spelled: list[Any]) -> Tensor:
    """Bind the channels of `out`, whose axes have these sizes in the code."""
    x, before = call.x, call.axes(call.x)
    after = call.axes(out, "out")
    fixed = [d for d in after if isinstance(spelled[d], int) and spelled[d] != -1]
    free = [d for d in after if d not in fixed] or _free_of_size_one(out, spelled, fixed)
    if not free:
        sizes = ", ".join(str(spelled[d]) for d in fixed)
        call.hold(x, f"{call.what} fixes the number of channels, {sizes}")
    elif fixed and len(before) == 1:
        if len(free) > 1:
            call.hold(x, f"{call.what} splits channels into an unknown number of parts")
        else:
            _regroup(call, out, fixed, free[0])
    return out


def _free_of_size_one(out: Tensor, spelled: list[Any], fixed: list[int]) -> list[int]:
    """The computed axis next to those with numbers, in a network that has been pruned until one run is left."""
    near = [d for d in range(1, out.dim()) if out.size(d) == 1 and min(fixed) - 1 <= d <= max(fixed) + 1]
    computed = [d for d in near if not isinstance(spelled[d], int) or spelled[d] == -1]
    return computed if len(computed) == 1 else []


def _regroup(call: Call, out: Tensor, fixed: list[int], free: int) -> None:
    for d in fixed:
        if d > free:
            call.unite_along(out, d)
    blocks = [d for d in fixed if d < free]
    if blocks:
        small = out
        for d in range(out.dim() - 1, -1, -1):
            if d not in (*blocks, free):
                small = small.select(d, 0)
        count = math.prod(out.size(d) for d in blocks)
        call.balance(small.reshape(count, -1), f"{call.what} splits channels into {count} blocks")


def _target_sizes(call: Call, dims: int) -> list[Any]:
    """The sizes in the graph: numbers where the code has literals, nodes where it computes them."""
    name = call.node.target if isinstance(call.node.target, str) else getattr(call.node.target, "__name__", "")
    if name in ("view_as", "reshape_as"):
        return [None] * dims
    spelled = call.node.args[1:] or (call.node.kwargs.get("shape") or call.node.kwargs.get("size"),)
    if len(spelled) == 1 and not isinstance(spelled[0], int):
        spelled = spelled[0]  # type: ignore[assignment]
    if isinstance(spelled, fx.Node):
        return [None] * dims
    return list(spelled) if len(spelled) == dims else [*call.x.shape][:dims]


# These take sizes as arguments, and the labels show what they do with them. In any other operation, a size that depends
# on the number of channels is a value that pruning would change.
for _rule in (expand, reshape, unflatten, structural, repeat_interleave, stack, concatenate):
    _rule.takes_sizes = True  # type: ignore[attr-defined]
