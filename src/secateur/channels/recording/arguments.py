"""The arguments of a model's forward, as an example gives them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from secateur.channels.traced import Example, as_call
from secateur.errors import TraceError


@dataclass(frozen=True)
class Slot:
    """One placeholder of the graph to be recorded: the argument it belongs to, and its value in the example."""

    argument: str
    value: Any
    constant: bool  # not a tensor: its value is recorded as part of the graph


@dataclass(frozen=True)
class Arguments:
    """The arguments of forward by name. Tensors are inputs of the graph, anything else is constant."""

    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Any]
    slots: tuple[Slot, ...]  # in the order in which torch.fx creates placeholders


def read_arguments(model: nn.Module, example: Example) -> Arguments:
    """Bind the example to the arguments of forward. Arguments that are not given have their default, as in Python."""
    given = _bind(model, example)
    parameters = inspect.signature(model.forward).parameters
    simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    constants: dict[str, Any] = {}
    slots: list[Slot] = []
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        if name in given and isinstance(value, Tensor):
            slots.append(Slot(name, value.detach().clone(), False))  # a copy, because forward may write into it
        elif name in given or parameter.kind in simple:
            constants[name] = value
            slots += [Slot(name, leaf, True) for leaf in tree_leaves(value)]  # torch.fx: one placeholder for each leaf
    return Arguments({n: v for n, v in given.items() if n not in constants}, constants, tuple(slots))


def _bind(model: nn.Module, example: Example) -> dict[str, Any]:
    """The example's values by the names of forward's arguments."""
    args, kwargs = as_call(example)
    signature = inspect.signature(model.forward)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TraceError(
            f"the example does not fit {type(model).__name__}.forward{signature}: {error}. "
            "Pass a tensor, a tuple of positional arguments or a dict of keyword arguments."
        ) from error
    for name, value in given.items():
        starred = signature.parameters[name].kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if starred or (not isinstance(value, Tensor) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))):
            raise TraceError(
                f"{type(model).__name__}.forward takes several tensors in {name!r}, which torch.fx cannot follow. "
                "Give forward one argument per tensor, or trace a small module that calls the model this way."
            )
    return dict(given)
