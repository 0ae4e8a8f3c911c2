"""Knowledge distillation (Hinton et al. 2015): the network also learns from the outputs of a teacher."""

from __future__ import annotations

import copy
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import RunError
from prunus.util.batches import call, order_channels_last
from prunus.util.state import evaluating

if TYPE_CHECKING:
    from typing import Any

    from accelerate import Accelerator
    from torch import Tensor

    from prunus.tasks import Task


@dataclass(frozen=True)
class Distillation:
    """Temperature T that softens both networks' outputs, and the weight w of the teacher's part of the loss.

    features: weight of the distance between feature maps, which is added to the loss.
    """

    temperature: float = 4.0
    weight: float = 0.5
    features: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values for which the formula has no meaning."""
        if not self.temperature > 0 or not 0 <= self.weight <= 1 or not self.features >= 0:
            raise RunError(f"distillation needs temperature > 0, 0 <= weight <= 1 and features >= 0, got {self}")

    def loss(self, student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        """(1 - w) CE(student, labels) + w T^2 KL(softmax(teacher / T) || softmax(student / T)), mean over images.

        T^2 keeps the gradient of the second term about as large as that of the first for any T.
        """
        from torch.nn import functional as F  # here, because settings must not import torch

        from prunus.tasks.evaluate import at_least_float32

        student, teacher = at_least_float32(student), at_least_float32(teacher)  # [N, K]
        soft_student = F.log_softmax(student / self.temperature, dim=1)  # [N, K]
        soft_teacher = F.log_softmax(teacher / self.temperature, dim=1)  # [N, K]
        divergence = F.kl_div(soft_student, soft_teacher, reduction="batchmean", log_target=True)
        hard = F.cross_entropy(student, labels)
        return (1 - self.weight) * hard + self.weight * self.temperature**2 * divergence

    def mixed(self, task: Task, student: Any, teacher: Any, labels: Any) -> Tensor:
        """(1 - w) task.loss(student, labels) + w task.distil(student, teacher, T), for any task."""
        from prunus.tasks.evaluate import mean_loss, squared_distance

        soft = (task.distil or squared_distance)(student, teacher, self.temperature)
        return (1 - self.weight) * mean_loss(task, student, labels) + self.weight * soft


# Feature maps that two networks of the same kind have in common, for distillation where there are no logits.


class FeatureMaps:
    """Collects the outputs of some modules in each forward pass of a network."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self._names, self._found = names, dict[str, Tensor]()
        modules = dict(model.named_modules())
        self._hooks = [modules[name].register_forward_hook(self._collector(name)) for name in names]

    def _collector(self, name: str) -> Any:
        def collect(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._found[name] = output

        return collect

    def found(self) -> dict[str, Tensor]:
        """The outputs in the last forward pass, by name, in the order of the names that were asked for."""
        return {name: self._found[name] for name in self._names if name in self._found}

    def remove(self) -> None:
        """Take the hooks off the network."""
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def common_maps(student: nn.Module, teacher: nn.Module, images: Any) -> list[str]:
    """Of each size (height, width), the last module whose output has the same shape in both networks.

    In a residual network these are the ends of the stages: the channels of a stream are all there, whatever its readers
    select. RunError if there is none.
    """
    shapes = []
    for model in (student, teacher):
        maps = FeatureMaps(model, [name for name, _ in model.named_modules() if name])
        try:
            with evaluating(model):
                call(model, images)
            shapes.append({name: found.shape for name, found in maps.found().items() if found.ndim == 4})
        finally:
            maps.remove()
    mine, its = shapes
    last = {tuple(shape[2:]): name for name, shape in mine.items() if its.get(name) == shape}
    if not last:
        raise RunError(
            "distill_features: no feature map has the same shape in the network and its teacher; leave it out"
        )
    return list(last.values())


# The teacher of a distillation: its answers, and the answers that are kept because the same batches come again.

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
