"""Rules for operations that only move elements: they are run on the labels themselves.

What the network's code spells out as a number cannot follow the channels: a channel axis that is cut, reshaped or
expanded at literals stays as it is. Cuts at computed sizes ask for equal parts.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx

from secateur.channels.labels import ZERO, compact, constant, tensors_in
from secateur.channels.rule_call import Call


def _execute(call: Call) -> Any:
    node = call.node
    if node.op == "call_method":
        return getattr(call.args[0], str(node.target))(*call.args[1:], **call.kwargs)
    if node.op == "call_module":
        return call.module.forward(*call.args, **call.kwargs)  # not __call__: hooks are not for labels
    if callable(node.target):
        return node.target(*call.args, **call.kwargs)
    raise TypeError(f"{call.what} cannot be computed on labels")


def compute(call: Call) -> Any:
    """Arithmetic on sizes and other plain values; a tensor that comes out is fixed."""
    result = _execute(call)
    return constant(result.shape) if isinstance(result, Tensor) else result


def structural(call: Call) -> Any:
    """Elements are only moved: run the operation on the labels."""
    if not tensors_in((call.args, call.kwargs)):
        return compute(call)
    return _execute(call)


def size_of(call: Call) -> Any:
    """Sizes, shapes and other plain facts of a tensor."""
    return _execute(call)


def concatenate(call: Call) -> Any:
    """cat: run on labels with size 1 wherever none of the tensors varies."""
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
    """F.pad: new channels are ZERO, new pixels belong to the channel that they are added to."""
    x, amounts = call.x, list(call.argument(1, "pad"))
    moving = call.axes(x)
    for i in range(len(amounts) // 2):
        dim, before, after = x.dim() - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        if dim in moving:
            if min(before, after) < 0 or call.argument(2, "mode", "constant") != "constant":
                return call.unknown(f"{call.what} changes channels")
            x = _pad_channels(x, dim, before, after)
        elif before or after:
            x = x.narrow(dim, 0, 1).expand(*x.shape[:dim], x.size(dim) + before + after, *x.shape[dim + 1 :])
    return x


def _pad_channels(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    small = compact(x)
    shape = [*small.shape]
    parts = []
    for count in (before, after):
        shape[dim] = count
        parts.append(torch.full(shape, ZERO, dtype=torch.int64))
    full = [*x.shape]
    full[dim] += before + after
    return torch.cat([parts[0], small, parts[1]], dim).expand(full)


def take(call: Call) -> Any:
    """Indexing. Channels cut at numbers that the code spells out stay; cut at computed halves they are balanced."""
    x = call.args[0]
    if not isinstance(x, Tensor):
        return _execute(call)
    index = call.args[1]
    if tensors_in(index):
        return call.unknown(f"{call.what} picks by a tensor")
    moving = call.axes(x)
    spelled = call.node.args[1]
    entries = index if isinstance(index, tuple) else (index,)
    literals = spelled if isinstance(spelled, tuple) else (spelled,)
    dim = 0
    for position, (entry, literal) in enumerate(zip(entries, literals, strict=True)):
        if entry is None:
            continue
        if entry is Ellipsis:
            dim = x.dim() - sum(e is not None for e in entries[position + 1 :])
            continue
        if dim in moving and not _whole(entry) and len(moving) == 1:
            _cut(call, x, dim, entry, literal)
        dim += 1
    return x[index]


def _whole(entry: Any) -> bool:
    return isinstance(entry, slice) and entry == slice(None)


def _cut(call: Call, x: Tensor, dim: int, entry: Any, literal: Any) -> None:
    """A part of the channel axis is taken out."""
    if not _computed(literal):
        call.hold(x, f"{call.what} cuts channels at a literal, {_spell(entry)}")
        return
    vector = call.vector(x, dim)
    inside = torch.zeros(x.size(dim), dtype=torch.bool)
    inside[entry] = True
    if vector is None or int(inside.sum()) * 2 != len(inside):
        call.hold(x, f"{call.what} cuts channels in unequal parts")
        return
    call.balance(torch.stack([vector[inside], vector[~inside]]), f"{call.what} cuts channels in halves")


def _computed(spelled: Any) -> bool:
    """Whether an argument is computed from sizes rather than spelled out as a number."""
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    fx.node.map_arg(spelled, note)
    return bool(found)


def _spell(entry: Any) -> str:
    if isinstance(entry, slice):
        parts = [entry.start, entry.stop] + ([entry.step] if entry.step is not None else [])
        return ":".join("" if p is None else str(p) for p in parts)
    return str(entry)


def chunk(call: Call) -> Any:
    """chunk / tensor_split into equal parts: as many channels stay in each part."""
    x, count = call.x, call.argument(1, "chunks", call.kwargs.get("indices_or_sections"))
    dim = call.argument(2, "dim", 0) % x.dim()
    if dim in call.axes(x):
        vector = call.vector(x, dim)
        if not isinstance(count, int) or x.size(dim) % count:
            call.hold(x, f"{call.what} cuts channels in unequal parts")
        elif vector is not None:
            call.balance(vector.view(count, -1), f"{call.what} cuts channels in {count} parts")
    return _execute(call)


def split(call: Call) -> Any:
    """split: at sizes that the code spells out the channels stay; at computed equal sizes they are balanced."""
    x, sizes = call.x, call.argument(1, "split_size_or_sections", call.kwargs.get("split_size"))
    dim = call.argument(2, "dim", 0) % x.dim()
    if dim in call.axes(x):
        parts = [t.size(dim) for t in torch.split(x, sizes, dim)]
        vector = call.vector(x, dim)
        literal = call.literal(1, "split_size_or_sections") or call.literal(1, "split_size")
        if not _computed(literal):
            call.hold(x, f"{call.what} cuts channels at a literal, {sizes}")
        elif vector is None or len(set(parts)) > 1:
            call.hold(x, f"{call.what} cuts channels in unequal parts")
        else:
            call.balance(vector.view(len(parts), -1), f"{call.what} cuts channels in {len(parts)} parts")
    return _execute(call)


def unbind(call: Call) -> Any:
    """unbind / select along an axis of channels fixes their number."""
    x = call.x
    dim = call.argument(1, "dim", 0) % x.dim()
    if call.axes(x) == [dim]:
        call.hold(x, f"{call.what} takes channels one by one")
    return _execute(call)


def roll(call: Call) -> Any:
    """roll along an axis of channels: who lands where depends on how many there are."""
    x, dims = call.x, call.argument(2, "dims", ())
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    axes = call.axes(x)
    if axes and (not dims or any(d % x.dim() in axes for d in dims)):
        call.hold(x, f"{call.what} moves channels by a number")
    return _execute(call)


def expand(call: Call) -> Any:
    """expand / repeat to sizes that the code spells out."""
    x = call.x
    sizes = call.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.args[1:]
    spelled = (
        call.node.args[1] if len(call.args) == 2 and isinstance(call.args[1], tuple | list) else call.node.args[1:]
    )
    out = _execute(call)
    offset = len(sizes) - x.dim()
    for dim in call.axes(x):
        literal = spelled[dim + offset] if isinstance(spelled, tuple | list) else None
        fits = (-1,) if call.node.target == "expand" else (1,)
        if isinstance(literal, int) and literal not in fits:
            call.hold(x, f"{call.what} spells out the number of channels, {literal}")
    return out


def reshape(call: Call) -> Any:
    """view / reshape. Axes that carry channels must not all be spelled out as numbers.

    [g * n] -> [g, n] with g spelled out: g blocks, as many channels in each (channel shuffle);
    [n * g] -> [n, g] with g spelled out: each run of g channels goes together.
    """
    x = call.x
    before = call.axes(x)
    target = call.args[1:] or tuple(call.kwargs.values())
    if str(call.node.target) in ("view_as", "reshape_as"):
        target = (call.args[1].shape,)
    if isinstance(target[0], torch.dtype):
        return call.unknown()
    out = x.reshape(*target)  # also for view: labels are laid out in memory otherwise than activations
    if not before:
        return out
    after = call.axes(out, "out")
    spelled = _target_sizes(call, out.dim())
    fixed = [d for d in after if isinstance(spelled[d], int) and spelled[d] != -1]
    free = [d for d in after if d not in fixed] or _free_of_size_one(out, spelled, fixed)
    if not free:
        sizes = ", ".join(str(spelled[d]) for d in fixed)
        call.hold(x, f"{call.what} spells out the number of channels, {sizes}")
    elif fixed and len(before) == 1:
        if len(free) > 1:
            call.hold(x, f"{call.what} cuts channels in parts of unknown number")
        else:
            _regroup(call, out, fixed, free[0])
    return out


def _free_of_size_one(out: Tensor, spelled: list[Any], fixed: list[int]) -> list[int]:
    """The computed axis beside the spelled-out ones, in a network that has been pruned until one run is left."""
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
        call.balance(small.reshape(count, -1), f"{call.what} cuts channels in {count} blocks")


def _target_sizes(call: Call, dims: int) -> list[Any]:
    """The sizes as the graph spells them: numbers where the code has literals, nodes where it computes them."""
    name = call.node.target if isinstance(call.node.target, str) else getattr(call.node.target, "__name__", "")
    if name in ("view_as", "reshape_as"):
        return [None] * dims
    spelled = call.node.args[1:] or (call.node.kwargs.get("shape") or call.node.kwargs.get("size"),)
    if len(spelled) == 1 and not isinstance(spelled[0], int):
        spelled = spelled[0]  # type: ignore[assignment]
    if isinstance(spelled, fx.Node):
        return [None] * dims
    return list(spelled) if len(spelled) == dims else [*call.x.shape][:dims]


# These ask sizes where channels are to be cut or laid out anew; what they do shows in the labels themselves. Anywhere
# else a size that depends on the number of channels would be a value that pruning changes.
for _rule in (take, chunk, split, roll, expand, reshape, structural, concatenate, size_of, unbind):
    _rule.takes_sizes = True  # type: ignore[attr-defined]
