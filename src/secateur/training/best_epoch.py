"""The best epoch of a training run by held-out accuracy. The network before the first epoch is epoch 0."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from secateur.measuring.accuracy import Accuracy
from secateur.training.history import Epoch

Weights = dict[str, Tensor]


class BestEpoch:
    """Holds the weights of the best epoch so far. Of epochs with the same accuracy the last one is the best."""

    def __init__(self, model: nn.Module, start: Accuracy) -> None:
        self._model, self.start = model, start
        self.number, self.accuracy, self.weights = 0, start, _copied(model)

    def see(self, history: Sequence[Epoch]) -> None:
        """Take the weights of the epoch that has just ended, if it is the best."""
        last = history[-1]
        if last.holdout is not None and last.holdout.top1 >= self.accuracy.top1:
            self.number, self.accuracy, self.weights = last.number, last.holdout, _copied(self._model)

    def restore(self) -> None:
        """Put the best weights into the model."""
        self._model.load_state_dict(self.weights)

    def to_dict(self) -> dict[str, Any]:
        """What a checkpoint needs besides the weights, as JSON values."""
        return {"number": self.number, "accuracy": dataclasses.asdict(self.accuracy)}

    def resume(self, found: Mapping[str, Any], weights: Weights) -> None:
        """Continue from what `to_dict` gave; `weights` of epoch 0 are those that the run starts with again."""
        self.number, self.accuracy = found["number"], Accuracy(**found["accuracy"])
        if self.number:
            self.weights = {name: weights[name].to(tensor.device) for name, tensor in self.weights.items()}


def _copied(model: nn.Module) -> Weights:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
