"""The values in a network's output, whatever its structure, and how far two outputs are apart."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Set
from typing import Any

import torch
from torch import Tensor

_DEPTH = 12


def flattened(output: Any, depth: int = 0) -> list[Any]:
    """Copies of all tensors, and all numbers and strings, of an output, in a fixed order.

    Follows tuples, lists, dicts, dataclasses and other objects with attributes.
    """
    if isinstance(output, Tensor):
        return [output.detach().clone()]
    if output is None or isinstance(output, bool | int | float | complex | str):
        return [output]
    if depth > _DEPTH or isinstance(output, Set | type) or callable(output):
        return []
    if isinstance(output, Mapping):
        parts = [*output.keys(), *output.values()]
    elif isinstance(output, tuple | list):
        parts = list(output)
    elif dataclasses.is_dataclass(output):
        parts = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        parts = list(getattr(output, "__dict__", {}).values())
    return [len(parts), *(value for part in parts for value in flattened(part, depth + 1))]


def distance(got: list[Any], want: list[Any]) -> float:
    """The largest difference between two flattened outputs, relative to the largest value of each tensor.

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
    """The largest difference of two tensors of one shape, relative to the largest value."""
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if not want.numel():
        return 0.0
    if not (want.is_floating_point() or want.is_complex()):
        return 0.0 if torch.equal(got, want) else math.inf
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return 0.0
    difference = torch.where(same, 0, got - want).abs().max().item()
    scale = torch.where(want.isfinite(), want, 0).abs().max().item()
    if not math.isfinite(difference) or scale == 0.0:
        return math.inf
    return float(difference / scale)
