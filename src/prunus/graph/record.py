"""Record a model on an example input: a graph of calls (torch.fx) with layers as single calls, from one forward pass.

Code that branches on sizes, types or devices is followed, and what it looked at is recorded as a guard: a plan under
which the code would see something else is refused. Code that branches on the *values* of tensors cannot be followed.
"""

from __future__ import annotations

import functools
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_map

from prunus.errors import TraceError
from prunus.graph.proxies import PROXIES, Arguments, TensorProxy, proxy_of, read_arguments, value_of, values_in
from prunus.graph.traced import FUNCTIONS, Example, Shapes, Traced, attribute_of, named_modules
from prunus.util.state import has_own_switch, module_state_kept, nothing_compiled

# Layers that people write themselves: a module that calls a convolution or linear function on a weight of its own.


def own_layers(graph: fx.Graph, noted: Mapping[str, str]) -> dict[str, str]:
    """The calls among those `noted` (node -> module) that can be cut like the calls of a layer: without groups, and
    with a weight and a bias that nothing else uses."""
    by_name = {node.name: node for node in graph.nodes} if noted else {}
    wrong = {module for name, module in noted.items() if not _is_plain(by_name[name], module)}
    for node in graph.nodes if noted else ():
        if node.op == "get_attr":
            module, _, tensor = str(node.target).rpartition(".")
            if tensor in ("weight", "bias") and any(noted.get(user.name) != module for user in node.users):
                wrong.add(module)
    return {name: module for name, module in noted.items() if module not in wrong}


def _is_plain(node: fx.Node, module: str) -> bool:
    """Whether a function has no groups, and no bias but the module's own."""
    bias = node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
    groups = node.args[6] if len(node.args) > 6 else node.kwargs.get("groups", 1)
    own = isinstance(bias, fx.Node) and bias.op == "get_attr" and bias.target == f"{module}.bias"
    return (bias is None or own) and type(groups) is int and groups == 1


# Error messages for models that cannot be recorded: the line of the user's code, and what to do about it.

_OWN_CODE = Path(__file__).parent.as_posix()


def explain(model: nn.Module, error: BaseException, example: Example) -> str:
    """Name the line at which recording failed, and say what to do about it."""
    where = _line_of(error) or f"the forward of {type(model).__name__}"
    said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    if isinstance(error, fx.proxy.TraceError):
        return (
            f"torch.fx cannot follow {where} ({said}). The path through the network must not depend on the values of "
            "tensors. Rewrite that line, or move it into a module of its own and give that class a rule with "
            "prunus.register_rule(Class, prunus.rules.unknown): its channels are then kept."
        )
    return (
        f"{type(model).__name__} does not run on the example of shape {_shapes(example)}: {type(error).__name__}: "
        f"{said} (at {where}). Pass an example that the model accepts, on the model's device. If the model itself runs "
        "on it, torch.fx cannot follow that line: move it into a module of its own and give that class a rule with "
        "prunus.register_rule(Class, prunus.rules.unknown)."
    )


def _line_of(error: BaseException) -> str | None:
    """The last line of the user's code in the traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_machinery(frame.filename)]
    if not frames:
        return None
    last = frames[-1]
    text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
    return f"{last.filename}:{last.lineno} in {last.name}: `{text}`"


def _is_machinery(filename: str) -> bool:
    path = filename.replace("\\", "/")
    return "/torch/" in path or path.startswith(_OWN_CODE)


def _shapes(example: Example) -> Any:
    example = example if isinstance(example, tuple | list | dict) else (example,)
    return tree_map(lambda v: tuple(v.shape) if hasattr(v, "shape") else v, example)


# Functions that PyTorch would refuse to call with a recorded size, patched while a model is recorded.

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


# A torch.fx tracer that computes each call on the example while recording it.

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


_LAZY = (UninitializedParameter, UninitializedBuffer)
IsLeaf = Callable[[nn.Module], bool]


def trace_calls(model: nn.Module, example: Example, is_leaf: IsLeaf) -> Traced:
    """Record `model` in eval mode. The model is not changed: modes, random state, requires_grad and hooks stay."""
    with left_as_found(model):
        return record_calls(model, example, is_leaf)


def record_calls(model: nn.Module, example: Example, is_leaf: IsLeaf, *, training: bool = False) -> Traced:
    """Record `model` in eval mode. With `training`, record its own code in training mode, with leaves in eval mode,
    up to the point where it cannot be followed.

    Changes the modes of modules: call it inside `left_as_found(model)`.
    """
    _prepare(model)
    if training:
        for module in model.modules():
            module.training = not is_leaf(module)
    arguments = read_arguments(model, example)
    with module_state_kept(model), nothing_compiled():  # torch.fx stores the constants of forward on the model
        tracer = _record(model, is_leaf, arguments, example, training)
        names = {str(node.target) for node in tracer.graph.nodes if node.op == "get_attr"}
        attributes = {name: attribute_of(model, name) for name in names}
    return _traced(model, tracer, attributes)


def _traced(model: nn.Module, tracer: ValueTracer, attributes: dict[str, Any]) -> Traced:
    calls: dict[str, int] = {}
    functional = own_layers(tracer.graph, tracer.functional)
    for node in tracer.graph.nodes:
        if node.op == "call_module" or node.name in functional:
            name = functional.get(node.name) or str(node.target)
            calls[name] = calls.get(name, 0) + 1
        elif node.op == "get_attr" and node.name not in tracer.shapes:  # a tensor among the arguments of a call
            tracer.shapes[node.name] = shapes_of(attributes[str(node.target)])
    return Traced(
        model=model,
        graph=tracer.graph,
        shapes=tracer.shapes,
        identities=frozenset(tracer.identities),
        guards=frozenset(tracer.guards),
        calls=calls,
        modules={name: tracer.called[name] for name in calls},
        attributes=attributes,
        literals=frozenset(name for name in attributes if not _has(model, name)),
        functional=functional,
    )


def _has(model: nn.Module, name: str) -> bool:
    try:
        attribute_of(model, name)
    except AttributeError:
        return False
    return True


def _record(model: nn.Module, is_leaf: IsLeaf, arguments: Arguments, example: Example, training: bool) -> ValueTracer:
    """Record the calls. If that fails, try again with everything that is computed from buffers recorded too.

    `self.filter.expand(x.size(1), 1, 3, 3)` needs the second way: it calls a method of a plain tensor with a recorded
    size. It is not the first way, because code may look at the values of a buffer.
    """
    tracer = ValueTracer(is_leaf, arguments, False)
    try:
        tracer.trace(model)
    except Exception as error:  # noqa: BLE001  whatever the model's own code raises
        if not training:
            tracer = ValueTracer(is_leaf, arguments, True)
            try:
                tracer.trace(model)
            except Exception:  # noqa: BLE001  the first error is the one that a user can do something about
                raise TraceError(explain(model, error, example)) from error
    return tracer


def _prepare(model: nn.Module) -> None:
    """Check that all widths are known, and put the model in eval mode unless all of it is."""
    training = False
    for prefix, module in named_modules(model):
        training |= module.training
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if isinstance(tensor, _LAZY):
                raise TraceError(
                    f"{prefix}{'.' if prefix else ''}{name} is not initialised yet: the model has lazy modules, whose "
                    "widths are unknown. Run the model once on a real batch before tracing it."
                )
    if training:
        model.eval()


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module and the random state afterwards, also after an error."""
    modes = [(module, module.training) for _, module in named_modules(model)]
    tensors = [tensor for module, _ in modes for tensor in module._parameters.values() if tensor is not None]
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    state = module_state_kept(model) if has_own_switch(model) else nullcontext()
    try:
        with state, torch.random.fork_rng(devices=devices), torch.no_grad():
            yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training
