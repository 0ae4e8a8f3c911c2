"""PyTorch as it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from secateur.base.batches import call, device_of
from secateur.measuring.engines import Engine, PreparedModel


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    return PreparedModel(partial(call, model), device_of(model))


ENTRY = Engine(make=_make)
