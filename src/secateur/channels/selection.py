"""The paper's channel selection layer: a layer that reads only some of the channels of a stream.

It is a forward pre-hook on the layer, with its index in a buffer that is not saved. So the layer keeps its class,
parameters keep their names, `.to(device)`, deep copies and export work, and the plan restores the index on loading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

INDEX = "secateur_selection"
DIM = "secateur_selection_dim"


@dataclass(frozen=True)
class Selection:
    """Which channels of its input a layer reads, along `dim`."""

    index: Tensor
    dim: int


def selection_of(module: nn.Module) -> Selection | None:
    """The selection in front of `module`, if it has one."""
    buffers = module._buffers  # of a TorchScript module, this is no dict
    return Selection(buffers[INDEX], int(getattr(module, DIM))) if INDEX in buffers else None  # type: ignore[arg-type]


def select(module: nn.Module, index: Tensor, dim: int) -> None:
    """Make `module` read only `index` of its input along `dim`. Replaces an existing selection."""
    had = selection_of(module) is not None
    device = next((t.device for t in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
    module.register_buffer(INDEX, index.to(device), persistent=False)
    setattr(module, DIM, dim)
    if not had:
        module.register_forward_pre_hook(_take)


def unselect(module: nn.Module) -> None:
    """Remove the selection in front of `module`, if it has one."""
    if selection_of(module) is None:
        return
    delattr(module, INDEX)
    delattr(module, DIM)
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _take:
            del module._forward_pre_hooks[key]


def _take(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    index: Tensor = module._buffers[INDEX]  # type: ignore[assignment]
    return (_selected(args[0], getattr(module, DIM), index), *args[1:])


def _selected(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.index_select(dim, index)`, but fast on images in channels_last, and without losing their layout."""
    if dim != 1 or x.dim() != 4 or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return x.index_select(dim, index)
    rows = x.permute(0, 2, 3, 1).flatten(0, 2)  # [N H W, C] no copy
    return rows.index_select(1, index).view(x.size(0), x.size(2), x.size(3), len(index)).permute(0, 3, 1, 2)
