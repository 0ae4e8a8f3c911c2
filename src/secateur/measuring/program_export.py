"""A network as a program of torch.export, and the comparison of an exported network with the original.

Both kinds of exported file (.onnx and .pt2) are made from such a program and are checked in this way.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from secateur.base.batches import call, device_of
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.runner import copied
from secateur.channels.traced import Example, as_call
from secateur.errors import DataError, ModelError

TOLERANCE = 1e-3  # share of the largest output: other kernels add in another order


@dataclass(frozen=True)
class Difference:
    """How far the outputs of an exported network are from the original's."""

    error: float  # largest difference, divided by the largest output
    num_images: int


def export_program(model: nn.Module, example: Example, dynamic_batch: bool) -> Any:
    """The program of torch.export, for any number of images (`dynamic_batch`) or for that of the example."""
    args, kwargs = _example_call(example, dynamic_batch)
    shapes = None
    if dynamic_batch:
        batch = torch.export.Dim("batch")
        given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
        shapes = tree_map(lambda v: {0: batch} if isinstance(v, Tensor) and v.dim() else None, dict(given))
    _register_outputs(model, args, kwargs)
    try:
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception as error:
        reason = next((line for line in str(error).strip().splitlines() if line.strip()), type(error).__name__)
        hint = " Try dynamic_batch=False: the file then takes a fixed number of images." if dynamic_batch else ""
        raise ModelError(f"torch.export cannot follow {type(model).__name__}: {reason}.{hint}") from error


def _register_outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell torch.export about dataclasses in the model's output, which it does not look into by itself."""
    with evaluating(model), generators_kept(), torch.no_grad():
        left = [model(*tree_map(copied, args), **tree_map(copied, kwargs))]
    while left:
        for value in tree_flatten(left.pop())[0]:
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                kind = type(value)
                torch.export.register_dataclass(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
                left += [getattr(value, field.name) for field in dataclasses.fields(value)]


def _example_call(example: Example, dynamic_batch: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example's arguments. A dynamic batch gets two images, because torch takes a size of 1 for a constant."""
    args, kwargs = as_call(example)
    if dynamic_batch:
        double = lambda v: torch.cat([v[:1], v[:1]]) if isinstance(v, Tensor) and v.dim() else v  # noqa: E731
        args, kwargs = tree_map(double, args), tree_map(double, kwargs)
    return args, kwargs


def compare(model: nn.Module, exported: Callable[[Any], Any], batches: list[Any]) -> Difference:
    """Run both on all batches. Raises ModelError if the outputs differ by more than 1e-3 of the largest one.

    exported: takes a batch of the same structure and returns the same outputs, in any nesting.
    """
    error = max(relative_error(_outputs(model, batch), tree_flatten(exported(batch))[0]) for batch in batches)
    if not error <= TOLERANCE:
        raise ModelError(
            f"the exported network's output differs from PyTorch's by {error:.1e} of the largest value; "
            f"at most {TOLERANCE:g} is accepted"
        )
    return Difference(error, sum(len(tree_flatten(batch)[0][0]) for batch in batches))


def comparison_batches(example: Example, images: Tensor | None, dynamic_batch: bool) -> list[Any]:
    """Batches to compare on: the given images, or random ones. A dynamic batch is tried with several and with one."""
    if images is None:
        return _random_batches(example, dynamic_batch)
    shape = tree_flatten(example)[0][0].shape
    if not isinstance(example, Tensor) or images.shape[1:] != shape[1:] or not len(images):
        raise DataError(
            f"images to compare on should be [N, {', '.join(map(str, shape[1:]))}], not {list(images.shape)}"
        )
    if dynamic_batch:
        return [images, images[:1]]
    size = len(example)
    if len(images) < size:
        raise DataError(f"the file takes {size} images at a time, but only {len(images)} were given to compare on")
    return [images[i : i + size] for i in range(0, len(images) - size + 1, size)]


def _random_batches(example: Example, dynamic_batch: bool) -> list[Any]:
    draw = torch.Generator().manual_seed(0)

    def like(value: Any, count: int | None) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        shape = (count or len(value), *value.shape[1:])
        if not value.is_floating_point():
            return value[:1].expand(shape).contiguous()
        return torch.randn(shape, generator=draw).to(value)

    return [tree_map(lambda v, n=n: like(v, n), example) for n in ((3, 1) if dynamic_batch else (None,))]


def _outputs(model: nn.Module, batch: Any) -> list[Any]:
    home = device_of(model)
    placed = tree_map(lambda v: v.to(home) if isinstance(v, Tensor) else v, batch)
    return [o.cpu() if isinstance(o, Tensor) else o for o in tree_flatten(call(model, placed))[0]]


def relative_error(want: list[Any], got: list[Any]) -> float:
    """The largest difference between two lists of outputs, each divided by the largest value of its output."""
    pairs = [(w, g) for w, g in zip(want, got, strict=True) if isinstance(w, Tensor)]
    return max(
        (float((w - g).abs().max() / w.abs().max().clamp(min=1e-30)) for w, g in pairs if w.numel()), default=0.0
    )
