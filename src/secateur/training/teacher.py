"""The teacher of a distillation: its answers, and the answers that are kept because the same batches come again."""

from __future__ import annotations

import copy
import hashlib
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur.base.batches import call, order_channels_last
from secateur.training.feature_maps import FeatureMaps

if TYPE_CHECKING:
    from accelerate import Accelerator

logger = logging.getLogger(__name__)

MEMORY = 1 << 30  # bytes of answers that are kept at most


class Teacher:
    """A copy of a network in eval mode that answers batches, without gradients.

    With `keeps`, the answer to a batch is kept under a digest of the batch's bytes. So a kept answer is what the
    network computed for exactly these images, in this order, and a run that is resumed computes the same bits again.
    When MEMORY is full, further answers are computed each time.
    """

    def __init__(self, network: nn.Module, accelerator: Accelerator, channels_last: bool, *, keeps: bool) -> None:
        self.network = copy.deepcopy(network).to(accelerator.device).eval().requires_grad_(False)
        if channels_last:
            order_channels_last(self.network)
        self._maps, self._accelerator = FeatureMaps(self.network, []), accelerator
        self._keeps, self._kept, self._room = keeps, dict[bytes, Any](), MEMORY
        self._last: tuple[Any, Any] = (None, None)

    def watch(self, names: list[str]) -> None:
        """Let the outputs of these modules be part of every answer."""
        self._maps = FeatureMaps(self.network, names)

    def answer(self, images: Any) -> tuple[Any, dict[str, Tensor]]:
        """The network's output for a batch, and the outputs of its modules by name."""
        if self._last[0] is not images:  # asked twice in a step if labels are mixed
            self._last = images, self._answer(images)
        found: tuple[Any, dict[str, Tensor]] = self._last[1]
        return found

    def _answer(self, images: Any) -> Any:
        if not self._keeps:
            return self._compute(images)
        key = batch_digest(images)
        if key not in self._kept:
            found = self._compute(images)
            size = sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(found) if isinstance(leaf, Tensor))
            if size > self._room:
                self._say_full()
                return found
            self._kept[key], self._room = found, self._room - size
        return self._kept[key]

    def _compute(self, images: Any) -> Any:
        with torch.no_grad(), self._accelerator.autocast():
            return call(self.network, images), self._maps.found()

    def _say_full(self) -> None:
        if self._room >= 0:
            logger.info(
                "the teacher's answers to %d batches fill %.1f GiB; to the others it answers in each epoch",
                len(self._kept),
                MEMORY / (1 << 30),
            )
        self._room = -1  # smaller answers that follow are not kept either: which ones are is then easily said


def batch_digest(images: Any) -> bytes:
    """128 bits that tell batches apart: BLAKE2 of types, shapes and bytes of all tensors."""
    total = hashlib.blake2b(digest_size=16)
    for leaf in tree_leaves(images):
        if isinstance(leaf, Tensor):
            plain = leaf.detach().cpu().contiguous()
            total.update(f"{plain.dtype} {list(plain.shape)};".encode())
            total.update(plain.view(-1).view(torch.uint8).numpy().data)
        else:
            total.update(f"{leaf!r};".encode())
    return total.digest()
