"""Record a model on an example input: a graph of calls (torch.fx) with layers as single calls, from one forward pass.

Code that branches on sizes, types or devices is followed, and what it looked at is recorded as a guard: a plan under
which the code would see something else is refused. Code that branches on the *values* of tensors cannot be followed.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import functools
import linecache
import operator
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_leaves, tree_map

from prunus.errors import TraceError
from prunus.graph.branches import Absent, without_absent
from prunus.graph.multihead import is_followed
from prunus.graph.own_widths import own_widths_known
from prunus.graph.proxies import (
    PROXIES,
    Arguments,
    Number,
    Scale,
    TensorProxy,
    numbers_known,
    proxy_of,
    read_arguments,
    value_of,
    values_in,
)
from prunus.graph.rules.rulebook import is_leaf
from prunus.graph.selection import selection_of, without_selection
from prunus.graph.traced import (
    FUNCTIONS,
    Example,
    Shapes,
    Traced,
    argument_of,
    attribute_of,
    autocast_state,
    may_write_weights,
    named_modules,
)
from prunus.util.state import (
    ModuleState,
    SharedState,
    module_state_kept,
    nothing_compiled,
    overrides_train,
    undisturbed,
)


def trace_calls(model: nn.Module, example: Example) -> Traced:
    """Record `model` in eval mode. The model is not changed: modes, random state, requires_grad and hooks stay."""
    with left_as_found(model):
        return record_calls(model, example)


def record_calls(model: nn.Module, example: Example, *, training: bool = False) -> Traced:
    """Record `model` in eval mode. Changes the modes of modules: call it inside `left_as_found(model)`.

    Args:
        model: the network.
        example: an input of it.
        training: record the model's code in training mode, with leaves in eval mode, up to the point where it cannot be
            followed.
    """
    switched = False
    names: dict[int, tuple[str, bool]] = {}  # id of a parameter or buffer -> its name, and whether it is a buffer
    for prefix, module in named_modules(model):
        switched |= module.training
        dotted = f"{prefix}." if prefix else ""
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items() if tensors else ():
                if tensor is not None:
                    names.setdefault(id(tensor), (dotted + name, tensors is module._buffers))
                if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                    raise TraceError(
                        f"{dotted}{name} is not initialised yet: the model has lazy modules, whose widths are unknown. "
                        "Run the model once on a real batch before tracing it."
                    )
    if switched:
        model.eval()
    if training:
        for module in model.modules():
            module.training = not is_leaf(module)
    arguments = read_arguments(model, example)
    writes_weights = may_write_weights(model)
    state, shared = ModuleState(model, weights=writes_weights), SharedState(model)
    with nothing_compiled():
        try:
            tracer = _run_tracer(model, arguments, example, training, state, names)
        finally:
            state.restore()  # torch.fx stores the constants of forward on the model
            shared.restore()  # a cache of a class must not keep what stands in for values here
    without_absent(tracer.graph, tracer.called)
    attributes = tracer.attributes
    for node in tracer.graph.nodes:
        if node.op == "get_attr" and node.name not in tracer.shapes:  # a tensor among the arguments of a call
            tracer.shapes[node.name] = _shapes_of(attributes[str(node.target)])
    functional, computed = _functional_layers(tracer.graph, tracer.functional, tracer.shapes)
    lent = _lent_layers(tracer.graph, model)
    functional |= lent
    tracer.called |= {name: model.get_submodule(name) for name in lent.values()}
    calls: dict[str, int] = {}
    for node in tracer.graph.nodes:
        if node.op == "call_module" or node.name in functional:
            name = functional.get(node.name) or str(node.target)
            calls[name] = calls.get(name, 0) + 1
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
        lent=frozenset(lent),
        computed=computed,
        writes_weights=writes_weights,
        with_numbers=frozenset(tracer.with_numbers),
    )


def _run_tracer(
    model: nn.Module,
    arguments: Arguments,
    example: Example,
    training: bool,
    state: ModuleState,
    names: Mapping[int, tuple[str, bool]],
) -> ValueTracer:
    """Record the calls, with all that is computed from buffers: pruning cuts the buffers. If that fails, because the
    code writes into a buffer or gives it to a library that needs a plain tensor, try again with buffers as constants.
    """
    for follow_buffers in (True, False):
        tracer = ValueTracer(arguments, {key: n for key, (n, buffer) in names.items() if follow_buffers or not buffer})
        try:
            with own_widths_known(model, is_leaf), numbers_known(model, is_leaf):
                tracer.trace(model)
            break
        except Exception as error:
            if training:
                break
            if not follow_buffers:
                raise TraceError(_explanation(model, error, example)) from error
            state.restore()
    return tracer


def _functional_layers(
    graph: fx.Graph, noted: Mapping[str, str], shapes: Mapping[str, Shapes]
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The calls among those `noted` (node -> module) that can be cut like the calls of a layer: without groups, and
    with a weight and a bias that are parameters of the module, or computed from these, and that nothing else uses.

    Returns them, and of modules that compute them the names of what they are computed from.
    """
    parts: dict[str, set[fx.Node]] = {module: set() for module in noted.values()}
    wrong = set()
    for node in (node for node in graph.nodes if node.name in noted):
        module = noted[node.name]
        weight, bias = (argument_of(node, *place) for place in ((1, "weight"), (2, "bias")))
        behind = [_parameters_behind(tensor, module) for tensor in (weight, bias) if tensor is not None]
        own = {shapes[n.name] for part in behind[:1] for n in part if n.target == f"{module}.weight"}
        fits = own == {shapes[weight.name]} and (bias is None or not behind[1] or len(shapes[bias.name]) == 1)
        if not all(behind) or not fits or argument_of(node, 6, "groups", 1) != 1:
            wrong.add(module)
        parts[module].update([node], *behind)
    computed = {}
    for module, nodes in parts.items():
        users = {user for node in nodes if node.name not in noted for user in node.users}
        if any(user.target is not len for user in users - nodes):  # with which code unpacks a tuple
            wrong.add(module)
        names = {str(node.target).rpartition(".")[2] for node in nodes if node.op == "get_attr"}
        if not names <= {"weight", "bias"} or any(node.op != "get_attr" and node.name not in noted for node in nodes):
            computed[module] = tuple(sorted(names))
    functional = {name: module for name, module in noted.items() if module not in wrong}
    return functional, {module: names for module, names in computed.items() if module not in wrong}


def _parameters_behind(node: Any, module: str) -> set[fx.Node]:
    """The nodes that compute a tensor, if it is computed from parameters and buffers of this module alone; else
    none."""
    found: set[fx.Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, fx.Node) or each.op == "call_module":
            return set()
        if each.op == "get_attr":
            if str(each.target).rpartition(".")[0] != module:
                return set()
        elif not each.all_input_nodes:
            return set()
        if each not in found:
            found.add(each)
            waiting += each.all_input_nodes
    return found


def _lent_layers(graph: fx.Graph, model: nn.Module) -> dict[str, str]:
    """The only calls of functions on weights of layers that are never called themselves (node -> layer), as in code
    that computes the bias: their outputs can be cut."""
    found: dict[str, str] = {}
    uses: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        owner, _, attribute = str(node.target).rpartition(".")
        if node.op == "call_module":
            uses.setdefault(str(node.target), []).append(node)
        elif node.op == "get_attr" and attribute in ("weight", "bias"):
            uses.setdefault(owner, []).extend(user for user in node.users)
            for user in node.users:
                is_layer = user.target in FUNCTIONS and argument_of(user, 6, "groups", 1) == 1
                if owner and attribute == "weight" and is_layer and argument_of(user, 1, "weight") is node:
                    found[user.name] = owner
    kept = {node: owner for node, owner in found.items() if {each.name for each in uses[owner]} == {node}}
    return {node: owner for node, owner in kept.items() if type(model.get_submodule(owner)) in _LENT}


_LENT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _has(model: nn.Module, name: str) -> bool:
    try:
        attribute_of(model, name)
    except AttributeError:
        return False
    return True


def _shapes_of(value: Any) -> Shapes:
    """The same nesting with shapes for tensors, and None for anything else."""

    def shape(part: Any) -> Any:
        if isinstance(part, nn.utils.rnn.PackedSequence):  # it insists on tensors
            return tuple(shape(tensor) for tensor in part)
        return part.shape if isinstance(part, Tensor) and not part.is_nested else None  # nested ones have no shape

    if isinstance(value, Tensor):
        return shape(value)

    return tree_map(shape, value, is_leaf=lambda part: isinstance(part, nn.utils.rnn.PackedSequence))


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module and the random state afterwards, also after an error."""
    with undisturbed(model), modes_kept(model):
        yield


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the mode of each module afterwards, also after an error. Gradients are off."""
    modes = [(module, module.training) for _, module in named_modules(model)]
    state = module_state_kept(model, weights=True) if overrides_train(model) else nullcontext()
    try:
        with state, torch.no_grad():
            yield
    finally:
        for module, training in modes:
            if module.training != training:
                module.training = training


def _explanation(model: nn.Module, error: BaseException, example: Example) -> str:
    """Name the line of the user's code at which recording failed, and say what to do about it."""
    package = Path(__file__).parent.as_posix()
    where = f"the forward of {type(model).__name__}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename.replace("\\", "/")
        if "/torch/" not in path and not path.startswith(package):
            text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: `{text}`"
            break
    message = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    if isinstance(error, fx.proxy.TraceError):
        return (
            f"torch.fx cannot follow {where} ({message}). The path through the network must not depend on the values "
            "of tensors. Rewrite that line, or move it into a module of its own and give that class a rule with "
            "prunus.register_rule(Class, prunus.rules.unknown): its channels are then kept."
        )
    example = example if isinstance(example, tuple | list | dict) else (example,)
    shapes = tree_map(lambda v: tuple(v.shape) if hasattr(v, "shape") else v, example)
    return (
        f"{type(model).__name__} does not run on the example of shape {shapes}: {type(error).__name__}: "
        f"{message} (at {where}). Pass an example that the model accepts, on the model's device. If the model itself "
        "runs on it, torch.fx cannot follow that line: move it into a module of its own and give that class a rule "
        "with prunus.register_rule(Class, prunus.rules.unknown)."
    )


# -- a torch.fx tracer that computes each call on the example while recording it

_PLAIN = frozenset((int, Number, Scale, float, bool, str, type(None), torch.dtype, torch.device))
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)  # around a part of the network
_call_module = nn.Module.__call__  # before torch.fx patches it


class ValueTracer(fx.Tracer):
    """Records layers that have a rule as single calls, and follows everything else into its forward."""

    def __init__(self, arguments: Arguments, names: Mapping[int, str]) -> None:
        super().__init__()
        self._names = names  # id of a parameter, or of a buffer that is followed -> name
        self._arguments = arguments
        self._autocast = autocast_state()
        self._autocasts = torch._C._is_any_autocast_enabled()
        self._computing = False
        self.attributes: dict[str, Any] = {}  # parameters and buffers as forward found them
        self.called: dict[str, nn.Module] = {}
        self.functional: dict[str, str] = {}
        self._followed: list[tuple[nn.Module, str, fx.Node]] = []  # modules with a weight, their names and inputs
        self.shapes: dict[str, Shapes] = {}
        self.identities: set[str] = set()
        self.guards: set[str] = set()
        self.with_numbers: set[str] = set()
        self._met_number = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if is_leaf(m) or isinstance(m, torch.jit.ScriptModule | Absent):
            return True
        if is_followed(m):
            return False
        return super().is_leaf_module(m, module_qualified_name) and not isinstance(m, _WRAPPERS)

    # -- recording

    def create_arg(self, a: Any) -> Any:
        """As torch.fx does it; the usual cases first, because this is where a trace spends much of its time."""
        kind = type(a)
        if kind in PROXIES:
            return a.node
        if kind in _PLAIN:
            self._met_number |= kind is Number or kind is Scale
            return a
        if kind is tuple:
            return tuple([self.create_arg(part) for part in a])
        if kind is dict and not a:
            return {}
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return self.create_proxy("call_function", kind, tuple(a), {}).node
        made = isinstance(a, Tensor) and a not in self.tensor_attrs  # by forward, which may write into it later
        arg = super().create_arg(a)
        if isinstance(a, Tensor) and isinstance(arg, fx.Node):  # forward may replace an attribute later
            self.attributes.setdefault(str(arg.target), a.clone() if made else a)
        return arg

    def create_node(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any) -> fx.Node:
        """Without torch.fx's record of the scope of each call and its search for symbolic sizes: both take time, and
        are of no use here."""
        node = self.graph.create_node(kind, target, (), {}, *rest, **options)
        if (torch._C._is_any_autocast_enabled() or self._autocasts) and autocast_state() != self._autocast:
            node.meta["autocast"] = autocast_state()
        if args:
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, *rest: Any, **options: Any
    ) -> Any:
        self._met_number = False
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name)
        if self._met_number:
            self.with_numbers.add(node.name)
        if self._followed and kind == "call_function" and target in FUNCTIONS:
            # A function on the weight of the module that is being followed, and on its input: perhaps a layer.
            layer, module, entered = self._followed[-1]
            if node.args and node.args[0] is entered and _parameters_behind(argument_of(node, 1, "weight"), module):
                self.functional[node.name] = module
                selection = selection_of(layer)
                args = args if selection is None else (selection.of(value_of(args[0])), *args[1:])
        first = value_of(args[0]) if args and kind.startswith("call") else None
        written = first._version if isinstance(first, Tensor) and not first.is_inference() else None
        value = self._compute(kind, target, args, kwargs)
        self.shapes[node.name] = _shapes_of(value)
        if written is not None and value is first and first._version == written:
            self.identities.add(node.name)
        if isinstance(first, Tensor) and written is not None and first._version != written and id(first) in self._names:
            raise fx.proxy.TraceError(f"the code writes into {self._names[id(first)]}")
        if value is None and target in (getattr, operator.getitem):  # code asks `is None` of it
            self.graph.erase_node(node)
            return None
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
            with _sizes_recorded(self.create_proxy):
                output = self.root._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # with its own hooks
                return tree_map(self._known_parts, output)

        return forward, []

    def _known_parts(self, value: Any, around: tuple[int, ...] = ()) -> Any:
        """An output that is an object, such as a distribution, as a call that makes one from its tensors.

        `around` has the objects that contain it, because an object may refer back to one of them."""
        followed = not (type(value) in PROXIES or isinstance(value, type | nn.Module | types.FunctionType))
        attributes = getattr(value, "__dict__", {}) if followed and id(value) not in around else {}
        inner = functools.partial(self._known_parts, around=(*around, id(value)))
        known = {name: tree_map(inner, part) for name, part in attributes.items()}
        parts = {name: part for name, part in known.items() if _any_recorded(tree_leaves(part))}
        if not parts or dataclasses.is_dataclass(value):
            return value

        def made(tensors: dict[str, Any]) -> Any:
            other = copy.copy(value)
            vars(other).update(tensors)
            return other

        made.__name__ = type(value).__name__
        return self.create_proxy("call_function", made, (parts,), {})

    # -- computing: meanwhile, torch.fx's patches of modules must let everything through

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

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._computing:
            return forward(*args, **kwargs)
        name = (self.submodule_paths or {}).get(m)
        if not self.is_leaf_module(m, ""):
            has_weight = bool(name) and m._parameters.get("weight") is not None  # the network itself is no layer
            if not has_weight or not args or type(args[0]) not in PROXIES:
                return forward(*args, **kwargs)
            return self._follow(m, str(name), forward, args, kwargs)
        computed = any(
            type(parameter) in (Tensor, TensorProxy) for parameter in m._parameters.values()
        )  # functional_call
        if name is None or computed:  # a module made in forward is no part of the model
            return forward(*args, **kwargs)
        self.called[name] = m
        return self._run_hooks(m, name, args, kwargs)

    def _run_hooks(self, m: nn.Module, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record the call of a leaf. Its hooks see what is recorded, so that features which they keep can be followed.

        A hook that returns something is a part of the leaf, and is computed with it.
        """
        hooks = dict(m._forward_hooks)
        if not hooks:
            return self.create_proxy("call_module", name, args, kwargs)
        m._forward_hooks.clear()
        try:
            result = self.create_proxy("call_module", name, args, kwargs)
            given = m._forward_hooks_with_kwargs
            returned = [hook(m, args, *([kwargs] if key in given else []), result) for key, hook in hooks.items()]
        finally:
            m._forward_hooks.update(hooks)
        if all(value is None for value in returned):
            return result
        if not result.node.users:
            self.graph.erase_node(result.node)
        return self.create_proxy("call_module", name, args, kwargs)

    def _follow(self, m: nn.Module, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Follow a module that has a weight. It is a layer if it calls a function on this weight and its input, and
        uses its input for nothing else. A selection in front of it is a part of it."""
        node = args[0].node
        before = len(node.users)
        self._followed.append((m, name, node))
        try:
            with without_selection(m):
                return forward(*args, **kwargs)
        finally:
            self._followed.pop()
            users = list(node.users)[before:]
            if len(users) == 1 and users[0].name in self.functional:
                self.called[name] = m
            else:
                for user in users:
                    self.functional.pop(user.name, None)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._computing or not isinstance(attr_val, Tensor) or isinstance(attr_val, TensorProxy):
            return attr_val
        name = self._names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
            self.attributes[name] = attr_val
        return parameter_proxy_cache[name]

    # -- where the model's code needs a plain value

    def look(self, proxy: Any) -> Any:
        """The plain value of a proxy, recorded as a guard. Of tensors, only those computed from buffers and parameters
        have values that can be looked at."""
        value = value_of(proxy)
        if isinstance(value, Tensor):
            behind, seen = [proxy.node], {proxy.node}
            for node in behind:
                new = [used for used in node.all_input_nodes if used not in seen]
                seen.update(new)
                behind += new
            if not all(node.op == "get_attr" or node.all_input_nodes for node in behind):
                raise fx.proxy.TraceError("the code depends on the values of a tensor")
        self.guards.add(proxy.node.name)
        return value

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.look(obj))


# -- functions that PyTorch would refuse to call with a recorded size, patched while a model is recorded

_FACTORIES = "zeros ones empty full rand randn arange linspace eye tensor as_tensor scalar_tensor"
_CONVOLUTIONS = "conv1d conv2d conv3d"  # with as many groups as the input has channels
_METHODS = "expand view reshape repeat tile narrow unflatten chunk split roll new_zeros new_ones new_full new_empty"


def _any_recorded(values: Any) -> bool:
    """Whether a proxy is among these values, or among the parts of a list or tuple."""
    return any(
        _any_recorded(value) if type(value) in (list, tuple, torch.Size) else type(value) in PROXIES for value in values
    )


@contextmanager
def _sizes_recorded(record: Callable[[str, Any, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    """Inside the block, `record(kind, target, args, kwargs)` handles calls of factories, and of methods of plain
    tensors, that have a recorded value among their arguments."""

    def patched(kind: str, target: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _any_recorded(args) or _any_recorded(kwargs.values()):
                return record(kind, target, args, kwargs)
            return function(*args, **kwargs)

        return call

    def scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not (_any_recorded(args) or _any_recorded(kwargs.values())):
            return call_scripted(function, *args, **kwargs)
        original = getattr(function, "_torchdynamo_inline", None)  # the Python function that was compiled
        return record("call_function", function, args, kwargs) if original is None else original(*args, **kwargs)

    def checked(error: Any, flag: Any, message: Any) -> None:
        """As torch's own, which asks for the very type of a flag. A recorded one becomes a guard."""
        check_with(error, bool(flag) if type(flag) in PROXIES else flag, message)

    methods = _METHODS.split()
    functions = {(torch, name): getattr(torch, name) for name in _FACTORIES.split()}
    functions |= {(F, name): getattr(F, name) for name in _CONVOLUTIONS.split()}
    defined = {name: Tensor.__dict__[name] for name in methods if name in Tensor.__dict__}  # the others are inherited
    call_scripted, is_callable = torch._C.ScriptFunction.__call__, builtins.callable
    check_with = torch._check_with
    validates = torch.distributions.Distribution._validate_args
    try:
        builtins.callable = lambda thing: is_callable(value_of(thing))  # type: ignore[assignment]
        torch._check_with = checked  # type: ignore[assignment]
        torch.distributions.Distribution.set_default_validate_args(False)  # it looks at values
        torch._C.ScriptFunction.__call__ = scripted  # type: ignore[method-assign, assignment]
        for (space, name), function in functions.items():
            setattr(space, name, patched("call_function", function, function))
        for name in methods:
            setattr(Tensor, name, patched("call_method", name, getattr(Tensor, name)))
        yield
    finally:
        builtins.callable = is_callable
        torch._check_with = check_with
        torch.distributions.Distribution.set_default_validate_args(validates)
        torch._C.ScriptFunction.__call__ = call_scripted  # type: ignore[method-assign]
        for (space, name), function in functions.items():
            setattr(space, name, function)
        for name in methods:
            if name in defined:
                setattr(Tensor, name, defined[name])
            else:
                delattr(Tensor, name)
