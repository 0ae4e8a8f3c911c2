"""One pass over a loader: batches are unpacked and checked, the network runs in eval mode, all state is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from secateur.base.batches import Batches, call, check_batches, count_images, device_of, labels_to, move
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.errors import DataError
from secateur.measuring.quality_sums import outputs_for, unpack_for
from secateur.measuring.tasks import Task, is_classification, task_of

After = Callable[[int, Any, Any], None]  # batch number, labels on the CPU, outputs that count: logits [N, K]


def walk(
    graph: ChannelGraph,
    loader: Batches,
    after: After,
    *,
    before: Callable[[Any], None] | None = None,
    gradients: bool = False,
    labelled: bool = True,
    progress: Progress | None = None,
    task: Task | None = None,
) -> int:
    """Run the graph's model on every batch, and call `after` when a batch is done and its labels are checked.

    before: called with the labels of each batch, before it runs.
    labelled: False: batches may be images alone, whose labels are None, and outputs are not looked at.
    With `gradients` the images require gradients, so that every activation has one even if all parameters are frozen.
    Returns the number of images; an empty loader is an error.
    """
    check_batches(loader, "loader")
    model, total, images_seen = graph.model, length_of(loader), 0
    home, chosen = device_of(model), task_of(task)
    with evaluating(model), generators_kept(), torch.inference_mode(False), torch.set_grad_enabled(gradients):
        for index, batch in enumerate(loader):
            images, labels = unpack_for(chosen, batch, index, labelled)
            count = count_images(images)
            if not count:
                continue
            images = move(images, home)
            if before is not None:
                before(labels)
            if gradients:
                images = _leaves(images)
            outputs = call(model, images)
            if labels is not None and (labelled or is_classification(chosen)):
                outputs = outputs_for(chosen, outputs, labels, index)
            after(index, labels_to(labels, torch.device("cpu")), outputs)
            images_seen += count
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
