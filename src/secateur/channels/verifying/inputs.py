"""Inputs on which two networks are compared: the example itself, random values of its shape, and smaller ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from secateur.channels.traced import Example

SMALL = (64, 128)  # pixels a side of images in trials, if they are larger: five halvings leave two pixels, or four
_LARGER = 1.5  # how much larger


def copied(example: Example) -> Example:
    """A copy of all tensors, because a network may work in place on what it is given."""
    return tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, example)


def few_images(example: Example, most: int = 2) -> Example:
    """The first images of each tensor, if all tensors have the same number of them."""
    counts = {value.size(0) for value in tree_leaves(example) if isinstance(value, Tensor) and value.dim() > 1}
    if len(counts) != 1 or max(counts) <= most:
        return example
    (count,) = counts

    def narrowed(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == count
        return value[:most] if fits else value

    return tree_map(narrowed, example)


def two_images(example: Example) -> Example:
    """Two images in each tensor that has one: batch norms in training mode need more than one value."""

    def doubled(value: Any) -> Any:
        lonely = isinstance(value, Tensor) and value.dim() > 1 and value.size(0) == 1
        return torch.cat([value, value]) if lonely else value

    return few_images(tree_map(doubled, example))


def smaller(example: Example, side: int) -> Example:
    """The corners of large images, for a quick trial."""

    def corner(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 4 or min(value.shape[-2:]) <= _LARGER * side:
            return value
        return value[..., :side, :side]

    return tree_map(corner, example)


def is_constant(example: Example) -> bool:
    """Whether all numbers of every tensor are equal, as in an example of zeros."""
    tensors = [v for v in tree_leaves(example) if isinstance(v, Tensor) and v.is_floating_point()]
    return all(bool((tensor == tensor.reshape(-1)[:1]).all()) for tensor in tensors if tensor.numel())


def randomised(example: Example, seed: int = 0) -> Example:
    """Normal numbers in place of those of each floating-point tensor, with the same mean and spread (1 if none)."""
    generator = torch.Generator().manual_seed(seed)

    def random(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        plain = value.detach().double().cpu()
        spread, mean = plain.std(correction=0), plain.mean()
        if not (torch.isfinite(spread) and spread > 0):
            spread, mean = torch.ones(()), torch.zeros(())
        drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64) * spread + mean
        return drawn.to(value.device, value.dtype)

    return tree_map(random, example)


def in_double(example: Example) -> Example:
    """Floating-point tensors in float64."""
    return tree_map(
        lambda value: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value, example
    )
