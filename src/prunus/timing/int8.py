"""A network in the 8-bit integers of an engine, with ranges of activations measured on images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from prunus.errors import RunError
from prunus.timing.engines import ENGINES, NUM_CALIBRATION
from prunus.timing.onnx_export import exported
from prunus.util.batches import call, count_images
from prunus.util.state import evaluating, generators_kept, module_state_kept


def one_by_one(batches: Iterable[Any], most: int = NUM_CALIBRATION) -> Iterator[Any]:
    """The first images of batches of inputs, each as a batch of one."""

    def images() -> Iterator[Any]:
        for batch in batches:
            for n in range(count_images(batch)):
                yield tree_map(lambda x, n=n: x[n : n + 1] if isinstance(x, Tensor) and x.ndim else x, batch)

    return islice(images(), most)


class QuantisedNetwork(nn.Module):
    """A network in 8-bit integers: calling it runs the engine. Its outputs have the structure of the network's.

    Args:
        model: The network in 32-bit numbers. It is not changed.
        example: An input of it.
        engine: The name of an engine that computes in integers.
        images: Inputs of one image each, on which the ranges of activations are measured.
        threads: Number of CPU threads.
    """

    def __init__(self, model: nn.Module, example: Any, engine: str, images: Iterable[Any], threads: int = 1) -> None:
        super().__init__()
        found = ENGINES.find(engine)
        found.check_installed()
        if found.quantise is None:
            raise RunError(f"the engine {engine} computes in 32-bit numbers")
        with evaluating(model), generators_kept(), module_state_kept(model), torch.no_grad():
            content = found.quantise(exported(model, example, found.selection), images)
            leaves, self._structure = tree_flatten(call(model, example))
        self._given = [leaf is not None for leaf in leaves]  # ONNX has no None
        self.prepared = found.open(content, threads)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the engine computes for a batch."""
        values = iter(self.prepared(kwargs or args))
        leaves = [torch.from_numpy(np.array(next(values))) if given else None for given in self._given]
        return tree_unflatten(leaves, self._structure)
