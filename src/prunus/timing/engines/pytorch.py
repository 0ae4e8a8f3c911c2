"""PyTorch as it is, and with torch.compile."""

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


def _compiled(model: nn.Module, example: Any, threads: int) -> PreparedModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own modules
        compiled: Any = torch.compile(model, dynamic=False)  # code for any batch size would be slower

    def compile_for(batch: Any) -> None:
        try:
            with torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(compiled, batch)
        except Exception as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            no_compiler = "C++ compiler" in reason
            hint = " Install g++, or name a compiler in the environment variable CXX." if no_compiler else ""
            raise ModelError(f"torch.compile failed: {reason}{hint}") from error

    return PreparedModel(partial(call, compiled), device_of(model), compile_for)


EAGER = Engine(
    name="eager",
    help="PyTorch as it is",
    make=lambda model, example, threads: PreparedModel(partial(call, model), device_of(model)),
)
COMPILE = Engine(
    name="compile",
    help="PyTorch with torch.compile, which needs a C++ compiler",
    make=_compiled,
    layers_in="eager",  # compiling a layer takes seconds
)
