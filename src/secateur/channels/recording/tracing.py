"""Record a model on an example input: a graph of calls (torch.fx) with layers as single calls, from one forward pass.

Code that branches on sizes, types or devices is followed, and what it looked at is recorded as a guard: a plan under
which the code would see something else is refused. Code that branches on the *values* of tensors cannot be followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from secateur.base.module_state import has_own_switch, module_state_kept
from secateur.base.preserve_state import nothing_compiled
from secateur.channels.recording.arguments import Arguments, read_arguments
from secateur.channels.recording.own_layers import own_layers
from secateur.channels.recording.trace_errors import explain
from secateur.channels.recording.value_tracer import ValueTracer, shapes_of
from secateur.channels.traced import Example, Traced, attribute_of, named_modules
from secateur.errors import TraceError

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
