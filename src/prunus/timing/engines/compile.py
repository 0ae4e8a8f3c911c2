"""PyTorch with torch.compile, which needs a C++ compiler."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import nn

from prunus.errors import ModelError
from prunus.timing.engines import Engine, PreparedModel
from prunus.util.batches import call, device_of

# Models of one class share code, and torch.compile gives up on code that it has compiled this many times.
RECOMPILE_LIMIT = 1000


def _make(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own modules
        compiled: Any = torch.compile(model, dynamic=False)  # code for any batch size would be slower
    return PreparedModel(partial(call, compiled), device_of(model), partial(_compile, compiled))


def _compile(compiled: Any, batch: Any) -> None:
    """Compile for the shape of this batch."""
    limit = torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT)
    try:
        with limit, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(compiled, batch)
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = " Install g++, or name a compiler in the environment variable CXX." if "C++ compiler" in reason else ""
        raise ModelError(f"torch.compile failed: {reason}{hint}") from error


COMPILE = Engine(
    name="compile", help="PyTorch with torch.compile, which needs a C++ compiler", make=_make, times_layers=False
)  # compiling a layer takes seconds
