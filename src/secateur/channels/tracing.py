"""From a model and an example input to a graph of calls: torch.fx, with layers as leaves, and one forward for shapes."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_flatten, tree_map

from secateur.errors import TraceError

Example = Any  # a tensor, a tuple of positional arguments or a dict of keyword arguments
Shapes = Any  # the same nesting as a node's value, each tensor replaced by its torch.Size


@dataclass(frozen=True)
class Traced:
    """A model's calls in execution order, and the shape of what each of them returns."""

    model: nn.Module
    graph: fx.Graph
    shapes: Mapping[str, Shapes]  # node name -> shape(s) of its value
    constants: Mapping[str, Any]  # placeholders that the example leaves at their default
    identities: frozenset[str] = frozenset()  # nodes that returned their first argument itself
    calls: Mapping[str, int] = field(default_factory=dict)  # module name -> how often it is called

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a call_module node calls."""
        return self.model.get_submodule(str(node.target))


def as_call(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


class _LeafTracer(fx.Tracer):
    """Stops at layers that have a rule; everything else is followed into its forward."""

    def __init__(self, is_leaf: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self._is_leaf = is_leaf

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._is_leaf(m) or super().is_leaf_module(m, module_qualified_name)


class _ShapeRecorder(fx.Interpreter):
    """Runs the graph once and notes the shape of every value."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[str, Shapes] = {}
        self.identities: set[str] = set()

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        first = n.args[0] if n.args else None
        if isinstance(first, fx.Node) and isinstance(value, Tensor) and value is self.env.get(first):
            self.identities.add(n.name)
        self.shapes[n.name] = tree_map(lambda v: v.shape if isinstance(v, Tensor) else None, value)
        return value


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


def trace_calls(
    model: nn.Module, example: Example, is_leaf: Callable[[nn.Module], bool], *, training: bool = False
) -> Traced:
    """Trace `model` in eval mode (or, with `training`, as its own code runs in training; leaves stay in eval mode).

    Nothing of the model changes: modes, random state, requires_grad and hooks are as they were.
    """
    _refuse_lazy(model)
    args, kwargs = as_call(example)
    with left_as_found(model):
        model.eval()
        for module in model.modules():
            if training and not is_leaf(module):
                module.training = True
        constants = _defaults_left(model, args, kwargs)
        graph = _symbolic(model, is_leaf, constants)
        recorder = _run(model, graph, args, kwargs, constants)
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    return Traced(model, graph, recorder.shapes, constants, frozenset(recorder.identities), calls)


def _refuse_lazy(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise TraceError(
                f"{name} is not initialised yet: the model has lazy modules, whose widths are unknown. "
                "Run the model once on a real batch before tracing it."
            )


def _defaults_left(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of forward that the example does not give: they keep their defaults, as Python would do."""
    try:
        signature = inspect.signature(model.forward)
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise TraceError(
            f"the example does not fit {type(model).__name__}.forward{inspect.signature(model.forward)}: {error}. "
            "Pass a tensor, a tuple of positional arguments or a dict of keyword arguments."
        ) from error
    simple = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: p.default for name, p in signature.parameters.items() if name not in given and p.kind in simple
    } | {name: value for name, value in given.items() if not _has_tensor(value) and _is_simple(signature, name)}


def _is_simple(signature: inspect.Signature, name: str) -> bool:
    kind = signature.parameters[name].kind
    return kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_flatten(value)[0])


def _symbolic(model: nn.Module, is_leaf: Callable[[nn.Module], bool], constants: dict[str, Any]) -> fx.Graph:
    tracer = _LeafTracer(is_leaf)
    try:
        return tracer.trace(model, concrete_args=constants or None)
    except Exception as error:  # noqa: BLE001  (whatever the model's own code raises on symbolic values)
        raise TraceError(_explain(model, error)) from error


def _explain(model: nn.Module, error: BaseException) -> str:
    """Name the user's line at which the symbolic trace gave up."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _inside_torch_or_here(f.filename)]
    if frames:
        last = frames[-1]
        text = (last.line or linecache.getline(last.filename, last.lineno or 0)).strip()
        where = f"{last.filename}:{last.lineno} in {last.name}: `{text}`"
    else:
        where = f"the forward of {type(model).__name__}"
    return (
        f"torch.fx cannot follow {where} ({type(error).__name__}: {error}). The path through the network must not "
        "depend on the values or sizes of tensors. Rewrite that line, or move it into a module of its own and give "
        "that class a rule with secateur.register_rule(Class, secateur.rules.unknown): its channels then stay."
    )


def _inside_torch_or_here(filename: str) -> bool:
    return f"torch{'/'}fx" in filename.replace("\\", "/") or "/torch/nn/modules/" in filename or filename == __file__


def _run(
    model: nn.Module, graph: fx.Graph, args: tuple[Any, ...], kwargs: dict[str, Any], constants: dict[str, Any]
) -> _ShapeRecorder:
    recorder = _ShapeRecorder(fx.GraphModule(model, graph))
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    inputs = _placeholder_values(graph, model, given, constants)
    try:
        recorder.run(*inputs, enable_io_processing=False)
    except Exception as error:  # noqa: BLE001  (the model's own error, shown as it is)
        shapes = tree_map(lambda v: tuple(v.shape) if isinstance(v, Tensor) else v, args or kwargs)
        raise TraceError(
            f"{type(model).__name__} does not run on the example of shape {shapes}: "
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else error!r}. "
            "Pass an example that the model accepts, on the model's device."
        ) from error
    return recorder


def _placeholder_values(
    graph: fx.Graph, model: nn.Module, given: Mapping[str, Any], constants: Mapping[str, Any]
) -> list[Any]:
    """One value per placeholder, in the graph's order; fx numbers those that it specialises (`flag_1`)."""
    parameters = inspect.signature(model.forward).parameters
    names: list[str] = []
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            if name in given:
                raise TraceError(
                    f"{type(model).__name__}.forward takes *{name}, which torch.fx cannot follow. "
                    "Give forward named arguments, or trace a small module that calls it with them."
                )
            continue
        names.append(name)
    values = [constants[name] if name in constants else given[name] for name in names]
    placeholders = [node for node in graph.nodes if node.op == "placeholder" and not str(node.target).startswith("*")]
    if len(placeholders) != len(values):
        raise TraceError(
            f"torch.fx made {len(placeholders)} inputs of the {len(values)} arguments of "
            f"{type(model).__name__}.forward. Pass tensors as arguments of their own, not inside lists or dicts."
        )
    return values
