"""The values in a network's output, whatever its structure, and how far two outputs are apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DEPTH = 12  # how deep objects other than containers are followed
_MANY = 16  # numbers that tell how much a part of a tensor varies


def flattened(output: Any, depth: int = 0, around: tuple[int, ...] = ()) -> list[Any]:
    """Copies of all tensors, and all numbers and strings, of an output, in a fixed order.

    Follows tuples, lists, dicts, dataclasses and other objects with attributes.
    """
    if isinstance(output, Tensor):
        return [output.detach().clone()]
    if isinstance(output, np.ndarray) and output.dtype != object:
        return [torch.tensor(output)]
    if output is None or isinstance(output, bool | int | float | complex | str):
        return [output]
    if depth > _DEPTH or id(output) in around or isinstance(output, Set | type) or callable(output):
        return []
    contained = isinstance(output, Mapping | tuple | list | np.ndarray)
    if isinstance(output, Mapping):
        parts = [*output.keys(), *output.values()]
    elif contained:
        parts = list(output)
    elif dataclasses.is_dataclass(output):
        parts = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        parts = list(getattr(output, "__dict__", {}).values())
    below = depth if contained else depth + 1
    return [len(parts), *(value for part in parts for value in flattened(part, below, (*around, id(output))))]


def distance(got: list[Any], want: list[Any]) -> float:
    """The largest difference between two flattened outputs, relative to how much the values of each tensor vary.

    Infinite if structure, shapes, whole numbers or positions of NaN differ.
    """
    if len(got) != len(want):
        return math.inf
    return max((_apart(one, other) for one, other in zip(got, want, strict=True)), default=0.0)


def _apart(got: Any, want: Any) -> float:
    if isinstance(got, float) and isinstance(want, float):
        got, want = torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64)
    if not (isinstance(got, Tensor) and isinstance(want, Tensor)):
        return 0.0 if type(got) is type(want) and got == want else math.inf
    if got.shape != want.shape:
        return math.inf
    return tensor_distance(got, want)


def tensor_distance(got: Tensor, want: Tensor) -> float:
    """The largest difference of two tensors of one shape, relative to how much the values vary.

    In tensors with three dimensions or more this is asked of each part along the second and the last dimension: one
    tensor may hold boxes, in pixels, and scores.
    """
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if not want.numel():
        return 0.0
    if not (want.is_floating_point() or want.is_complex()):
        return 0.0 if torch.equal(got, want) else math.inf
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return 0.0
    difference = torch.where(same, 0, got - want).abs()
    if not bool(difference.isfinite().all()):
        return math.inf
    values = torch.where(want.isfinite(), want, 0)
    axes = {1, want.dim() - 1} if want.dim() > 2 else set()
    parts = [(difference.movedim(axis, 0).flatten(1), values.movedim(axis, 0).flatten(1)) for axis in sorted(axes)]
    parts = [part for part in parts if part[0].size(1) >= _MANY] + [(difference.reshape(1, -1), values.reshape(1, -1))]
    return max(_relative(*part) for part in parts)


def _relative(difference: Tensor, values: Tensor) -> float:
    """The largest difference in a row, relative to the spread of the row, or to its size if it does not vary."""
    largest = difference.amax(1)
    spread = (values - values.mean(1, keepdim=True)).abs().amax(1)
    scale = torch.where(spread > 0, spread, values.abs().amax(1))
    ratio = torch.where(largest == 0, largest, largest / scale)
    return float(ratio.max().item())
