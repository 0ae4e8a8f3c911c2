"""A torch.fx tracer that computes each call on the example while recording it.

So the shape of every value is known without a second forward pass, and code that branches on sizes, types or devices
can be followed. The values that such a branch looked at are recorded as guards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from secateur.channels.layer_kinds import FUNCTIONS
from secateur.channels.recording.arguments import Arguments
from secateur.channels.recording.patches import sizes_are_recorded
from secateur.channels.recording.proxies import PROXIES, TensorProxy, proxy_of, value_of, values_in
from secateur.channels.traced import Shapes, attribute_of

_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)  # around a part of the network
_call_module = nn.Module.__call__  # before torch.fx patches it


class ValueTracer(fx.Tracer):
    """Records layers that have a rule as single calls, and follows everything else into its forward."""

    def __init__(self, is_leaf: Callable[[nn.Module], bool], arguments: Arguments, follow_buffers: bool) -> None:
        super().__init__()
        self.proxy_buffer_attributes = follow_buffers
        self._is_leaf = is_leaf
        self._arguments = arguments
        self._computing = False
        self.called: dict[str, nn.Module] = {}
        self.functional: dict[str, str] = {}
        self._followed: list[tuple[str, fx.Node]] = []  # modules with a weight that are being followed, and their input
        self.shapes: dict[str, Shapes] = {}
        self.identities: set[str] = set()
        self.guards: set[str] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self._is_leaf(m) or isinstance(m, torch.jit.ScriptModule):
            return True
        return super().is_leaf_module(m, module_qualified_name) and not isinstance(m, _WRAPPERS)

    # ------------------------------------------------------------------------------------------------ recording

    def create_arg(self, a: Any) -> Any:
        """As torch.fx does it; the usual cases first, because this is where a trace spends much of its time."""
        kind = type(a)
        if kind in PROXIES:
            return a.node
        if kind in _PLAIN:
            return a
        if kind is tuple:
            return tuple([self.create_arg(part) for part in a])
        if kind is dict and not a:
            return {}
        made = isinstance(a, Tensor) and a not in self.tensor_attrs  # by forward, which may write into it later
        arg = super().create_arg(a)
        if made and isinstance(arg, fx.Node):
            setattr(self.root, str(arg.target), a.clone())
        return arg

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Node:
        """Without torch.fx's record of the scope of each call and its search for symbolic sizes: both take time, and
        are of no use here."""
        node = self.graph.create_node(kind, target, (), {}, *rest, **options)
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, *rest: Any, **options: Any
    ) -> Any:
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name)
        if self._followed and kind == "call_function" and target in FUNCTIONS:
            self._note_layer(node)
        first = value_of(args[0]) if args and kind.startswith("call") else None
        written = first._version if isinstance(first, Tensor) else None
        value = self._compute(kind, target, args, kwargs)
        self.shapes[node.name] = shapes_of(value)
        if written is not None and value is first and first._version == written:
            self.identities.add(node.name)
        return proxy_of(node, self, value)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """One placeholder for each tensor of the example, wherever it is among the arguments of forward."""
        proxies = []
        for name, tensor in zip(self._arguments.names, self._arguments.tensors, strict=True):
            node = self.graph.create_node("placeholder", name, (), {})
            self.shapes[node.name] = tensor.shape
            proxies.append(proxy_of(node, self, tensor.detach().clone()))  # a copy, because forward may write into it
        args, kwargs = self._arguments.with_tensors(proxies)

        def forward() -> Any:
            with sizes_are_recorded(lambda value: type(value) in PROXIES, self.create_proxy):
                return self.root._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # with its own hooks

        return forward, []

    # ------------------------------------------------------------------------------------------------ computing

    def _compute(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        known_args, known_kwargs = values_in(args), values_in(kwargs)
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
        name = (self.submodule_paths or {}).get(m)
        if not self.is_leaf_module(m, ""):
            own = name is not None and m._parameters.get("weight") is not None
            return self._follow(m, str(name), forward, args, kwargs) if own else forward(*args, **kwargs)
        computed = any(
            isinstance(parameter, TensorProxy) for parameter in m._parameters.values()
        )  # torch.func.functional_call
        if name is None or computed:  # a module made in forward is no part of the model
            return forward(*args, **kwargs)
        self.called[name] = m
        return self.create_proxy("call_module", name, args, kwargs)

    def _follow(self, m: nn.Module, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Follow a module with a weight of its own. It is a layer if it calls a function on this weight and its input,
        and uses its input for nothing else."""
        if not args or type(args[0]) not in PROXIES:
            return forward(*args, **kwargs)
        node = args[0].node
        before = len(node.users)
        self._followed.append((name, node))
        try:
            return forward(*args, **kwargs)
        finally:
            self._followed.pop()
            users = list(node.users)[before:]
            if len(users) == 1 and users[0].name in self.functional:
                self.called[name] = m
            else:
                for user in users:
                    self.functional.pop(user.name, None)

    def _note_layer(self, node: fx.Node) -> None:
        """Note a function that is called on the weight of the module that is being followed, and on its input."""
        name, entered = self._followed[-1]
        weight = node.args[1] if len(node.args) > 1 else node.kwargs.get("weight")
        own = isinstance(weight, fx.Node) and weight.op == "get_attr" and weight.target == f"{name}.weight"
        if own and node.args and node.args[0] is entered:
            self.functional[node.name] = name

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


def shapes_of(value: Any) -> Shapes:
    """The same nesting with shapes for tensors, and None for anything else."""
    if isinstance(value, Tensor):
        return value.shape
    return tree_map(lambda v: v.shape if isinstance(v, Tensor) else None, value)
