"""PyTorch as it is."""

from __future__ import annotations

from functools import partial

from prunus.timing.engines import Engine, PreparedModel
from prunus.util.batches import call, device_of

EAGER = Engine(
    name="eager",
    help="PyTorch as it is",
    make=lambda model, example, threads: PreparedModel(partial(call, model), device_of(model)),
)
