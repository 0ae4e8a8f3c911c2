"""The moving average of a network's weights during training (EMA, Polyak averaging)."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn


class AveragedWeights:
    """A copy of a network whose weights and batch-norm statistics are averages over the steps of its training.

        average = d x average + (1 - d) x weights,    d = min(decay, (1 + steps) / (10 + steps))

    The smaller d of the first steps forgets the start sooner. Whole numbers (batches that were counted) are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.model = copy.deepcopy(model)
        self._pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))

    @torch.no_grad()
    def step(self, steps: int) -> None:
        """Take in the weights after a step; `steps` of the whole run were done before it."""
        share = 1 - min(self._decay, (1 + steps) / (10 + steps))
        for mean, now in self._pairs:
            if mean.is_floating_point():
                mean.lerp_(now, share)
            else:
                mean.copy_(now)

    def resume(self, weights: Mapping[str, Tensor]) -> None:
        """Continue from the averages that a checkpoint has kept."""
        self.model.load_state_dict(weights)
