"""Zeroing equals removing: set the weights with which readers read dropped channels to zero for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from secateur.base.preserve_state import nothing_compiled
from secateur.channels import layer_surgery
from secateur.channels.layer_kinds import CONVOLUTIONS, batched_dims
from secateur.channels.plan import Plan
from secateur.channels.units import Indices, Keep

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph


@contextmanager
def zeroed(graph: ChannelGraph, plan: Plan | Keep) -> Iterator[None]:
    """Inside the block, `graph.model` computes what the pruned model would compute.

    The exact weights are restored afterwards, also after an error.
    """
    drops = _dropped_inputs(graph, graph.keep_of(plan))
    saved: list[tuple[Tensor, Tensor]] = []
    hooks: list[RemovableHandle] = []
    try:
        for name, inputs in drops.items():
            layer = graph.model.get_submodule(name)
            if name in graph.found.find_rule.reading_all:
                hooks.append(layer.register_forward_pre_hook(_without(torch.from_numpy(inputs))))
                continue
            weight: Tensor = layer.weight  # type: ignore[assignment]
            saved.append((weight, weight.data))
            weight.data = layer_surgery.without_inputs(layer, inputs)
        with nothing_compiled() if hooks else nullcontext():  # compiled code does not see new hooks
            yield
    finally:
        for weight, before in reversed(saved):
            weight.data = before
        for hook in hooks:
            hook.remove()


def _without(inputs: Tensor) -> Callable[..., Any]:
    """A hook that sets these channels of a layer's input to zero: its weights depend on those of all inputs."""

    def zero(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x: Tensor = args[0]
        dim = x.dim() - batched_dims(layer) + 1 if isinstance(layer, CONVOLUTIONS) else x.dim() - 1
        return (x.index_fill(dim, inputs.to(x.device), 0), *args[1:])

    return zero


def _dropped_inputs(graph: ChannelGraph, keep: Keep) -> dict[str, Indices]:
    """Reader -> positions on its input axis that it no longer reads."""
    drops: dict[str, list[Indices]] = {}
    for name, kept in keep.items():
        unit = graph.units[name]
        gone = np.ones(unit.width, dtype=bool)
        gone[np.asarray(kept, dtype=np.int64)] = False
        if not gone.any():
            continue
        for reader in unit.readers:
            drops.setdefault(reader.module, []).append(reader.inputs[gone[reader.channels]].reshape(-1))
    return {name: np.concatenate(parts) for name, parts in drops.items()}
