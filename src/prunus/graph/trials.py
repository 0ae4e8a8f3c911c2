"""The modes and inputs in which `trace` tries a network: as small as the network allows."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from prunus.errors import TraceError
from prunus.graph.compare import (
    SMALL,
    WITH_GRADIENTS,
    copied,
    distance,
    few_images,
    flattened,
    in_mode,
    outputs_of,
    randomised,
    smaller,
    two_images,
)
from prunus.graph.runner import GraphRunner, last_uses
from prunus.graph.traced import Example, Traced, named_modules
from prunus.util.state import generators_kept, has_own_switch, module_state_kept

# What code reads to know that it is trained, or that gradients are computed.
_TRAINING, _GRADIENTS = frozenset(("training",)), frozenset(("is_grad_enabled", "requires_grad"))
# What code names that writes to weights, besides methods that work in place.
_WRITERS = frozenset(("data", "parameters", "named_parameters", "no_grad", "load_state_dict"))
_WHOLE_BRANCHES = frozenset(("StochasticDepth", "DropPath"))  # drop branches of whole images, and no channels


class Trial(NamedTuple):
    """One run: a mode of `in_mode`, inputs, and the flattened output of the whole model."""

    mode: str
    inputs: Example
    output: list[Any]


def trials_for(model: nn.Module, example: Example) -> list[Trial]:
    """A trial in each mode in which the model's own code may do something else.

    A network that runs in none of them has no trials.
    """
    one, two = few_images(example, 1), two_images(example)
    trials = [_smallest(model, one if mode.startswith("eval") else two, example, mode) for mode in modes_of(model)]
    return [trial for trial in trials if trial is not None]


def _smallest(model: nn.Module, few: Example, example: Example, mode: str) -> Trial | None:
    """Random inputs with small images, if the model runs on them; else of the shape of the example."""
    for inputs in (*(smaller(few, side) for side in SMALL), few, example):
        drawn = randomised(inputs)
        try:
            with in_mode(model, mode):
                return Trial(mode, drawn, outputs_of(model, drawn))
        except Exception:  # noqa: BLE001  whatever the model's own code raises
            continue
    return None


def modes_of(model: nn.Module) -> list[str]:
    """Eval mode; training mode too, if code of the model that is not PyTorch's own asks for it or may do so in a hook;
    and both with gradients, if the code asks for those."""
    modules = [module for _, module in named_modules(model)]
    codes = _own_code(model)
    hooked = any("forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks for m in modules)
    if any(_reads(code, _GRADIENTS) for code in codes):
        return ["eval", "eval" + WITH_GRADIENTS, "training" + WITH_GRADIENTS]
    asked = hooked or has_own_switch(model) or any(_reads(code, _TRAINING) for code in codes)
    return ["eval", "training"] if asked else ["eval"]


def may_write_weights(model: nn.Module) -> bool:
    """Whether code of the model may write to weights of its layers, as a moving average of weights does."""
    return any(_writes(name) for code in _own_code(model) if "init" not in code.co_name for name in code.co_names)


def _writes(name: str) -> bool:
    return name in _WRITERS or (name.endswith("_") and not name.endswith("__"))


def _own_code(model: nn.Module) -> list[CodeType]:
    """The code that the modules of a model may run, besides PyTorch's own."""
    kinds = {type(module) for _, module in named_modules(model)}
    kinds = {kind for kind in kinds if kind.__name__ not in _WHOLE_BRANCHES}
    return _reachable([function for kind in kinds for function in _own_functions(kind)])


def _own_functions(kind: type) -> Iterator[FunctionType]:
    """All methods that a class and its bases define outside of torch.nn."""
    for base in kind.__mro__:
        if base.__module__.startswith(("torch.nn.", "builtins")):
            continue
        for value in vars(base).values():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType):
                yield function


def _reachable(functions: list[FunctionType]) -> list[CodeType]:
    """The code of these functions, of functions inside them, and of functions of their modules that they name."""
    found: dict[CodeType, None] = {}
    waiting = [(function.__code__, function.__globals__) for function in functions]
    while waiting:
        code, names = waiting.pop()
        if code in found:
            continue
        found[code] = None
        waiting += [(const, names) for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            called = names.get(name)
            if isinstance(called, FunctionType) and not called.__module__.startswith("torch."):
                waiting.append((called.__code__, called.__globals__))
    return list(found)


def _reads(code: CodeType, names: frozenset[str]) -> bool:
    """Whether code reads one of these names, and not only sets it."""
    if not names.intersection(code.co_names):
        return False
    return any(step.argval in names and step.opname.startswith("LOAD") for step in dis.get_instructions(code))


# Check a recorded graph: run node by node, it must compute what the model computes.

_ROUNDING = 1e-3  # both run the same calls: only the code of another path differs by more


def check_recording(traced: Traced, trial: Trial | None, example: Example) -> None:
    """Raise TraceError unless the graph computes what the model computes in a trial, or else on random inputs of the
    shape of the example.

    Code that looks at sizes may be recorded for the sizes of the example only. The example itself would not show that
    something computed from it was recorded as a constant.
    """
    with in_mode(traced.model, "eval"):
        if trial is not None and not traced.guards and _apart(traced, trial.inputs, trial.output) <= _ROUNDING:
            return
        drawn = randomised(example)
        apart = _apart(traced, drawn, outputs_of(traced.model, drawn))
    if apart > _ROUNDING:
        raise TraceError(
            f"the calls recorded from {type(traced.model).__name__} do not compute what the model computes on the "
            f"example (the outputs differ by {apart:.2g} of their size). Its code probably takes another path while it "
            "is recorded, or keeps something from one call to the next. Move that code into a module of its own and "
            "give that class a rule with prunus.register_rule(Class, prunus.rules.unknown)."
        )


def _apart(traced: Traced, inputs: Example, output: list[Any]) -> float:
    """How far the output of the graph is from that of the model."""
    try:
        return distance(_run(traced, inputs), output)
    except Exception:  # noqa: BLE001  whatever the model's own code raises
        return float("inf")


def _run(traced: Traced, inputs: Example) -> list[Any]:
    runner = GraphRunner(traced)
    with module_state_kept(traced.model), generators_kept(0):
        values = runner.bind(copied(inputs))
        return flattened(runner.run(values, free=last_uses(runner.nodes)))


# Weights that show what a trial is for: an untrained network scales by ones and adds zeros, which hides errors.

_STATISTICS = frozenset(("running_mean", "running_var"))
_SMALL = 0.05  # a smaller factor would hide the branch that it scales


@contextmanager
def constants_varied(model: nn.Module) -> Iterator[None]:
    """Inside the block, numbers differ in each parameter and statistic whose numbers are all equal.

    They are within 30% of the constant, or between 0.1 and 0.3 if that is small. The tensors are restored afterwards.
    """
    generator = torch.Generator().manual_seed(0)
    saved: list[tuple[Tensor, Tensor]] = []
    try:
        for tensor in _tensors(model):
            if _is_constant(tensor):
                saved.append((tensor, tensor.data))
                drawn = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
                value = tensor.detach().reshape(-1)[0]
                tensor.data = value * (0.7 + 0.6 * drawn) if abs(value) >= _SMALL else 0.1 + 0.2 * drawn
        yield
    finally:
        for tensor, before in saved:
            tensor.data = before


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] in _STATISTICS:
            yield buffer


def _is_constant(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.numel() < 2:
        return False
    numbers = tensor.detach().reshape(-1)
    return bool(numbers[0] == numbers[-1]) and bool((numbers == numbers[0]).all())
