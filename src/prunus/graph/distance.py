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


def largest_difference(got: Any, want: Any) -> float:
    """The largest difference between two outputs of any structure, relative to how much the values of each part vary.

    Rounding in float32 gives about 1e-6, in float16 or int8 1e-3 to 1e-1. Infinite if structure, shapes, whole numbers
    or positions of NaN differ. See `tensor_distance` for the parts.
    """
    return distance(flattened(got), flattened(want))


def distance(got: list[Any], want: list[Any]) -> float:
    """As `largest_difference`, of outputs that are flattened."""
    if len(got) != len(want):
        return math.inf
    largest = 0.0
    for one, other in zip(got, want, strict=True):
        if isinstance(one, float) and isinstance(other, float):
            one, other = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            largest = max(largest, tensor_distance(one, other) if one.shape == other.shape else math.inf)
        elif type(one) is not type(other) or one != other:
            return math.inf
    return largest


def tensor_distance(got: Tensor, want: Tensor, by_parts: bool = True) -> float:
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
    if not by_parts and want.is_floating_point():  # in a few steps where all numbers are finite
        ends = *want.aminmax(), *(got - want).aminmax(), want.mean()
        lowest, highest, least, most, mean = torch.stack(ends).tolist()
        gap, spread = max(most, -least), max(highest - mean, mean - lowest)
        if math.isfinite(gap) and math.isfinite(spread) and spread > 0:
            return float(gap / spread)
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return 0.0
    difference = torch.where(same, 0, got - want).abs()
    if not bool(difference.isfinite().all()):
        return math.inf
    values = torch.where(want.isfinite(), want, 0)
    axes = {1, want.dim() - 1} if want.dim() > 2 and by_parts else set()
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
