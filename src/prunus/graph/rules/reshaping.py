"""Rules for operations that only move elements, which run on the labels themselves, and for those that take parts of a
tensor: indexing, chunk, split, unbind, roll.

A number in the code cannot follow the channels. So a channel axis that is reshaped, expanded or cut at such a number is
kept as it is; one that is cut at computed sizes is pruned so that the parts stay equal.
"""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from prunus.graph.labels import ZERO, Call, Replay, along, padded, tensors_in, varying
from prunus.graph.proxies import Number
from prunus.graph.rules.attention import is_for_products
from prunus.graph.rules.pointwise import compute, execute, takes_sizes


@takes_sizes
def structural(call: Call) -> Any:
    """Elements are only moved: run the operation on the labels."""
    return execute(call) if tensors_in((call.args, call.kwargs)) else compute(call)


@takes_sizes
def repeat(call: Call) -> Any:
    """repeat and tile. What is repeated once for each channel of another tensor belongs to these channels."""
    spelled: Any = call.node.args[1:]  # numbers, or nodes where the code computes them
    if len(spelled) == 1 and isinstance(spelled[0], tuple | list):
        spelled = spelled[0]
    return _spread_over_counted(call, execute(call), list(spelled))


def _spread_over_counted(call: Call, out: Tensor, sizes: list[Any]) -> Tensor:
    """`out`, with the labels of the channels that a size counts along the axis that is as long as they are many."""
    x = call.x
    if len(sizes) != out.dim() or len(call.axes(x)):
        return out
    for d, size in enumerate(sizes):
        counted = _counted_by(call, size) if isinstance(size, fx.Node) else None
        had = d - (out.dim() - x.dim())
        times = x.size(had) if had >= 0 else 1
        # A tensor that is pruned to one channel has this label along all axes: its images are not counted then.
        fits = counted is not None and out.size(d) == len(counted) * times
        if call.decided("counted", d, partial(bool, fits)) and counted is not None and fits:
            return along(counted.repeat_interleave(times), out.shape, d)
    return out


def _counted_by(call: Call, size: fx.Node) -> Tensor | None:
    """The labels of the channels that a size counts: `x.size(1)` or `x.shape[1]`."""
    tensor, dim = size.args[0] if size.args else None, size.args[1] if len(size.args) > 1 else None
    if size.target is operator.getitem and isinstance(tensor, fx.Node):  # of `x.shape` or `x.size()`
        of_shape = tensor.args[1:] == ("shape",) if tensor.target is getattr else tensor.target == "size"
        tensor = tensor.args[0] if of_shape else None
    elif size.target != "size":
        return None
    labels = call.record.values.get(tensor.name) if isinstance(tensor, fx.Node) else None
    if not isinstance(labels, Tensor) or not isinstance(dim, int):
        return None
    vector = call.vector(labels, dim)
    return vector if vector is not None and bool((vector >= 0).any()) else None


@takes_sizes
def stack(call: Call) -> Any:
    """stack: the tensors must keep equal sizes, so the same number of channels is kept in each of them."""
    tensors = list(call.argument(0, "tensors"))
    for dim in sorted({d for t in tensors for d in varying(t)}):
        vectors = [v for t in tensors if (v := call.vector(t, dim)) is not None]
        if len(vectors) < len(tensors) or any((v < 0).any() for v in vectors):
            call.freeze(tensors, f"{call.what} puts it beside channels that must be kept")
        else:
            call.balance(torch.stack(vectors), f"{call.what} needs {len(vectors)} tensors of equal width")
    return execute(call)


_STACKED = {"hstack": 1, "vstack": 0, "dstack": 2}  # function -> the axis of what it concatenates


@takes_sizes
def concatenate(call: Call) -> Any:
    """cat, hstack, vstack and dstack, run on labels that have size 1 wherever none of the tensors varies."""
    tensors = list(call.argument(0, "tensors"))
    dim = _STACKED.get(call.what, call.argument(1, "dim", call.kwargs.get("axis", 0)))
    if call.what in _STACKED and tensors[0].dim() < 3:  # with new axes, or along the first one
        return call.unknown()
    dim %= tensors[0].dim()
    each = [call.axes(tensor, f"in {i}") for i, tensor in enumerate(tensors)]
    spelled = call.literal(0, "tensors")
    spelled = spelled if isinstance(spelled, tuple | list) else [None] * len(each)
    parameters = [isinstance(node, fx.Node) and call.labels.is_parameter(node) for node in spelled]
    across = any(set(axes) - {dim} for axes in each)  # channels lie on another axis than the parts
    if across and all(own or dim not in axes for axes, own in zip(each, parameters, strict=True)):
        return _beside(call, tensors, dim)
    still = [
        d for d in range(tensors[0].dim()) if d != dim and all(t.stride(d) == 0 or t.size(d) == 1 for t in tensors)
    ]
    full = [*tensors[0].shape]
    full[dim] = sum(t.size(dim) for t in tensors)
    for d in still:
        tensors = [t.narrow(d, 0, 1) for t in tensors]
    return torch.cat(tensors, dim).expand([n if d in still else -1 for d, n in enumerate(full)])


def _beside(call: Call, tensors: list[Tensor], dim: int) -> Tensor:
    """Tokens or pixels beside one another: channels lie on another axis, where those of all tensors meet. So a class
    token has the channels of the patches that it is put in front of."""
    for tensor in tensors:
        call.unite_along(tensor, dim)  # register tokens: several in one parameter
    ends = [tensor.narrow(dim, 0, 1) for tensor in tensors]
    united = ends[0]
    for other in ends[1:]:
        united = call.unite(united, other, additive=False)
    count = sum(tensor.size(dim) for tensor in tensors)
    return united.expand([count if d == dim else -1 for d in range(united.dim())])


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


@takes_sizes
def repeat_interleave(call: Call) -> Any:
    """repeat_interleave by one number: each channel becomes a run."""
    return execute(call) if isinstance(call.argument(1, "repeats"), int) else call.unknown()


def windows(call: Call) -> Any:
    """Tensor.unfold: windows along an axis, in a new axis at the end."""
    if call.argument(1, "dimension") % call.x.dim() in call.axes(call.x):
        return call.unknown(f"{call.what} runs along an axis that carries channels")
    return execute(call)


@takes_sizes
def expand(call: Call) -> Any:
    """expand. An axis of channels keeps its size."""
    x, out = call.x, execute(call)
    as_one = len(call.args) == 2 and isinstance(call.args[1], tuple | list)  # expand((2, 3)), not expand(2, 3)
    sizes = call.args[1] if as_one else call.args[1:]
    spelled = call.node.args[1] if as_one else call.node.args[1:]
    for dim in call.axes(x):
        literal = spelled[dim + len(sizes) - x.dim()] if isinstance(spelled, tuple | list) else None
        if isinstance(literal, int) and literal != -1:
            call.freeze(x, f"{call.what} fixes the number of channels, {literal}")
    return _spread_over_counted(call, out, list(spelled) if isinstance(spelled, tuple | list) else [])


# -- view, reshape, unflatten


@takes_sizes
def reshape(call: Call) -> Any:
    """view and reshape. At least one axis that carries channels must not be a number in the code.

    [g * n] -> [g, n] with the number g: g blocks that keep the same number of channels (channel shuffle);
    [n * g] -> [n, g] with the number g: each run of g channels is pruned together.
    """
    before = call.axes(call.x)
    target = call.args[1:] or tuple(call.kwargs.values())
    name = call.node.target if isinstance(call.node.target, str) else getattr(call.node.target, "__name__", "")
    as_other = name in ("view_as", "reshape_as")
    if as_other:
        target = (call.args[1].shape,)
    if isinstance(target[0], torch.dtype):
        return call.unknown()
    out = call.x.reshape(*target)  # also for view, because labels have another memory layout than activations
    if not before:
        return out
    # The sizes in the graph: numbers where the code has literals, nodes where it computes them.
    spelled: Any = call.node.args[1:] or (call.node.kwargs.get("shape") or call.node.kwargs.get("size"),)
    if len(spelled) == 1 and not isinstance(spelled[0], int):
        spelled = spelled[0]
    if as_other or isinstance(spelled, fx.Node):
        return _split_axes(call, out, [None] * out.dim())
    return _split_axes(call, out, list(spelled) if len(spelled) == out.dim() else [*call.x.shape][: out.dim()])


@takes_sizes
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

    def is_number(d: int) -> bool:
        return isinstance(spelled[d], int) and spelled[d] != -1

    before, after = call.axes(call.x), call.axes(out, "out")
    heads = [d for d in after[:-1] if type(spelled[d]) is not int or spelled[d] == -1] if len(before) == 1 else []
    dims = call.labels.find_rule.dims and len(before) == 1 and bool(after)
    if (heads or dims) and is_for_products(call):
        # [3 H D] -> [3, H, D]: channels of a head are pruned together, and the same number of heads is left in each
        # part. Or, if heads lose dimensions: those of one head at the same place in each part, and as many of each
        # head. An attribute for their number follows.
        losing = after[-1] if dims else heads[-1]
        if dims:
            parts = [d for d in after[:-1] if d not in heads[-1:]]
            for d in parts:
                call.unite_along(out, d)
            first = out[tuple(slice(0, 1) if d in parts else slice(None) for d in range(out.dim()))]
            _regroup(call, first, heads[-1:], losing)
            if is_number(losing) and not isinstance(spelled[losing], Number):
                call.freeze(call.x, f"{call.what} fixes the number of channels, {spelled[losing]}")
        else:
            _regroup(call, out, [d for d in after if d != losing], losing)
        if isinstance(spelled[losing], Number):
            call.counts(spelled[losing], _along_only(out, losing))
        _count_all(call, out, spelled, heads[-1:], after[-1])
        return out
    fixed = [d for d in after if is_number(d)]
    free = [d for d in after if d not in fixed]
    numbers = [d for d in fixed if isinstance(spelled[d], Number)]
    if not free and len(fixed) == len(numbers) == 1:  # an attribute that says how many channels or heads there are
        call.counts(spelled[numbers[0]], _along_only(out, numbers[0]))
        return out
    if not free:  # a network that was pruned until one run is left: the computed axis next to those with numbers
        near = [d for d in range(1, out.dim()) if out.size(d) == 1 and min(fixed) - 1 <= d <= max(fixed) + 1]
        free = [d for d in near if not is_number(d)]
        free = free if len(free) == 1 else []
    if not free:
        sizes = ", ".join(str(spelled[d]) for d in fixed)
        call.freeze(call.x, f"{call.what} fixes the number of channels, {sizes}")
    elif fixed and len(before) == 1:
        if len(free) > 1:
            call.freeze(call.x, f"{call.what} splits channels into an unknown number of parts")
        else:
            _regroup(call, out, fixed, free[0])
    return out


def _count_all(call: Call, out: Tensor, spelled: list[Any], heads: list[int], inside: int) -> None:
    """[C] -> [heads, C // heads] or [C // size, size]: C counts the channels of all heads."""
    for formula in (spelled[d] for d in (inside, *heads)):
        divides = (
            isinstance(formula, Number) and formula.formula is not None and formula.formula[0] is operator.floordiv
        )
        whole = formula.formula[1][0] if divides else None
        if isinstance(whole, Number) and whole.origin is not None:
            axes = [*heads, inside]
            both = out.movedim(axes, list(range(len(axes)))).flatten(0, len(axes) - 1)
            call.counts(whole, both.reshape(len(both), -1)[:, 0])


def _along_only(labels: Tensor, dim: int) -> Tensor:
    """The labels along `dim`, at the first position of all other axes."""
    return labels.movedim(dim, 0).reshape(labels.size(dim), -1)[:, 0]


def _regroup(call: Call, out: Tensor, fixed: list[int], free: int) -> None:
    """Numbers behind the free axis are runs of channels, numbers before it are blocks."""
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


# -- parts of a tensor


@takes_sizes
def take(call: Call) -> Any:
    """Indexing. Channels cut at numbers in the code are kept; channels cut in computed halves are balanced."""
    x = call.args[0]
    return _part(call, x) if isinstance(x, Tensor) else execute(call)


def assign(call: Call) -> Any:
    """Item assignment: what is assigned meets the part that it replaces, position by position."""
    x, value = call.args[0], call.args[2]
    if not isinstance(x, Tensor):
        return call.unknown()
    if tensors_in(call.args[1]):
        return call.unknown(f"{call.what} indexes with a tensor")
    part = _part(call, x)
    if isinstance(value, Tensor):
        call.unite(part, value, additive=False)
    return x


def _part(call: Call, x: Tensor) -> Any:
    index = call.args[1]
    moving = call.axes(x)
    if tensors_in(index):
        return _gathered(call, x, index if isinstance(index, tuple) else (index,), moving)
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
        whole = isinstance(entry, slice) and entry == slice(None)
        if moving == [dim] and not whole:
            _cut(call, x, dim, entry, literal)
        dim += 1
    return x[index]


def _gathered(call: Call, x: Tensor, index: tuple[Any, ...], moving: list[int]) -> Any:
    """Indexing with tensors, as in tables of position biases: whichever entries of an axis are taken, they belong to
    the channels of the other axes. So channels are pruned together along the axes that are indexed."""
    call.freeze(index, f"{call.what} takes it for positions")
    dim, indexed, partly = 0, [], False
    for position, entry in enumerate(index):
        if entry is Ellipsis:
            dim = x.dim() - sum(e is not None for e in index[position + 1 :])
        elif entry is not None:
            indexed += [dim] if isinstance(entry, Tensor) else []
            partly |= not isinstance(entry, Tensor) and entry != slice(None)
            dim += 1
    if partly or not set(moving) - set(indexed):
        return call.unknown(f"{call.what} indexes with a tensor")
    for d in indexed:
        if d in moving:
            call.unite_along(x, d)
        x = x.narrow(d, 0, 1).expand([-1 if each != d else x.size(d) for each in range(x.dim())])
    narrow = x[tuple(torch.zeros((1,) * e.dim(), dtype=torch.long) if isinstance(e, Tensor) else e for e in index)]
    whole = torch.empty(x.shape, device="meta")[
        tuple(torch.empty(e.shape, dtype=torch.long, device="meta") if isinstance(e, Tensor) else e for e in index)
    ]
    if not isinstance(call.labels.emit, Replay) and whole.shape != call.shape:  # by a mask
        raise ValueError("it is indexed with a mask")
    return narrow.expand(whole.shape)


def _cut(call: Call, x: Tensor, dim: int, entry: Any, literal: Any) -> None:
    """A part of the channel axis is taken."""
    if not _computed(literal):
        first, last = _counted(entry, x.size(dim))
        text = str(entry)
        if isinstance(entry, slice):
            parts = [entry.start, entry.stop] + ([entry.step] if entry.step is not None else [])
            text = ":".join("" if p is None else str(p) for p in parts)
        for part in (x.narrow(dim, 0, first), x.narrow(dim, x.size(dim) - last, last)):
            call.freeze(part, f"{call.what} splits channels at a fixed number, {text}")
        return
    vector = call.vector(x, dim)
    inside = torch.zeros(x.size(dim), dtype=torch.bool)
    inside[entry] = True
    if vector is None or int(inside.sum()) * 2 != len(inside):
        call.freeze(x, f"{call.what} splits channels into unequal parts")
    else:
        call.balance(torch.stack([vector[inside], vector[~inside]]), f"{call.what} splits channels in halves")


def _counted(entry: Any, width: int) -> tuple[int, int]:
    """How many channels at the start and at the end are counted by the numbers in an index. These must be kept, so
    that the numbers still mean the same channels; the others may go: `x[:, 4:]` takes what is left after the first 4.
    An end at or behind the last channel counts none: with fewer channels it still takes all.
    """
    if isinstance(entry, slice):
        if entry.step not in (None, 1):
            return width, 0
        stop = None if entry.stop is None or entry.stop >= width else entry.stop
        numbers = [n for n in (entry.start, stop) if n is not None]
        first, last = max([0, *(n for n in numbers if n >= 0)]), max([0, *(-n for n in numbers if n < 0)])
    else:
        numbers = entry if isinstance(entry, list) else [entry]
        if any(not isinstance(number, int) or isinstance(number, bool) for number in numbers):
            return width, 0
        first, last = max([0, *(n + 1 for n in numbers)]), max([0, *(-n for n in numbers)])
    return min(first, width), min(last, width)


def _computed(spelled: Any) -> bool:
    """Whether an argument is computed from sizes, and not a number in the code."""
    nodes: list[fx.Node] = []
    fx.node.map_arg(spelled, nodes.append)
    return bool(nodes)


@takes_sizes
def chunk(call: Call) -> Any:
    """chunk and tensor_split into equal parts: each part keeps the same number of channels."""
    x, count = call.x, call.argument(1, "chunks", call.kwargs.get("indices_or_sections"))
    dim = call.argument(2, "dim", 0) % x.dim()
    axes = call.axes(x)
    if dim in axes and len(axes) > 1 and is_for_products(call):
        call.unite_along(x, dim)
    elif dim in axes:
        vector = call.vector(x, dim)
        if not isinstance(count, int) or x.size(dim) % count:
            call.freeze(x, f"{call.what} splits channels into unequal parts")
        elif vector is not None:
            call.balance(vector.view(count, -1), f"{call.what} splits channels into {count} parts")
    return execute(call)


@takes_sizes
def split(call: Call) -> Any:
    """split. Channels cut at numbers in the code are kept; channels cut at computed equal sizes are balanced."""
    x, sizes = call.x, call.argument(1, "split_size_or_sections", call.kwargs.get("split_size"))
    dim = call.argument(2, "dim", 0) % x.dim()
    axes = call.axes(x)
    if dim in axes and len(axes) > 1:  # parts of each head
        call.unite_along(x, dim)
    elif dim in axes:
        parts = [t.size(dim) for t in torch.split(x, sizes, dim)]
        vector = call.vector(x, dim)
        spelled = call.literal(1, "split_size_or_sections") or call.literal(1, "split_size")
        entries = list(spelled) if isinstance(spelled, tuple | list) else [spelled] * len(parts)
        if vector is not None and any(isinstance(entry, Number) and entry.origin for entry in entries):
            for entry, part in zip(entries, torch.split(vector, parts), strict=True):
                if isinstance(entry, Number) and entry.origin:
                    call.counts(entry, part)
                else:
                    call.freeze(part, f"{call.what} splits channels at a fixed number, {sizes}")
        elif not _computed(spelled):
            call.freeze(x, f"{call.what} splits channels at a fixed number, {sizes}")
        elif vector is None or len(set(parts)) > 1:
            call.freeze(x, f"{call.what} splits channels into unequal parts")
        else:
            call.balance(vector.view(len(parts), -1), f"{call.what} splits channels into {len(parts)} parts")
    return execute(call)


@takes_sizes
def narrow(call: Call) -> Any:
    """narrow: as a slice from `start`."""
    x, start, length = call.x, call.argument(2, "start"), call.argument(3, "length")
    dim = call.argument(1, "dim") % x.dim()
    if call.axes(x) == [dim]:
        if not isinstance(start, int) or start < 0:
            return call.unknown()
        _cut(call, x, dim, slice(start, start + length), (call.literal(2, "start"), call.literal(3, "length")))
    return execute(call)


@takes_sizes
def select(call: Call) -> Any:
    """select: as an index."""
    x, index = call.x, call.argument(2, "index")
    dim = call.argument(1, "dim") % x.dim()
    if call.axes(x) == [dim]:
        _cut(call, x, dim, index, call.literal(2, "index"))
    return x.select(dim, index)


def index_select(call: Call) -> Any:
    """index_select: channels are taken by numbers that must be known, and keep their places."""
    x, dim, node = call.x, call.argument(1, "dim") % call.x.dim(), call.literal(2, "index")
    if dim not in call.axes(x):
        return x.narrow(dim, 0, 1).expand([call.shape[dim] if d == dim else n for d, n in enumerate(x.shape)])
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return call.unknown(f"{call.what} indexes with a tensor")
    call.unchanged()
    call.freeze(x, f"{call.what} takes channels by number")
    return x.index_select(dim, call.labels.traced.attributes[str(node.target)].cpu())


def glu(call: Call) -> Any:
    """glu: each channel of the first half meets its gate in the second half."""
    dim: Any = call.argument(1, "dim", -1) if call.node.op != "call_module" else call.module.dim
    first, second = call.x.chunk(2, dim)
    return call.unite(first, second, additive=False)


@takes_sizes
def unbind(call: Call) -> Any:
    """unbind along an axis of channels fixes their number."""
    x = call.x
    if call.axes(x) == [call.argument(1, "dim", 0) % x.dim()]:
        call.freeze(x, f"{call.what} takes channels one by one")
    return execute(call)


@takes_sizes
def roll(call: Call) -> Any:
    """roll along an axis of channels: where each one lands depends on the number of channels."""
    x, dims = call.x, call.argument(2, "dims", ())
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    axes = call.axes(x)
    if axes and (not dims or any(d % x.dim() in axes for d in dims)):
        call.freeze(x, f"{call.what} moves channels by a fixed number")
    return execute(call)
