"""One pass over a loader: batches are unpacked and checked, the network runs in eval mode, all state is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from secateur.base.batches import Batches, call, check_batches, check_range, device_of, logits_of, move, unpack
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError

After = Callable[[int, Tensor, Tensor], None]  # batch number, labels [N] on the CPU, logits [N, K]


def walk(
    graph: ChannelGraph,
    loader: Batches,
    after: After,
    *,
    gradients: bool = False,
    progress: Progress | None = None,
) -> int:
    """Run the graph's model on every batch, and call `after` when a batch is done and its labels are checked.

    With `gradients` the images require gradients, so that every activation has one even if all parameters are frozen.
    Returns the number of images; an empty loader is an error.
    """
    check_batches(loader, "loader")
    model, total, images_seen = graph.model, length_of(loader), 0
    home = device_of(model)
    with evaluating(model), generators_kept(), torch.inference_mode(False), torch.set_grad_enabled(gradients):
        for index, batch in enumerate(loader):
            images, labels = unpack(batch, index)
            if not len(labels):
                continue
            images = move(images, home)
            if gradients:
                images = _leaves(images)
            logits = logits_of(call(model, images))  # [N, K]
            check_range(labels, logits, index)
            after(index, labels.cpu(), logits)
            images_seen += len(labels)
            if progress is not None:
                progress(index + 1, total)
    if images_seen == 0:
        raise DataError("there is nothing to score on: the loader gave no images; check the part, split and limit")
    return images_seen


def length_of(loader: Iterable[object]) -> int | None:
    """Number of batches; None if the loader has no length."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


def _leaves(images: object) -> object:
    """Copies that require gradients; the caller's tensors are not changed."""
    if isinstance(images, dict):
        return {key: _leaves(value) for key, value in images.items()}
    if isinstance(images, tuple):
        return tuple(_leaves(value) for value in images)
    if isinstance(images, Tensor) and images.is_floating_point():
        return images.detach().clone().requires_grad_()
    return images
