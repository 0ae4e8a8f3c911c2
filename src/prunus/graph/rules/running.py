"""Run an operation itself on plain values or labels, and rules for operations that need nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from prunus.graph.labels import Call, constant, tensors_in


def execute(call: Call) -> Any:
    """The result of the operation on the call's arguments."""
    node = call.node
    if node.op == "call_method":
        return getattr(call.args[0], str(node.target))(*call.args[1:], **call.kwargs)
    if node.op == "call_module":
        return call.module.forward(*call.args, **call.kwargs)  # not __call__, because hooks expect activations
    if callable(node.target):
        return node.target(*call.args, **call.kwargs)
    raise TypeError(f"{call.what} cannot be computed on labels")


def compute(call: Call) -> Any:
    """Arithmetic on sizes and other plain values. A tensor that results is fixed."""
    result = execute(call)
    return constant(result.shape) if isinstance(result, Tensor) else result


def size_of(call: Call) -> Any:
    """Sizes, shapes and other plain facts of a tensor."""
    return execute(call)


def same(call: Call) -> Any:
    """The first argument in another type, layout or place."""
    return call.args[0]


def handed_on(call: Call) -> Any:
    """The first argument unchanged. What the operation does with the others is not known."""
    call.hold((call.args[1:], call.kwargs), f"{call.what} has no rule")
    return call.args[0]


def nothing(call: Call) -> Any:
    """Assertions and other operations without a result."""
    return None


def new(call: Call) -> Any:
    """A new tensor of given sizes and constant values. The first argument gives its type and place only."""
    result = execute(call)
    return constant(result.shape)


def unknown(call: Call) -> Any:
    """Nothing is known about this operation: its channels are kept. Without tensors it is simply computed."""
    if not tensors_in((call.args, call.kwargs)):
        return compute(call)
    return call.unknown()


size_of.takes_sizes = True  # type: ignore[attr-defined]  # see reshaping
