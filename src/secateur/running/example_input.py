"""An example input of a network, and what it tells."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import Batches, call, logits_of
from secateur.base.preserve_state import evaluating
from secateur.errors import DataError
from secateur.measuring.quality_sums import unpack_for
from secateur.measuring.tasks import Task, task_of


def first_image(loader: Batches, device: torch.device, task: Task | None = None) -> Any:
    """The first image of a loader, as a batch of one; of several inputs, the first row of each."""
    for number, batch in enumerate(loader):
        images, _ = unpack_for(task_of(task), batch, number, labelled=False)
        return tree_map(lambda part: part[:1].to(device) if isinstance(part, Tensor) else part, images)
    raise DataError("the loader gave no images")


def pixels(example: Any) -> int:
    """Pixels of one image; of the largest of several inputs."""
    return max((math.prod(x.shape[2:]) for x in tree_leaves(example) if isinstance(x, Tensor)), default=0)


@torch.no_grad()
def classes_of(model: nn.Module, example: Any) -> int:
    """The number of classes that a classifier knows."""
    with evaluating(model):
        return int(logits_of(call(model, copy.deepcopy(example))).shape[-1])
