"""The form of a recorded network: its calls as a torch.fx graph, and what is known about each of them.

Everything that reads or runs a graph depends on this form only, not on how the graph was recorded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from prunus.errors import TraceError

Example = Any  # a tensor, a tuple of positional arguments or a dict of keyword arguments
Shapes = Any  # the nesting of a node's value, with a torch.Size for each tensor

# Types of most attributes of modules; and what code names that writes to weights, besides methods that work in place.
_NOT_CALLED = frozenset((int, float, bool, str, type(None), tuple, list, dict, set, OrderedDict))
_WRITERS = frozenset(("data", "parameters", "named_parameters", "no_grad", "load_state_dict"))


@dataclass(frozen=True)
class Traced:
    """The calls of a model in execution order, with the shape of each result."""

    model: nn.Module
    graph: fx.Graph
    shapes: Mapping[str, Shapes]  # node name -> shape(s) of its value
    identities: frozenset[str]  # nodes that returned their first argument unchanged
    guards: frozenset[str]  # nodes whose plain value the model's code has looked at
    calls: Mapping[str, int]  # module name -> number of calls
    modules: Mapping[str, nn.Module]  # name of a called module -> module
    attributes: Mapping[str, Any]  # target of a get_attr node -> parameter, buffer or constant
    literals: frozenset[str]  # attributes that are not on the model: tensors that forward creates, `torch.tensor([1])`
    functional: Mapping[str, str] = field(default_factory=dict)  # call of a function on a module's weight -> module
    lent: frozenset[str] = frozenset()  # those among them on the weight of a layer that is not called
    computed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # module -> what its weight is computed from
    writes_weights: bool = True  # whether code of the model may write to weights of its layers
    with_numbers: frozenset[str] = frozenset()  # nodes that have an attribute of a module, a `Number`, as an argument

    def layer_of(self, node: fx.Node) -> str | None:
        """The name of the module that a node calls, or whose weight it gives to a function; None if there is none."""
        return str(node.target) if node.op == "call_module" else self.functional.get(node.name)

    def is_layer_function(self, node: fx.Node) -> bool:
        """Whether a node calls a function with which a module is a layer."""
        return node.name in self.functional and node.name not in self.lent

    def tensors_of(self, layer: str) -> tuple[str, ...]:
        """The parameters and buffers that a module gives to its function, or computes what it gives from."""
        return self.computed.get(layer, ("weight", "bias"))

    def function_name(self, node: fx.Node) -> str:
        """What a call of a convolution or linear function is called in costs: after its module or weight, if it can."""
        weight = argument_of(node, 1, "weight")
        is_plain = isinstance(weight, fx.Node) and weight.op == "get_attr"
        return self.functional.get(node.name) or (str(weight.target) if is_plain else node.name)

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a node calls, or whose weight it gives to a function."""
        return self.modules[self.layer_of(node) or ""]

    def batch_norm_after(self, node: fx.Node) -> fx.Node | None:
        """The call of a batch norm that alone uses the value of `node`, if the norm is called only here."""
        user = only_user(node)
        if user is None or user.op != "call_module" or self.calls[str(user.target)] != 1:
            return None
        return user if isinstance(self.module(user), nn.modules.batchnorm._BatchNorm) else None


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """As `model.named_modules()`, in a fraction of the time for deep models."""
    modules, seen = [], set()
    waiting = [("", model)]
    while waiting:
        name, module = waiting.pop()
        if module not in seen:
            seen.add(module)
            modules.append((name, module))
            children = module._modules
            if children:
                dotted = f"{name}." if name else ""
                waiting += [(dotted + key, child) for key, child in reversed(children.items()) if child is not None]
    return modules


def submodules(model: nn.Module, names: Iterable[str]) -> dict[str, nn.Module]:
    """As `model.get_submodule(name)` for each name, in a fraction of the time."""
    known = dict(named_modules(model))  # without second names of a module
    return {name: known[name] if name in known else model.get_submodule(name) for name in names}


def names_in_code(module: nn.Module, name: str) -> bool:
    """Whether a method of the module's class names an attribute, other than one that sets up the module."""
    codes = (method.__code__ for method in methods_of(type(module)))
    return any("init" not in code.co_name and name in code.co_names for code in codes)


def methods_of(kind: type) -> Iterator[FunctionType]:
    """All methods that a class and its bases define outside of torch.nn."""
    for base in kind.__mro__:
        if not base.__module__.startswith(("torch.nn.", "builtins")):
            for value in vars(base).values():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                function = getattr(function, "__wrapped__", function)
                if isinstance(function, FunctionType):
                    yield function


def may_write_weights(model: nn.Module) -> bool:
    """Whether code of the model may write to weights of its layers, as a moving average of weights does.

    That is the code of its modules besides PyTorch's own: their methods, functions inside them, functions of their
    Python modules that they name, and what can be called among their attributes and hooks.
    """
    modules = [module for _, module in named_modules(model)]
    functions = [method for kind in {type(module) for module in modules} for method in methods_of(kind)]
    for module in modules:
        values = [value for value in vars(module).values() if type(value) not in _NOT_CALLED]
        for value in (*values, *module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            functions += _functions_in(value)
    waiting = [(function.__code__, function.__globals__) for function in functions]
    codes: set[CodeType] = set()
    while waiting:
        code, names = waiting.pop()
        if code in codes:
            continue
        codes.add(code)
        writes = (name in _WRITERS or (name.endswith("_") and not name.endswith("__")) for name in code.co_names)
        if "init" not in code.co_name and any(writes):
            return True
        waiting += [(const, names) for const in code.co_consts if isinstance(const, CodeType)]
        named = [names.get(name) for name in code.co_names]
        helpers = [vars(m).get(name) for m in named if isinstance(m, ModuleType) for name in code.co_names]
        for called in (*named, *helpers):
            waiting += [(function.__code__, function.__globals__) for function in _functions_in(called)]
    return False


def _functions_in(value: Any, depth: int = 0) -> Iterator[FunctionType]:
    """The functions, besides those of PyTorch and of this package, that run if a value is called: also those of
    partials, methods, decorated functions and objects."""
    if isinstance(value, partial):
        value = value.func
    value = getattr(value, "__func__", value)
    if not isinstance(value, FunctionType) and not isinstance(value, type | nn.Module):
        value = getattr(type(value), "__call__", None)  # noqa: B004  (the function itself)
    if isinstance(value, FunctionType) and depth < 4 and not (value.__module__ or "").startswith(("torch.", "prunus.")):
        yield value
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                yield from _functions_in(cell.cell_contents, depth + 1)


def argument_of(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a call, given by position or by name: an fx.Node if it is computed."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def only_user(node: fx.Node) -> fx.Node | None:
    """The only node that uses the value of `node`; None if there are others, or none."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def as_call(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def with_part(x: Any, index: Any, value: Any) -> Any:
    """`x` after `x[index] = value`: item assignment as a call that has a result."""
    x[index] = value
    return x


def call_with_lists(function: Any, args: Any, kwargs: Any) -> Any:
    """The result of a function. One of the user's may change the lists that it is given: those of a graph cannot be."""
    if isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
        args = [list(value) if isinstance(value, list) else value for value in args]
        kwargs = {name: list(value) if isinstance(value, list) else value for name, value in kwargs.items()}
    return function(*args, **kwargs)


def autocast_state() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """Whether and to which type operations on each kind of device are cast."""
    return tuple((kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda"))


def attribute_of(model: nn.Module, name: str) -> Any:
    """The parameter, buffer or plain attribute with this dotted name."""
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)


# -- kinds of layers that the rest of the package tells apart

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
MIXING = (*CONVOLUTIONS, nn.Linear)
FUNCTIONS = (torch.conv1d, torch.conv2d, torch.conv3d, F.linear)  # as layers, on weights that are given to them
DEPTHWISE = "prunus_depthwise"  # attribute of a pruned convolution: whether it was depthwise before


def is_depthwise(layer: nn.Module) -> bool:
    """Whether a convolution applies filters of their own to every input channel."""
    if not isinstance(layer, CONVOLUTIONS):
        return False
    return bool(getattr(layer, DEPTHWISE, layer.groups == layer.in_channels > 1))


def batched_dims(layer: Any) -> int:
    """How many dimensions the input of a convolution has, with images."""
    return 2 + len(layer.kernel_size)


def channel_dim(layer: nn.Module, x: Tensor) -> int:
    """The dimension of a layer's input or output that carries its channels."""
    if isinstance(layer, CONVOLUTIONS):
        return x.dim() - batched_dims(layer) + 1  # 1, or 0 without a batch dimension
    return x.dim() - 1 if isinstance(layer, nn.Linear) else 1


# -- checks of arguments that several functions share

# Classes that wrap a network -> the attribute that holds it.
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}


def check_network(model: Any) -> None:
    """TraceError unless `model` is a network that can be followed."""
    if isinstance(model, type):
        raise TraceError(
            f"expected a network, got the class {model.__name__}; pass an instance, as in {model.__name__}()"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError("TorchScript modules cannot be pruned; pass the nn.Module that the script was made from")
    unpacked = isinstance(model, torch.fx.GraphModule) and "eval" in vars(model)  # ExportedProgram.module()
    if unpacked or isinstance(model, torch.export.ExportedProgram):
        raise TraceError("exported programs cannot be pruned; pass the nn.Module that the program was exported from")
    if not isinstance(model, nn.Module):
        raise TraceError(f"expected a torch.nn.Module, got {type(model).__name__}; check the order of the arguments")
    modules = [module for _, module in named_modules(model)]
    if any(t is not None and t.is_meta for m in modules for t in (*m._parameters.values(), *m._buffers.values())):
        raise TraceError("the network is on the meta device, so it has no weights; load them first")
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS:
            inner = _WRAPPERS[kind.__name__]
            raise TraceError(
                f"the network is wrapped in {kind.__name__}; trace model.{inner}, and wrap the pruned network again"
            )


def check_graph(graph: Any) -> None:
    """TraceError unless `graph` is what `trace` returns."""
    if not hasattr(graph, "units"):
        raise TraceError(
            f"expected the graph that prunus.trace(model, example) returns, got {type(graph).__name__}; check the "
            "order of the arguments"
        )


def check_example(example: Any) -> None:
    """TraceError if an input of the example has no elements, or if inputs are not found in it."""
    leaves = tree_leaves(example)
    for leaf in leaves:
        inside = {} if isinstance(leaf, Tensor | nn.Module | type) else getattr(leaf, "__dict__", {})
        held = tree_leaves(dict(inside))
        if any(isinstance(value, Tensor) for value in held) or (isinstance(leaf, Tensor) and leaf.is_nested):
            kind = "nested tensor" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TraceError(
                f"the example contains a {kind}, and inputs are only found in tensors, tuples, lists and dicts. Trace "
                "a module that takes plain tensors and makes the object from them before it calls the network"
            )
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise TraceError(
            "the example contains no tensor; pass an input of the network, as in torch.zeros(1, 3, 224, 224)"
        )
    for tensor in leaves:
        if isinstance(tensor, Tensor) and tensor.numel() == 0:
            raise TraceError(
                f"the example is empty: its shape is {list(tensor.shape)}. Pass at least one image, as in "
                "torch.zeros(1, 3, 224, 224)"
            )
