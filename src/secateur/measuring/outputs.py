"""Outputs of a network, whatever their structure: the one that counts, and how far two of them are apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from secateur.base.batches import main_output
from secateur.errors import RunError

__all__ = ["at_least_float32", "main_output", "squared_distance", "tensors_of"]


def at_least_float32(logits: Tensor) -> Tensor:
    """Half-precision logits as float32, so that exponentials and sums keep the precision of the model's output."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def tensors_of(output: Any) -> Iterator[Tensor]:
    """All floating-point tensors of an output, in the order of its structure; they are not copied."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_of(value)
    elif dataclasses.is_dataclass(output):
        for field in dataclasses.fields(output):
            yield from tensors_of(getattr(output, field.name))


def squared_distance(student: Any, teacher: Any, _temperature: float = 1.0) -> Tensor:
    """Mean squared difference of all tensors of two outputs, each relative to the mean square of the teacher's."""
    mine, its = list(tensors_of(student)), list(tensors_of(teacher))
    shapes = [[list(tensor.shape) for tensor in tensors] for tensors in (mine, its)]
    if not its or shapes[0] != shapes[1]:
        raise RunError(
            f"the teacher's outputs have the shapes {shapes[1]}, the network's {shapes[0]}: give the task outputs= "
            "that picks the same tensors of both, or distil= that compares them"
        )
    parts = [
        F.mse_loss(at_least_float32(a), at_least_float32(b))
        / at_least_float32(b).square().mean().clamp(min=torch.finfo(torch.float32).tiny)
        for a, b in zip(mine, its, strict=True)
    ]
    return torch.stack(parts).mean()
