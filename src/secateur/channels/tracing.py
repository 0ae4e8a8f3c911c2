"""From a model and an example input to a graph of calls: torch.fx, with layers as leaves, in one forward.

The trace carries values along: each call is recorded and at once computed on the example. So the shape of every value
is known without a second forward, and code that branches on sizes, types or devices can be followed. What such a branch
saw is noted as a guard: a plan under which it would see something else is refused. Branches on the *values* of tensors
cannot be followed.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_flatten, tree_map

from secateur.errors import TraceError

Example = Any  # a tensor, a tuple of positional arguments or a dict of keyword arguments
Shapes = Any  # the same nesting as a node's value, each tensor replaced by its torch.Size

_PLAIN = ("device", "dtype", "ndim", "layout", "is_cuda", "requires_grad", "is_quantized", "is_sparse")
_call_module = nn.Module.__call__  # as it is while no trace has patched it


@dataclass(frozen=True)
class Traced:
    """A model's calls in execution order, and the shape of what each of them returns."""

    model: nn.Module
    graph: fx.Graph
    shapes: Mapping[str, Shapes]  # node name -> shape(s) of its value
    constants: Mapping[str, Any]  # placeholders that the example leaves at their default
    identities: frozenset[str]  # nodes that returned their first argument itself, unchanged
    guards: frozenset[str]  # nodes whose plain value the model's code has looked at
    calls: Mapping[str, int]  # module name -> how often it is called
    modules: Mapping[str, nn.Module]  # module name -> module, for all that are called
    attributes: Mapping[str, Any]  # name -> parameter, buffer or constant that the code uses by itself

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a call_module node calls."""
        return self.modules[str(node.target)]


def as_call(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


class _Known(fx.Proxy):
    """A proxy that knows its value on the example. It is kept on the proxy, so that memory is freed as in a forward."""

    value: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in _PLAIN:  # does not depend on how many channels there are
            return getattr(_value_of(self), name)
        return super().__getattr__(name)

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
        tracer: _ValueTracer = self.tracer  # type: ignore[assignment]
        return tracer.look(self)


class _ValueTracer(fx.Tracer):
    """Stops at layers that have a rule; everything else is followed into its forward, on the example's values."""

    def __init__(self, is_leaf: Callable[[nn.Module], bool], inputs: Mapping[str, Any], follow_buffers: bool) -> None:
        super().__init__()
        self.proxy_buffer_attributes = follow_buffers
        self._is_leaf = is_leaf
        self._inputs = inputs
        self._computing = False
        self.shapes: dict[str, Shapes] = {}
        self.identities: set[str] = set()
        self.guards: set[str] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Known(node, self)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Proxy:
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        first = _value_of(args[0]) if kind.startswith("call") and args else None
        written = first._version if isinstance(first, Tensor) else None
        value = self._compute(kind, target, args, kwargs)
        proxy.value = value  # type: ignore[attr-defined]
        name = proxy.node.name
        self.shapes[name] = _shapes_of(value)
        if isinstance(first, Tensor) and value is first and first._version == written:
            self.identities.add(name)
        return proxy

    def _compute(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        if kind == "placeholder":
            return self._input(str(target))
        if kind == "output":
            return None
        known_args, known_kwargs = _values_in(args), _values_in(kwargs)
        self._computing = True
        try:
            if kind == "get_attr":
                return _attribute(self.root, str(target))
            if kind == "call_module":
                return _call_module(self.root.get_submodule(str(target)), *known_args, **known_kwargs)
            if kind == "call_method":
                return getattr(known_args[0], str(target))(*known_args[1:], **known_kwargs)
            return target(*known_args, **known_kwargs)
        finally:
            self._computing = False

    def _input(self, name: str) -> Any:
        if name in self._inputs:
            return self._inputs[name]
        return self._inputs.get(name.rpartition("_")[0])  # fx numbers what it specialises: `flag_1`

    # While a value is computed, fx's patches of modules must let everything through.

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return forward(*args, **kwargs) if self._computing else super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._computing else super().getattr(attr, attr_val, parameter_proxy_cache)

    # Where the model's code needs a plain value.

    def look(self, proxy: Any) -> Any:
        """The plain value behind a proxy, noted as seen; values of tensors are not for looking at."""
        value = _value_of(proxy)
        if isinstance(value, Tensor):
            raise fx.proxy.TraceError("the code depends on the values of a tensor")
        self.guards.add(proxy.node.name)
        return value

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.look(obj))

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        return iter([obj[i] for i in range(len(self.look(obj)))])  # type: ignore[index]


def _shapes_of(value: Any) -> Shapes:
    if isinstance(value, Tensor):
        return value.shape
    return tree_map(lambda v: v.shape if isinstance(v, Tensor) else None, value)


def _values_in(value: Any) -> Any:
    """The same nesting with values for proxies; by hand, because this is where a trace spends its time."""
    if type(value) is tuple or type(value) is list:
        return type(value)(_values_in(part) for part in value)
    if type(value) is dict:
        return {key: _values_in(part) for key, part in value.items()}
    if isinstance(value, tuple | list | dict):
        return tree_map(_value_of, value)
    return _value_of(value)


def _value_of(value: Any) -> Any:
    if isinstance(value, _Known):
        return value.value
    if isinstance(value, Attribute):
        return getattr(_value_of(value.root), value.attr)
    if isinstance(value, slice):
        return slice(_value_of(value.start), _value_of(value.stop), _value_of(value.step))
    return value


def _attribute(root: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(root.get_submodule(owner), attribute)


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Put back each module's mode and the random state, whatever happens inside."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _no_new_attributes(model: nn.Module) -> Iterator[None]:
    """Take away what torch.fx leaves on a model: constants that it met in forward."""
    before, buffers = set(model.__dict__), set(model._buffers)
    try:
        yield
    finally:
        for name in set(model.__dict__) - before:
            del model.__dict__[name]
        for name in set(model._buffers) - buffers:
            del model._buffers[name]


def trace_calls(
    model: nn.Module, example: Example, is_leaf: Callable[[nn.Module], bool], *, training: bool = False
) -> Traced:
    """Trace `model` in eval mode; or, with `training`, as its own code runs in training, as far as that can be followed
    (leaves stay in eval mode).

    Nothing of the model changes: modes, random state, requires_grad and hooks are as they were.
    """
    _refuse_lazy(model)
    args, kwargs = as_call(example)
    with left_as_found(model):
        model.eval()
        for module in model.modules():
            if training and not is_leaf(module):
                module.training = True
        given = _bind(model, args, kwargs)
        constants = _constants(model, given)
        with _no_new_attributes(model):
            tracer = _ValueTracer(is_leaf, _copied({**given, **constants}), False)
            try:
                graph = tracer.trace(model, concrete_args=constants or None)
            except Exception as error:  # noqa: BLE001  whatever the model's own code raises
                if training:
                    graph = tracer.graph
                else:
                    tracer, graph = _with_buffers(model, is_leaf, given, constants, args or kwargs, error)
            names = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
            attributes = {name: _attribute(model, name) for name in names}
        for node in graph.nodes:  # tensors that stand among the arguments of a call are not calls of their own
            if node.op == "get_attr":
                tracer.shapes.setdefault(node.name, _shapes_of(attributes[str(node.target)]))
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    guards, identities = frozenset(tracer.guards), frozenset(tracer.identities)
    modules = {name: model.get_submodule(name) for name in calls}
    return Traced(model, graph, tracer.shapes, constants, identities, guards, calls, modules, attributes)


def _with_buffers(
    model: nn.Module,
    is_leaf: Callable[[nn.Module], bool],
    given: Mapping[str, Any],
    constants: dict[str, Any],
    example: Any,
    error: Exception,
) -> tuple[_ValueTracer, fx.Graph]:
    """Once more, with what is computed from buffers followed too: `self.filter.expand(x.size(1), 1, 3, 3)` is a call of
    a plain tensor's method with a size that is traced. Not at once, because code may well look at a buffer's values."""
    tracer = _ValueTracer(is_leaf, _copied({**given, **constants}), True)
    try:
        return tracer, tracer.trace(model, concrete_args=constants or None)
    except Exception:  # noqa: BLE001  the first error is the one that a user can do something about
        raise TraceError(_explain(model, error, example)) from error


def _copied(inputs: Mapping[str, Any]) -> Any:
    return tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, dict(inputs))


def _refuse_lazy(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise TraceError(
                f"{name} is not initialised yet: the model has lazy modules, whose widths are unknown. "
                "Run the model once on a real batch before tracing it."
            )


def _bind(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The example's values by the names of forward's arguments."""
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
        if starred or (_has_tensor(value) and not isinstance(value, Tensor)):
            raise TraceError(
                f"{type(model).__name__}.forward takes several tensors in {name!r}, which torch.fx cannot follow. "
                "Give forward an argument for each tensor, or trace a small module that calls it so."
            )
    return dict(given)


def _constants(model: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of forward that are no tensors: what the example gives, else their defaults, as Python would do."""
    simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(model.forward).parameters
    left = {name: p.default for name, p in parameters.items() if name not in given and p.kind in simple}
    return left | {name: value for name, value in given.items() if not isinstance(value, Tensor)}


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_flatten(value)[0])


def _explain(model: nn.Module, error: BaseException, example: Any) -> str:
    """Name the user's line at which the trace gave up, and what to do about it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _machinery(f.filename)]
    if frames:
        last = frames[-1]
        text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
        where = f"{last.filename}:{last.lineno} in {last.name}: `{text}`"
    else:
        where = f"the forward of {type(model).__name__}"
    said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    if isinstance(error, fx.proxy.TraceError):
        return (
            f"torch.fx cannot follow {where} ({said}). The path through the network must not depend on the values of "
            "tensors. Rewrite that line, or move it into a module of its own and give that class a rule with "
            "secateur.register_rule(Class, secateur.rules.unknown): its channels then stay."
        )
    shapes = tree_map(lambda v: tuple(v.shape) if isinstance(v, Tensor) else v, example)
    return (
        f"{type(model).__name__} does not run on the example of shape {shapes}: {type(error).__name__}: {said} "
        f"(at {where}). Pass an example that the model accepts, on the model's device; if the model itself runs on "
        "it, torch.fx cannot follow that line: move it into a module of its own and give that class a rule with "
        "secateur.register_rule(Class, secateur.rules.unknown)."
    )


def _machinery(filename: str) -> bool:
    path = filename.replace("\\", "/")
    return "/torch/" in path or path == __file__.replace("\\", "/")
