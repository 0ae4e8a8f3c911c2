"""Functions that PyTorch would refuse to call with a recorded size, patched while a model is recorded.

`torch.zeros(x.shape[0], 4)` has no tensor among its arguments, and in `self.table.expand(x.shape[0], -1)` the tensor is
not a recorded one, so neither reaches the recorder by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_FACTORIES = "zeros ones empty full rand randn arange linspace eye tensor as_tensor scalar_tensor"
_METHODS = "expand view reshape repeat tile narrow unflatten chunk split roll new_zeros new_ones new_full new_empty"
FACTORIES, METHODS = _FACTORIES.split(), _METHODS.split()
Record = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]


@contextmanager
def sizes_are_recorded(is_recorded: Callable[[Any], bool], record: Record) -> Iterator[None]:
    """Inside the block, `record(kind, target, args, kwargs)` handles calls of factories, and of methods of plain
    tensors, that have a recorded value among their arguments."""

    def patched(kind: str, target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _any(is_recorded, args) or _any(is_recorded, kwargs.values()):
                return record(kind, target, args, kwargs)
            return function(*args, **kwargs)

        return call

    def scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_any(is_recorded, args) or _any(is_recorded, kwargs.values())):
            return call_scripted(function, *args, **kwargs)
        original = getattr(function, "_torchdynamo_inline", None)  # the Python function that was compiled
        return record("call_function", function, args, kwargs) if original is None else original(*args, **kwargs)

    factories = {name: getattr(torch, name) for name in FACTORIES}
    call_scripted = torch._C.ScriptFunction.__call__
    own = {name: Tensor.__dict__[name] for name in METHODS if name in Tensor.__dict__}
    try:
        torch._C.ScriptFunction.__call__ = scripted  # type: ignore[method-assign, assignment]
        for name, function in factories.items():
            setattr(torch, name, patched("call_function", function, function))
        for name in METHODS:
            setattr(Tensor, name, patched("call_method", name, getattr(Tensor, name)))
        yield
    finally:
        torch._C.ScriptFunction.__call__ = call_scripted  # type: ignore[method-assign]
        for name, function in factories.items():
            setattr(torch, name, function)
        for name in METHODS:
            if name in own:
                setattr(Tensor, name, own[name])
            else:
                delattr(Tensor, name)


def _any(test: Callable[[Any], bool], values: Any) -> bool:
    """Whether the test holds for a value, or for a part of a list or tuple among them."""
    return any(_any(test, value) if type(value) in (list, tuple, torch.Size) else test(value) for value in values)
