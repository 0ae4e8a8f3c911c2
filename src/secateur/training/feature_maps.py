"""Feature maps that two networks of the same kind have in common, for distillation where there are no logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from secateur.base.batches import call
from secateur.base.preserve_state import evaluating
from secateur.errors import RunError


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
