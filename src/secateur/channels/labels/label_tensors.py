"""Label tensors: integers that say which channel each position of an activation carries.

A label tensor has the shape of the activation it stands for, but is expanded (stride 0) wherever labels do not vary,
so it takes a few integers of memory. A label >= 0 is one filter of one writer; FIXED is a position that must not be
removed; ZERO is a position that zero padding added; GONE is a channel of zeros in the place of one that was removed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from secateur.channels.units import Indices

FIXED, ZERO, GONE = -1, -2, -3


def constant(shape: torch.Size | tuple[int, ...], label: int = FIXED) -> Tensor:
    """A label tensor with one label everywhere."""
    return torch.full((1,) * len(shape), label, dtype=torch.int64).expand(shape)


def fixed_like(shapes: Any) -> Any:
    """Fixed labels for every shape in a nested value."""
    return tree_map(
        lambda s: constant(s) if isinstance(s, torch.Size) else s, shapes, is_leaf=lambda s: isinstance(s, torch.Size)
    )


def along(vector: Tensor, shape: torch.Size | tuple[int, ...], dim: int) -> Tensor:
    """A label tensor that varies along `dim` only."""
    view = [1] * len(shape)
    view[dim] = -1
    full = list(shape)
    full[dim] = len(vector)
    return vector.view(view).expand(full)


def compact(labels: Tensor) -> Tensor:
    """The same labels with size 1 along every dimension that is expanded."""
    strides = labels.stride()
    if 0 not in strides:
        return labels
    sizes = [1 if stride == 0 and size > 1 else size for size, stride in zip(labels.shape, strides, strict=True)]
    return labels.as_strided(sizes, strides)


def varying(labels: Tensor) -> list[int]:
    """The dimensions along which labels differ."""
    small = compact(labels)
    return [d for d in range(small.dim()) if small.size(d) > 1 and not constant_along(small, d)]


def constant_along(labels: Tensor, dim: int) -> bool:
    """Whether labels do not differ along a dimension."""
    return bool((labels == labels.narrow(dim, 0, 1)).all())


def present(labels: Tensor) -> Indices:
    """The distinct channel labels in a tensor."""
    found = np.unique(compact(labels).numpy())
    return found[found >= 0]


def same_labels(a: Tensor, b: Tensor) -> bool:
    """Whether two label tensors are equal, without expanding them."""
    if a.shape != b.shape:
        return False
    a, b = broadcast(compact(a), compact(b))
    return bool((a == b).all())


def tensors_in(value: Any) -> list[Tensor]:
    """The label tensors in a nested value."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, tuple | list):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def broadcast_shape(a: torch.Size, b: torch.Size) -> torch.Size:
    """The shape that two tensors broadcast to. Much faster than torch.broadcast_shapes."""
    if a == b:
        return a
    dims = max(len(a), len(b))
    pairs = zip((1,) * (dims - len(a)) + a, (1,) * (dims - len(b)) + b, strict=True)
    sizes = [n if m == 1 else m for m, n in pairs if m == n or 1 in (m, n)]
    if len(sizes) < dims:
        raise RuntimeError(f"tensors of shapes {tuple(a)} and {tuple(b)} do not broadcast")
    return torch.Size(sizes)


def broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both tensors, expanded to their common shape."""
    shape = broadcast_shape(a.shape, b.shape)
    return a.expand(shape), b.expand(shape)


def pick(labels: Tensor, dim: int, index: Tensor) -> Tensor:
    """index_select along `dim`; expanded dimensions stay expanded."""
    shape = [*labels.shape]
    shape[dim] = len(index)
    small = compact(labels)
    return (small.index_select(dim, index) if small.size(dim) > 1 else small).expand(shape)


def padded(labels: Tensor, dim: int, before: int, after: int, label: int) -> Tensor:
    """Labels with further positions along `dim`; expanded dimensions stay expanded."""
    small = compact(labels)
    small = small.expand([size if d == dim else -1 for d, size in enumerate(labels.shape)])
    shape = [*small.shape]
    parts = []
    for count in (before, after):
        shape[dim] = count
        parts.append(torch.full(shape, label, dtype=torch.int64))
    full = [*labels.shape]
    full[dim] += before + after
    return torch.cat([parts[0], small, parts[1]], dim).expand(full)


def places(have: Indices, want: Indices) -> Indices | None:
    """Positions in `have` of the labels `want`, or its length for those that it lacks. None if others are in it."""
    there = np.isin(want, have)
    found = match(have, want[there])
    if found is None or len(found) != len(have):
        return None
    index = np.full(len(want), len(have), dtype=np.int64)
    index[there] = found
    return index


def match(have: Indices, want: Indices) -> Indices | None:
    """Positions in `have` of the labels `want`; the k-th occurrence matches the k-th. None if a label is missing."""
    have_order = np.argsort(have, kind="stable")
    want_order = np.argsort(want, kind="stable")
    sorted_have, sorted_want = have[have_order], want[want_order]
    start = np.searchsorted(sorted_have, sorted_want, side="left")
    rank = np.arange(len(want)) - np.searchsorted(sorted_want, sorted_want, side="left")
    place = start + rank
    if len(want) and (place.max() >= len(have) or not np.array_equal(sorted_have[place], sorted_want)):
        return None
    index = np.empty(len(want), dtype=np.int64)
    index[want_order] = have_order[place]
    return index
