"""Reshapes of an ONNX file as flatten and unflatten, so that no size of the original network is left in the graph.

A file says [N, 116, 28, 28] -> [N, 2, 58, 28, 28], with numbers. Here it becomes `unflatten(x, 1, (2, -1))`: the axes
that a group of axes becomes are found by their products, and the largest of them is left open. So the number of images
is free, and channels can be removed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from prunus.zoo.onnx_graph import IMAGES, Importing, Value, counts_images, shape_of


def reshaped(at: Importing, x: Value, target: Sequence[int]) -> Value:
    """`x` in another shape, whose sizes are all known."""
    shape = shape_of(x)
    if math.prod(shape) != math.prod(target):
        raise ValueError(f"{list(shape)} cannot be reshaped to {list(target)}".replace(str(IMAGES), "N"))
    if 0 in shape:
        return at.call(torch.reshape, x, tuple(target))
    parts = groups(shape, target)
    place = 0  # of the group among the axes of what has been made so far
    for before, after in parts:
        if before != after:
            if len(before) > 1:
                x = at.call(torch.flatten, x, place, place + len(before) - 1)
            if not before:
                for _ in after:  # axes of size 1 alone
                    x = at.call(torch.unsqueeze, x, place)
            elif not after:
                x = at.call(torch.squeeze, x, place)
            elif len(after) > 1:
                x = at.call(torch.unflatten, x, place, opened(after))
        place += len(after)
    return x


def groups(shape: Sequence[int], target: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The fewest axes, from the left, that become axes of the same product: (2, 6, 5) -> (12, 5) is (2, 6) -> (12,)
    and (5,) -> (5,)."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    i = j = 0
    while i < len(shape) and j < len(target):
        first, second = i, j
        left, right = shape[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left, i = left * shape[i], i + 1
            else:
                right, j = right * target[j], j + 1
        found.append((tuple(shape[first:i]), tuple(target[second:j])))
    rest = tuple(shape[i:]), tuple(target[j:])  # axes of size 1
    if any(rest):
        last = found.pop() if found else ((), ())
        found.append((last[0] + rest[0], last[1] + rest[1]))
    return found


def opened(sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes with -1 in the place of the number of images or, without it, of the largest size."""
    images = [place for place, size in enumerate(sizes) if counts_images(size)]
    free = images[0] if images else max(range(len(sizes)), key=lambda place: sizes[place])
    return tuple(-1 if place == free else size for place, size in enumerate(sizes))


def target_of(shape: Sequence[int], wanted: Sequence[int], batch: int | None, *, zero_copies: bool = True) -> list[int]:
    """The sizes that a Reshape asks for, where 0 stands for the same size and -1 for the rest.

    Args:
        shape: Of the input.
        wanted: The sizes in the file.
        batch: Number of images that the file is made for: in front, this number stands for the number of images.
        zero_copies: Whether 0 stands for the same size.
    """
    sizes = [int(size) for size in wanted]
    if zero_copies:
        sizes = [shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    if batch and sizes and shape and counts_images(shape[0]) and not any(map(counts_images, sizes)):
        # The file is for a fixed number of images: a multiple of it, or of the images of the input, counts them.
        first = sizes[0]
        rest = math.prod(shape) // math.prod(size for size in sizes[1:] if size != -1) if first != -1 else 0
        if first == batch or (-1 not in sizes and first * IMAGES == rest * batch):
            sizes[0] = first * IMAGES // batch
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // known if known else 0
    return sizes
