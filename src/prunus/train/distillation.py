"""Knowledge distillation (Hinton et al. 2015): the network also learns from the outputs of a teacher."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from prunus.errors import RunError
from prunus.tasks.evaluate import mean_loss, squared_distance
from prunus.util.batches import call
from prunus.util.state import evaluating, generators_kept

if TYPE_CHECKING:
    from prunus.tasks import Task


def distillation_loss(
    task: Task, student: Any, teacher: Any, labels: Any, temperature: float = 4.0, weight: float = 0.5
) -> Tensor:
    """(1 - w) loss(student, labels) + w distil(student, teacher, T), both of the task.

    For classification: (1 - w) CE(student, labels) + w T^2 KL(softmax(teacher / T) || softmax(student / T)). T^2 keeps
    the gradient of the second term about as large as that of the first for any T.
    """
    soft = (task.distil or squared_distance)(student, teacher, temperature)
    return (1 - weight) * mean_loss(task, student, labels) + weight * soft


class FeatureMaps:
    """Collects the outputs of some modules in each forward pass of a network."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self._names, self._outputs = names, dict[str, Tensor]()
        modules = dict(model.named_modules())

        def collect(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                self._outputs.pop(name, None)
                self._outputs[name] = output

        self._hooks = [modules[name].register_forward_hook(partial(collect, name)) for name in names]

    def last(self) -> dict[str, Tensor]:
        """The outputs in the last forward pass, by name, in the order of the names that were asked for."""
        return {name: self._outputs[name] for name in self._names if name in self._outputs}

    def in_order(self) -> dict[str, Tensor]:
        """The same in the order in which the modules were done: a block comes after its layers."""
        return dict(self._outputs)

    def remove(self) -> None:
        """Take the hooks off the network."""
        for hook in self._hooks:
            hook.remove()


@torch.no_grad()
def common_maps(student: nn.Module, teacher: nn.Module, images: Any) -> list[str]:
    """Of each size (height, width), the last module to be done whose output has the same shape in both networks.

    In a residual network these are the ends of the stages: the channels of a stream are all there, whatever its readers
    select. RunError if there is none.
    """
    shapes = []
    for model in (student, teacher):
        maps = FeatureMaps(model, [name for name, _ in model.named_modules() if name])
        try:
            with evaluating(model):
                call(model, images)
            shapes.append({name: map.shape for name, map in maps.in_order().items() if map.ndim == 4})
        finally:
            maps.remove()
    try:  # a detector may decode its boxes in eval mode only, by modules that do not run in training
        training = copy.deepcopy(student).train()
        maps = FeatureMaps(training, [name for name, _ in training.named_modules() if name])
        with generators_kept():
            call(training, images)
        trained = {*maps.in_order()}
    except Exception:  # noqa: BLE001  it needs more than images to run in training mode
        trained = {name for name, _ in student.named_modules()}
    same = {name: shape for name, shape in shapes[0].items() if shapes[1].get(name) == shape and name in trained}
    last = {tuple(shape[2:]): name for name, shape in same.items()}
    if not last:
        raise RunError("distill_features: no feature map has the same shape in network and teacher; leave it out")
    return list(last.values())
