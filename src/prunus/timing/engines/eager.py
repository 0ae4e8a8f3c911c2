"""PyTorch as it is."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from prunus.timing.engines import Engine, PreparedModel
from prunus.util.batches import call, device_of


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    return PreparedModel(partial(call, model), device_of(model))


EAGER = Engine(name="eager", help="PyTorch as it is", make=_make)
