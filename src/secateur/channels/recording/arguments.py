"""The arguments of a model's forward, as an example gives them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from secateur.channels.traced import Example, as_call
from secateur.errors import TraceError


@dataclass(frozen=True)
class Arguments:
    """A call of forward. Its tensors are inputs of the graph, also those in lists and dicts; the rest is constant."""

    names: tuple[str, ...]  # of the tensors, after the argument that each belongs to
    tensors: tuple[Tensor, ...]
    leaves: tuple[Any, ...]
    structure: TreeSpec

    def with_tensors(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with these values for the tensors, in order."""
        left = iter(tensors)
        leaves = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs


def read_arguments(model: nn.Module, example: Example) -> Arguments:
    """Bind the example to the arguments of forward. Arguments that are not given have their default, as in Python."""
    args, kwargs = as_call(example)
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TraceError(
            f"the example does not fit {type(model).__name__}.forward{signature}: {error}. "
            "Pass a tensor, a tuple of positional arguments or a dict of keyword arguments."
        ) from error
    leaves, structure = tree_flatten((bound.args, bound.kwargs))
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    return Arguments(tuple(_names(bound)), tensors, tuple(leaves), structure)


def input_tensors(model: nn.Module, inputs: Example) -> dict[str, Tensor]:
    """The tensors among these inputs, by the targets of the placeholders of a recorded graph."""
    args, kwargs = as_call(inputs)
    bound = inspect.signature(model.forward).bind_partial(*args, **kwargs)
    tensors = [leaf for leaf in tree_leaves((bound.args, bound.kwargs)) if isinstance(leaf, Tensor)]
    return dict(zip(_names(bound), tensors, strict=True))


def _names(bound: inspect.BoundArguments) -> list[str]:
    names = []
    for name, value in bound.arguments.items():
        if isinstance(value, Tensor):
            names.append(name)
        else:
            count = sum(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
            names += [f"{name}[{i}]" for i in range(count)]
    return names
