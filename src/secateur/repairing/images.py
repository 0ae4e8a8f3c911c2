"""Images for a repair, from whatever holds them: one tensor, or batches with or without labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from secateur.base.batches import IMAGE_KEYS, device_of, move
from secateur.channels.graph import ChannelGraph
from secateur.channels.tracing import as_call
from secateur.errors import DataError
from secateur.repairing.lockstep import count_of, finite


def gather(graph: ChannelGraph, images: Tensor | Iterable[Any]) -> Any:
    """All images as the network takes them, on its device: checked against the example that the graph was made with."""
    batches = [images] if isinstance(images, Tensor) else [_images_of(batch, i) for i, batch in enumerate(images)]
    if not batches:
        raise DataError("there are no images to repair with: the loader gave no batch; check the part, split and limit")
    home = device_of(graph.model)
    for number, batch in enumerate(batches):
        _check(graph, batch, number)
    moved = [move(batch, home) for batch in batches]
    whole = moved[0] if len(moved) == 1 else tree_map(lambda *parts: torch.cat(parts), *moved)
    if count_of(whole) == 0:
        raise DataError("there are no images to repair with: every batch is empty")
    if not finite(whole):
        raise DataError("the images hold NaN or infinite values; nothing can be fitted to them")
    return whole


def _images_of(batch: Any, number: int) -> Any:
    """The images of a batch: itself, the first of a tuple or list, or the entry of a dict that is called so."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        for key in IMAGE_KEYS:
            if key in batch:
                return batch[key]
        raise DataError(
            f"batch {number} is a dict with the keys {sorted(map(str, batch))}, and none of them is "
            f"{' or '.join(IMAGE_KEYS)}"
        )
    if isinstance(batch, tuple | list) and batch:
        return batch[0]
    raise DataError(
        f"batch {number} should be images [N, C, H, W], a tuple that starts with them or a dict that has them, "
        f"and is a {type(batch).__name__}"
    )


def _check(graph: ChannelGraph, batch: Any, number: int) -> None:
    """The same inputs as the example's, of the same size and type, however many images."""
    wanted, got = _shapes(graph.example), _shapes(batch)
    if wanted != got:
        raise DataError(
            f"batch {number}: the network was traced with images of {_words(wanted)}, and these are of {_words(got)}. "
            "Bring them to that size, or trace the network with an example of theirs."
        )


def _shapes(inputs: Any) -> list[tuple[list[int], torch.dtype]]:
    args, kwargs = as_call(inputs)
    leaves = tree_flatten((args, [kwargs[key] for key in sorted(kwargs)]))[0]
    return [(list(t.shape[1:]), t.dtype) for t in leaves if isinstance(t, Tensor)]


def _words(shapes: list[tuple[list[int], torch.dtype]]) -> str:
    return ", ".join(f"{shape} ({str(dtype).removeprefix('torch.')})" for shape, dtype in shapes) or "no tensor at all"
