"""Weights that show what a trial is for: an untrained network scales by ones and adds zeros, which hides errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_STATISTICS = frozenset(("running_mean", "running_var"))
_SMALL = 0.05  # a smaller factor would hide the branch that it scales


@contextmanager
def constants_varied(model: nn.Module) -> Iterator[None]:
    """Inside the block, numbers differ in each parameter and statistic whose numbers are all equal.

    They are within 30% of the constant, or between 0.1 and 0.3 if that is small. The tensors are restored afterwards.
    """
    generator = torch.Generator().manual_seed(0)
    saved: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in _tensors(model):
            if _is_constant(tensor):
                saved.append((tensor, tensor.data))
                drawn = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
                value = tensor.detach().reshape(-1)[0]
                tensor.data = value * (0.7 + 0.6 * drawn) if abs(value) >= _SMALL else 0.1 + 0.2 * drawn
        yield
    finally:
        for tensor, before in saved:
            tensor.data = before


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in _STATISTICS:
            yield buffer


def _is_constant(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    numbers = tensor.detach().reshape(-1)
    return bool(numbers[0] == numbers[-1]) and bool((numbers == numbers[0]).all())
