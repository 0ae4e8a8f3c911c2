"""A torch.fx tracer that computes each call on the example while recording it.

So the shape of every value is known without a second forward pass, and code that branches on sizes, types or devices
can be followed. The values that such a branch looked at are recorded as guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute
from torch.utils._pytree import tree_map

from secateur.channels.recording.arguments import Slot
from secateur.channels.traced import Shapes, attribute_of

# Facts of a tensor that do not depend on the number of channels.
_INDEPENDENT = ("device", "dtype", "ndim", "layout", "is_cuda", "requires_grad", "is_quantized", "is_sparse")
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
_SPECIAL = (torch._C.ScriptMethod, torch._ops.HigherOrderOperator)  # torch.fx treats these in ways of their own
_call_module = nn.Module.__call__  # before torch.fx patches it


class KnownProxy(fx.Proxy):
    """A proxy that knows its value on the example. The proxy owns the value, so memory is freed as in a forward."""

    value: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in _INDEPENDENT:
            return getattr(value_of(self), name)
        return super().__getattr__(name)

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> fx.Proxy:
        """As torch.fx does it, without searching all arguments for a tracer if the first one has it."""
        if not args or type(args[0]) is not cls or isinstance(orig_method, _SPECIAL):
            return super().__torch_function__(orig_method, types, args, kwargs)
        tracer, name = args[0].tracer, orig_method.__name__
        if torch.overrides.is_tensor_method_or_property(orig_method):
            return tracer.create_proxy("call_method", name, args, kwargs or {})
        return tracer.create_proxy("call_function", orig_method, args, kwargs or {}, name=name)

    def __len__(self) -> int:
        if isinstance(self.value, Tensor):  # a size like any other
            return int(self.shape[0])
        return len(self._look())

    def __int__(self) -> int:
        return int(self._look())

    def __index__(self) -> int:
        return int(self._look())

    def __float__(self) -> float:
        return float(self._look())

    def _look(self) -> Any:
        tracer: ValueTracer = self.tracer  # type: ignore[assignment]
        return tracer.look(self)


class ValueTracer(fx.Tracer):
    """Records layers that have a rule as single calls, and follows everything else into its forward."""

    def __init__(self, is_leaf: Callable[[nn.Module], bool], slots: Iterable[Slot], follow_buffers: bool) -> None:
        super().__init__()
        self.proxy_buffer_attributes = follow_buffers
        self._is_leaf = is_leaf
        self._slots = iter(slots)
        self._computing = False
        self.called: dict[str, nn.Module] = {}
        self.shapes: dict[str, Shapes] = {}
        self.inputs: dict[str, str] = {}
        self.constants: dict[str, Any] = {}
        self.identities: set[str] = set()
        self.guards: set[str] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m) or super().is_leaf_module(m, module_qualified_name)

    # ------------------------------------------------------------------------------------------------ recording

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return KnownProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        """As torch.fx does it; the usual cases first, because this is where a trace spends much of its time."""
        kind = type(a)
        if kind is KnownProxy:
            return a.node
        if kind in _PLAIN:
            return a
        if kind is tuple:
            return tuple([self.create_arg(part) for part in a])
        if kind is dict and not a:
            return {}
        return super().create_arg(a)

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Node:
        """Without torch.fx's record of the scope of each call and its search for symbolic sizes: both take time, and
        are of no use here."""
        node = self.graph.create_node(kind, target, (), {}, *rest, **options)
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        node = proxy.node
        first = value_of(args[0]) if kind.startswith("call") and args else None
        written = first._version if isinstance(first, Tensor) else None
        value = self._input(node) if kind == "placeholder" else self._compute(kind, target, args, kwargs)
        proxy.value = value  # type: ignore[attr-defined]
        self.shapes[node.name] = shapes_of(value)
        if written is not None and value is first and first._version == written:
            self.identities.add(node.name)
        return proxy

    def _input(self, node: fx.Node) -> Any:
        slot = next(self._slots)
        if slot.constant:
            self.constants[node.name] = slot.value
        else:
            self.inputs[node.name] = slot.argument
        return slot.value

    # ------------------------------------------------------------------------------------------------ computing

    def _compute(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        known_args, known_kwargs = _values_in(args), _values_in(kwargs)
        self._computing = True
        try:
            if kind == "get_attr":
                return attribute_of(self.root, str(target))
            if kind == "call_module":
                return _call_module(self.called[target], *known_args, **known_kwargs)
            if kind == "call_method":
                return getattr(known_args[0], str(target))(*known_args[1:], **known_kwargs)
            return target(*known_args, **known_kwargs)
        finally:
            self._computing = False

    # While a value is computed, torch.fx's patches of modules must let everything through.

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._computing:
            return forward(*args, **kwargs)
        name = self.path_of_module(m)
        if not self.is_leaf_module(m, name):
            return forward(*args, **kwargs)
        self.called[name] = m
        return self.create_proxy("call_module", name, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._computing or not isinstance(attr_val, Tensor):
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    # ------------------------------------------------------------------- where the model's code needs a plain value

    def look(self, proxy: Any) -> Any:
        """The plain value of a proxy, recorded as a guard. The values of tensors cannot be looked at."""
        value = value_of(proxy)
        if isinstance(value, Tensor):
            raise fx.proxy.TraceError("the code depends on the values of a tensor")
        self.guards.add(proxy.node.name)
        return value

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.look(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[i] for i in range(len(self.look(obj)))])  # type: ignore[index]


def shapes_of(value: Any) -> Shapes:
    """The same nesting with shapes for tensors, and None for anything else."""
    if isinstance(value, Tensor):
        return value.shape
    return tree_map(lambda v: v.shape if isinstance(v, Tensor) else None, value)


def value_of(value: Any) -> Any:
    """The value of a proxy on the example; anything else is returned as it is."""
    if isinstance(value, KnownProxy):
        return value.value
    if isinstance(value, Attribute):
        return getattr(value_of(value.root), value.attr)
    if isinstance(value, slice):
        return slice(value_of(value.start), value_of(value.stop), value_of(value.step))
    return value


def _values_in(value: Any) -> Any:
    """The same nesting with values for proxies. Not by tree_map, because this is called for every node."""
    kind = type(value)
    if kind is KnownProxy:
        return value.value
    if kind is tuple or kind is list:
        return kind([_values_in(part) for part in value])
    if kind is dict:
        return {key: _values_in(part) for key, part in value.items()}
    if isinstance(value, tuple | list | dict):
        return tree_map(value_of, value)
    return value_of(value)
