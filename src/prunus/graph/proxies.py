"""Stand-ins for values while a model is recorded. Each knows its value on the example.

A stand-in for a tensor is a tensor itself, so that `isinstance` and C++ code see what they expect. It reports every
operation to the recorder instead of carrying it out.

An integer attribute of a module, such as `num_heads`, is a `Number` meanwhile: an int that knows its origin. So a call
like `x.reshape(B, N, 3, self.num_heads, self.head_dim)` says which attribute must change with the number of heads.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from prunus.errors import TraceError
from prunus.graph.traced import Example, as_call, named_modules, with_part

if TYPE_CHECKING:
    from prunus.graph.record import ValueTracer


# Facts of a tensor that do not depend on the number of channels.
_FACTS = "device dtype ndim layout is_cuda is_cpu is_mps is_meta requires_grad is_leaf is_quantized is_sparse is_nested"
_INDEPENDENT = frozenset((*_FACTS.split(), "_is_param", "names", "grad_fn", "grad", "_version"))
_SPECIAL = (torch._C.ScriptMethod, torch._ops.HigherOrderOperator)  # torch.fx treats these in ways of its own


class KnownProxy(fx.Proxy):
    """A proxy that knows its value on the example. The proxy owns the value, so memory is freed as in a forward."""

    tracer: ValueTracer
    value: Any = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """So that `isinstance(size, int)` in the model's code is answered as for the value itself."""
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        known = getattr(self.value, name)
        if name in _INDEPENDENT:
            return known
        return Attribute(self, name) if callable(known) else self._make(getattr, (self, name))

    def _make(self, function: Any, args: tuple[Any, ...]) -> Any:
        return self.tracer.create_proxy("call_function", function, args, {})

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """As torch.fx does it, without searching all arguments for a tracer if the first one has it."""
        if not args or type(args[0]) not in PROXIES or isinstance(orig_method, _SPECIAL):
            return super().__torch_function__(orig_method, types, args, kwargs)
        tracer, name = args[0].tracer, orig_method.__name__
        if name == "__get__":  # a property
            return args[0].property_value(orig_method.__self__.__name__)
        if torch.overrides.is_tensor_method_or_property(orig_method):
            return tracer.create_proxy("call_method", name, args, kwargs or {})
        return tracer.create_proxy("call_function", orig_method, args, kwargs or {}, name=name)

    def __len__(self) -> int:
        return int(self.tracer.look(self._make(len, (self,))))  # the length, but not the sizes in a shape

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])  # type: ignore[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        """From here on, this proxy stands for the tensor with the new part."""
        self.node = self._make(with_part, (self, index, value)).node

    def __str__(self) -> str:
        """A text as a key: equal for equal values, and never the key of a real one, under which it would be found."""
        return f"{self.value} while {id(self.tracer)} records"

    def __format__(self, spec: str) -> str:
        return str(self)

    def __hash__(self) -> int:
        """A size or a shape as a key, likewise. That two keys are equal is recorded, as any comparison is. A flag is
        looked at."""
        if type(self.value) is bool:
            return hash(self.tracer.look(self))
        is_size = type(self.value) in (int, torch.Size)
        return hash((self.value, id(self.tracer))) if is_size else object.__hash__(self)

    def __int__(self) -> int:
        return int(self.tracer.look(self))

    def __index__(self) -> int:
        return int(self.tracer.look(self))

    def __float__(self) -> float:
        return float(self.tracer.look(self))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self.tracer.look(self), *args)


class TensorProxy(KnownProxy, Tensor):  # type: ignore[misc]
    """A proxy for a tensor, which is a tensor."""

    __class__ = property(type)
    __hash__ = object.__hash__
    __format__ = object.__format__  # type: ignore[assignment]

    def property_value(self, name: str) -> Any:
        """A property such as `shape`: recorded, if it could depend on the number of channels."""
        return getattr(self.value, name) if name in _INDEPENDENT else self._make(getattr, (self, name))

    def __len__(self) -> int:
        return int(self.shape[0])  # a size like any other


PROXIES = frozenset((KnownProxy, TensorProxy))


def proxy_of(node: fx.Node, tracer: ValueTracer, value: Any) -> KnownProxy:
    """The stand-in for a value."""
    if isinstance(value, Tensor):
        proxy: Any = Tensor._make_subclass(TensorProxy, value.detach())
        proxy.node, proxy.tracer = node, tracer
    else:
        proxy = KnownProxy(node, tracer)
    proxy.value = value
    return proxy  # type: ignore[no-any-return]


def value_of(value: Any) -> Any:
    """The value of a proxy on the example; anything else is returned as it is."""
    if type(value) in PROXIES:
        return value.value
    if isinstance(value, Attribute):
        return getattr(value_of(value.root), value.attr)
    if isinstance(value, slice):
        return slice(value_of(value.start), value_of(value.stop), value_of(value.step))
    return value


def values_in(value: Any) -> Any:
    """The same nesting with values for proxies. Not by tree_map, because this is called for every node."""
    kind = type(value)
    if kind in PROXIES:
        return value.value
    if kind is tuple or kind is list:
        return kind([values_in(part) for part in value])
    if kind is dict:
        return {key: values_in(part) for key, part in value.items()}
    if isinstance(value, tuple | list | dict):
        return tree_map(value_of, value)
    return value_of(value)


# -- numbers that modules keep as attributes, and what code computes from them

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


class Scale(float):
    """The scale of a product of queries and keys, where the code leaves it to PyTorch. A pruned module may keep another
    one, as an attribute."""

    origin: tuple[str, str]  # module and attribute


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


def number_on(model: nn.Module, number: Number | Scale) -> float:
    """A number as the attributes of another model, such as a pruned copy, give it."""
    if isinstance(number, Scale):
        return float(getattr(model.get_submodule(number.origin[0]), number.origin[1], number))
    return _integer_on(model, number)


def _integer_on(model: nn.Module, number: Number) -> int:
    if number.formula is not None:
        function, operands = number.formula
        return function(*(_integer_on(model, each) if isinstance(each, Number) else each for each in operands))
    if number.origin is None:
        return int(number)
    name, attribute, place = number.origin
    value: Any = getattr(model.get_submodule(name), attribute, None)
    if value is None:  # a width of its own, which only a pruned attention has
        return int(number)
    return int(value[place]) if place >= 0 else int(value)


def attribute_name(origin: Origin) -> str:
    """An attribute in words."""
    return ".".join(origin[:2]).lstrip(".") + (f"[{origin[2]}]" if origin[2] >= 0 else "")


@contextmanager
def numbers_known(model: nn.Module, is_layer: Callable[[nn.Module], bool]) -> Iterator[None]:
    """Inside the block, integer attributes of modules are Numbers. Layers, and modules of PyTorch, keep theirs."""
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, module in named_modules(model):
            if type(module).__module__.startswith("torch.nn.") or is_layer(module):
                continue
            attributes = vars(module)
            for key in [key for key, value in attributes.items() if _counts(value)]:
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


# -- the arguments of a model's forward, as an example gives them


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
