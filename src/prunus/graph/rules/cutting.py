"""Rules for operations that take parts of a tensor: indexing, chunk, split, unbind, roll.

Channels that are cut at numbers in the code are kept, because a number cannot follow the channels. Channels that are
cut at computed sizes are pruned so that the parts stay equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from prunus.graph.labels import Call, tensors_in
from prunus.graph.rules.running import execute


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
    if tensors_in(index):
        return call.unknown(f"{call.what} indexes with a tensor")
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
    """A part of the channel axis is taken."""
    if not _computed(literal):
        first, last = _counted(entry, x.size(dim))
        for part in (x.narrow(dim, 0, first), x.narrow(dim, x.size(dim) - last, last)):
            call.hold(part, f"{call.what} splits channels at a fixed number, {_spell(entry)}")
        return
    vector = call.vector(x, dim)
    inside = torch.zeros(x.size(dim), dtype=torch.bool)
    inside[entry] = True
    if vector is None or int(inside.sum()) * 2 != len(inside):
        call.hold(x, f"{call.what} splits channels into unequal parts")
        return
    call.balance(torch.stack([vector[inside], vector[~inside]]), f"{call.what} splits channels in halves")


def _counted(entry: Any, width: int) -> tuple[int, int]:
    """How many channels at the start and at the end are counted by the numbers in an index. These must be kept, so
    that the numbers still mean the same channels; the others may go: `x[:, 4:]` takes what is left after the first 4.
    """
    if isinstance(entry, slice):
        if entry.step not in (None, 1):
            return width, 0
        numbers = [n for n in (entry.start, entry.stop) if n is not None]
        first, last = max([0, *(n for n in numbers if n >= 0)]), max([0, *(-n for n in numbers if n < 0)])
    else:
        numbers = entry if isinstance(entry, list) else [entry]
        if any(type(number) is not int for number in numbers):
            return width, 0
        first, last = max([0, *(n + 1 for n in numbers)]), max([0, *(-n for n in numbers)])
    return min(first, width), min(last, width)


def _computed(spelled: Any) -> bool:
    """Whether an argument is computed from sizes, and not a number in the code."""
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
    """chunk and tensor_split into equal parts: each part keeps the same number of channels."""
    x, count = call.x, call.argument(1, "chunks", call.kwargs.get("indices_or_sections"))
    dim = call.argument(2, "dim", 0) % x.dim()
    if dim in call.axes(x):
        vector = call.vector(x, dim)
        if not isinstance(count, int) or x.size(dim) % count:
            call.hold(x, f"{call.what} splits channels into unequal parts")
        elif vector is not None:
            call.balance(vector.view(count, -1), f"{call.what} splits channels into {count} parts")
    return execute(call)


def split(call: Call) -> Any:
    """split. Channels cut at numbers in the code are kept; channels cut at computed equal sizes are balanced."""
    x, sizes = call.x, call.argument(1, "split_size_or_sections", call.kwargs.get("split_size"))
    dim = call.argument(2, "dim", 0) % x.dim()
    if dim in call.axes(x):
        parts = [t.size(dim) for t in torch.split(x, sizes, dim)]
        vector = call.vector(x, dim)
        literal = call.literal(1, "split_size_or_sections") or call.literal(1, "split_size")
        if not _computed(literal):
            call.hold(x, f"{call.what} splits channels at a fixed number, {sizes}")
        elif vector is None or len(set(parts)) > 1:
            call.hold(x, f"{call.what} splits channels into unequal parts")
        else:
            call.balance(vector.view(len(parts), -1), f"{call.what} splits channels into {len(parts)} parts")
    return execute(call)


def narrow(call: Call) -> Any:
    """narrow: as a slice from `start`."""
    x, start, length = call.x, call.argument(2, "start"), call.argument(3, "length")
    dim = call.argument(1, "dim") % x.dim()
    if call.axes(x) == [dim]:
        if not isinstance(start, int) or start < 0:
            return call.unknown()
        numbers = (call.literal(2, "start"), call.literal(3, "length"))
        _cut(call, x, dim, slice(start, start + length), numbers)
    return execute(call)


def glu(call: Call) -> Any:
    """glu: each channel of the first half meets its gate in the second half."""
    dim: Any = call.argument(1, "dim", -1) if call.node.op != "call_module" else call.module.dim
    first, second = call.x.chunk(2, dim)
    return call.unite(first, second, additive=False)


def unbind(call: Call) -> Any:
    """unbind along an axis of channels fixes their number."""
    x = call.x
    dim = call.argument(1, "dim", 0) % x.dim()
    if call.axes(x) == [dim]:
        call.hold(x, f"{call.what} takes channels one by one")
    return execute(call)


def roll(call: Call) -> Any:
    """roll along an axis of channels: where each one lands depends on the number of channels."""
    x, dims = call.x, call.argument(2, "dims", ())
    dims = (dims,) if isinstance(dims, int) else tuple(dims or ())
    axes = call.axes(x)
    if axes and (not dims or any(d % x.dim() in axes for d in dims)):
        call.hold(x, f"{call.what} moves channels by a fixed number")
    return execute(call)


for _rule in (take, chunk, split, narrow, unbind, roll):  # see reshaping
    _rule.takes_sizes = True  # type: ignore[attr-defined]
