"""Unlabelled images from a tensor or from batches with or without labels, checked against the traced example."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from secateur.base.batches import IMAGE_KEYS, device_of, move
from secateur.channels.graph import ChannelGraph
from secateur.channels.traced import as_call
from secateur.errors import DataError

CHUNK = 64  # images that run through the network at a time

Images = Tensor | Iterable[Any]  # a tensor [N, C, H, W] as the network takes it, or batches; labels are ignored


def chunks(graph: ChannelGraph, images: Images) -> Iterator[Any]:
    """The images in chunks of `CHUNK`, checked and on the model's device; only one chunk is held at a time.

    A graph whose code depends on the batch size gets whole chunks only.
    """
    left: Any = None
    done = 0
    for batch in _checked(graph, images):
        left = batch if left is None else tree_map(lambda a, b: torch.cat([a, b]), left, batch)
        while count_of(left) >= CHUNK:
            yield tree_map(lambda t: t[:CHUNK], left)
            left = tree_map(lambda t: t[CHUNK:], left)
            done += 1
    if count_of(left) and not (done and graph.found.traced.guards):
        yield left
    elif not done:
        raise DataError("there are no images: every batch is empty")


def count_of(images: Any) -> int:
    """Number of images in a tensor, or in a tuple or dict of tensors that belong together."""
    counts = {len(t) for t in tree_flatten(images)[0] if isinstance(t, Tensor) and t.dim()}
    if len(counts) != 1:
        raise DataError(f"all inputs of a batch must have the same number of images, got {sorted(counts)}")
    return int(counts.pop())


def _checked(graph: ChannelGraph, images: Images) -> Iterator[Any]:
    home = device_of(graph.model)
    number = -1
    if not isinstance(images, Iterable):
        raise DataError(
            f"images must be a tensor or batches, got {type(images).__name__}; check the order of the arguments"
        )
    for number, batch in enumerate([images] if isinstance(images, Tensor) else images):
        some = _images_of(batch, number)
        _check_shapes(graph, some, number)
        moved = move(some, home)
        if not all(bool(torch.isfinite(t).all()) for t in tree_flatten(moved)[0] if isinstance(t, Tensor)):
            raise DataError(f"batch {number}: the images have NaN or infinite values")
        yield moved
    if number < 0:
        raise DataError("there are no images: the loader gave no batch; check the part, split and limit")


def _images_of(batch: Any, number: int) -> Any:
    """The images of a batch: the batch itself, the first element of a tuple or list, or an entry of a dict."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        for key in IMAGE_KEYS:
            if key in batch:
                return batch[key]
        raise DataError(
            f"batch {number} is a dict with the keys {sorted(map(str, batch))}; expected one of "
            f"{', '.join(IMAGE_KEYS)} for the images"
        )
    if isinstance(batch, tuple | list) and batch:
        return batch[0]
    raise DataError(
        f"batch {number} must be images [N, C, H, W], a tuple that starts with images or a dict that has them, "
        f"got {type(batch).__name__}"
    )


def _check_shapes(graph: ChannelGraph, batch: Any, number: int) -> None:
    """The inputs must have the example's sizes and types; the number of images may differ."""
    wanted, got = _shapes(graph.example), _shapes(batch)
    if wanted != got:
        raise DataError(
            f"batch {number}: the network was traced with images of {_words(wanted)}, got images of {_words(got)}. "
            "Resize the images, or trace the network with an example of this size."
        )


def _shapes(inputs: Any) -> list[tuple[list[int], torch.dtype]]:
    args, kwargs = as_call(inputs)
    leaves = tree_flatten((args, [kwargs[key] for key in sorted(kwargs)]))[0]
    return [(list(t.shape[1:]), t.dtype) for t in leaves if isinstance(t, Tensor)]


def _words(shapes: list[tuple[list[int], torch.dtype]]) -> str:
    return ", ".join(f"{shape} ({str(dtype).removeprefix('torch.')})" for shape, dtype in shapes) or "no tensor"
