"""Numbers that modules keep as attributes, such as `num_heads`, and what code computes from them.

While a network is recorded, an integer attribute of a module is a `Number`: an int that knows its origin. So a call
like `x.reshape(B, N, 3, self.num_heads, self.head_dim)` says which attribute must change with the number of heads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from prunus.graph.traced import named_modules

Origin = tuple[str, str, int]  # module, attribute, and the place in it if it is a tuple (else -1)


class Number(int):
    """An int that knows the attribute it was read from, or how it was computed from such attributes."""

    origin: Origin | None = None
    formula: tuple[Callable[..., int], tuple[int, ...]] | None = None

    def under(self, values: Mapping[Origin, int]) -> int:
        """The same number with these values of attributes."""
        if self.formula is not None:
            function, operands = self.formula
            return function(*(each.under(values) if isinstance(each, Number) else each for each in operands))
        return int(self) if self.origin is None else values.get(self.origin, int(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        return int(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def _computed(function: Callable[..., int], *operands: Any) -> Any:
    if not all(type(each) in (int, Number) for each in operands):
        return NotImplemented  # a recorded size, which records the operation, or a float
    number = Number(function(*map(int, operands)))
    number.formula = function, operands
    return number


def _add_arithmetic() -> None:
    for name in ("add", "sub", "mul", "floordiv"):
        function = getattr(operator, name)
        setattr(Number, f"__{name}__", lambda a, b, f=function: _computed(f, a, b))
        setattr(Number, f"__r{name}__", lambda a, b, f=function: _computed(f, b, a))


_add_arithmetic()


def _counts(value: Any) -> bool:
    """Whether an attribute may count channels or heads: a number above 1, or a tuple of numbers."""
    if type(value) is tuple:
        return bool(value) and all(type(part) is int for part in value)
    return type(value) is int and value > 1


def _read(value: int, origin: Origin) -> Number:
    number = Number(value)
    number.origin = origin
    return number


def set_number(model: nn.Module, origin: Origin, value: int) -> None:
    """Give an attribute of a module, or a part of it, another value."""
    name, attribute, place = origin
    module = model.get_submodule(name)
    if place >= 0:
        old = getattr(module, attribute)
        setattr(module, attribute, (*old[:place], value, *old[place + 1 :]))
    else:
        setattr(module, attribute, value)


def name_of(origin: Origin) -> str:
    """An attribute in words."""
    return ".".join(origin[:2]).lstrip(".") + (f"[{origin[2]}]" if origin[2] >= 0 else "")


@contextmanager
def numbers_known(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Inside the block, integer attributes of modules are Numbers. Layers, and modules of PyTorch, keep theirs."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, module in named_modules(model):
            attributes = vars(module)
            for key in [key for key, value in attributes.items() if _counts(value)]:
                if type(module).__module__.startswith("torch.nn.") or is_layer(module):
                    break
                value = attributes[key]
                changed.append((attributes, key, value))
                if type(value) is int:
                    attributes[key] = _read(value, (name, key, -1))
                else:
                    attributes[key] = tuple(_read(part, (name, key, i)) for i, part in enumerate(value))
        yield
    finally:
        for attributes, key, value in changed:
            attributes[key] = value
