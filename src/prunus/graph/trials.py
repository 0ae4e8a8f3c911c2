"""The modes, inputs and weights with which `trace` tries a network: as small as the network allows."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from prunus.errors import TraceError
from prunus.graph.compare import (
    WITH_GRADIENTS,
    copied,
    distance,
    few_images,
    flattened,
    in_mode,
    outputs_of,
    randomised,
)
from prunus.graph.runner import GraphRunner, last_uses
from prunus.graph.traced import Example, Traced, named_modules
from prunus.util.state import generators_kept, module_state_kept, overrides_train

_SIDES = (64, 128)  # pixels of images in trials, if they are larger: five halvings leave two pixels, or four
_LARGER = 1.5  # how much larger

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
    """A trial in each mode in which the model's own code may do something else, on random inputs: small images if the
    model runs on them, else of the shape of the example. A network that runs in none of them has no trials."""

    def doubled(value: Any) -> Any:  # batch norms in training mode need more than one value
        lonely = isinstance(value, Tensor) and value.dim() > 1 and value.size(0) == 1
        return torch.cat([value, value]) if lonely else value

    def corner(value: Any, side: int) -> Any:
        large = isinstance(value, Tensor) and value.dim() >= 4 and min(value.shape[-2:]) > _LARGER * side
        return value[..., :side, :side] if large else value

    trials = []
    for mode in modes_of(model):
        few = few_images(example, 1) if mode.startswith("eval") else few_images(tree_map(doubled, example))
        for inputs in (*(tree_map(partial(corner, side=side), few) for side in _SIDES), few, example):
            drawn = randomised(inputs)
            try:
                with in_mode(model, mode):
                    trials.append(Trial(mode, drawn, outputs_of(model, drawn)))
                break
            except Exception:  # noqa: BLE001  whatever the model's own code raises
                continue
    return trials


# -- what the model's own code does


def modes_of(model: nn.Module) -> list[str]:
    """Eval mode; training mode too, if code of the model that is not PyTorch's own asks for it or may do so in a hook;
    and both with gradients, if the code asks for those."""
    modules = [module for _, module in named_modules(model)]
    codes = _own_code(model)
    hooked = any("forward" in m.__dict__ or m._forward_hooks or m._forward_pre_hooks for m in modules)
    if any(_reads(code, _GRADIENTS) for code in codes):
        return ["eval", "eval" + WITH_GRADIENTS, "training" + WITH_GRADIENTS]
    asked = hooked or overrides_train(model) or any(_reads(code, _TRAINING) for code in codes)
    return ["eval", "training"] if asked else ["eval"]


def may_write_weights(model: nn.Module) -> bool:
    """Whether code of the model may write to weights of its layers, as a moving average of weights does."""
    names = {name for code in _own_code(model) if "init" not in code.co_name for name in code.co_names}
    return any(name in _WRITERS or (name.endswith("_") and not name.endswith("__")) for name in names)


def _own_code(model: nn.Module) -> list[CodeType]:
    """The code that the modules of a model may run, besides PyTorch's own: their methods, functions inside them, and
    functions of their Python modules that they name."""
    waiting = []
    for kind in {type(module) for _, module in named_modules(model)}:
        if kind.__name__ not in _WHOLE_BRANCHES:
            waiting += [(method.__code__, method.__globals__) for method in _own_methods(kind)]
    codes: dict[CodeType, None] = {}
    while waiting:
        code, names = waiting.pop()
        if code in codes:
            continue
        codes[code] = None
        waiting += [(const, names) for const in code.co_consts if isinstance(const, CodeType)]
        for name in code.co_names:
            called = names.get(name)
            if isinstance(called, FunctionType) and not called.__module__.startswith("torch."):
                waiting.append((called.__code__, called.__globals__))
    return list(codes)


def _own_methods(kind: type) -> Iterator[FunctionType]:
    """All methods that a class and its bases define outside of torch.nn."""
    for base in kind.__mro__:
        if not base.__module__.startswith(("torch.nn.", "builtins")):
            for value in vars(base).values():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                function = getattr(function, "__wrapped__", function)
                if isinstance(function, FunctionType):
                    yield function


def _reads(code: CodeType, names: frozenset[str]) -> bool:
    """Whether code reads one of these names, and not only sets it."""
    if not names.intersection(code.co_names):
        return False
    return any(step.argval in names and step.opname.startswith("LOAD") for step in dis.get_instructions(code))


# -- check a recorded graph: run node by node, it must compute what the model computes

_ROUNDING = 1e-3  # both run the same calls: only the code of another path differs by more


def check_recording(traced: Traced, trial: Trial | None, example: Example) -> None:
    """Raise TraceError unless the graph computes what the model computes in a trial, or else on random inputs of the
    shape of the example.

    Code that looks at sizes may be recorded for the sizes of the example only. The example itself would not show that
    something computed from it was recorded as a constant.
    """

    def apart(inputs: Example, output: list[Any]) -> float:
        runner = GraphRunner(traced)
        try:
            with module_state_kept(traced.model), generators_kept(0):
                values = runner.bind(copied(inputs))
                return distance(flattened(runner.run(values, free=last_uses(runner.nodes))), output)
        except Exception:  # noqa: BLE001  whatever the model's own code raises
            return float("inf")

    with in_mode(traced.model, "eval"):
        if trial is not None and not traced.guards and apart(trial.inputs, trial.output) <= _ROUNDING:
            return
        drawn = randomised(example)
        error = apart(drawn, outputs_of(traced.model, drawn))
    if error > _ROUNDING:
        raise TraceError(
            f"the calls recorded from {type(traced.model).__name__} do not compute what the model computes on the "
            f"example (the outputs differ by {error:.2g} of their size). Its code probably takes another path while it "
            "is recorded, or keeps something from one call to the next. Move that code into a module of its own and "
            "give that class a rule with prunus.register_rule(Class, prunus.rules.unknown)."
        )


# -- weights that show what a trial is for: an untrained network scales by ones and adds zeros, which hides errors

_SMALL = 0.05  # a smaller factor would hide the branch that it scales


@contextmanager
def constants_varied(model: nn.Module) -> Iterator[None]:
    """Inside the block, numbers differ in each parameter and statistic whose numbers are all equal.

    They are within 30% of the constant, or between 0.1 and 0.3 if that is small. The tensors are restored afterwards.
    """
    generator = torch.Generator().manual_seed(0)
    saved: list[tuple[Tensor, Tensor]] = []
    statistics = [b for name, b in model.named_buffers() if name.rpartition(".")[2] in ("running_mean", "running_var")]
    try:
        for tensor in (*model.parameters(), *statistics):
            if tensor.is_floating_point() and tensor.numel() > 1:
                numbers = tensor.detach().reshape(-1)
                if numbers[0] == numbers[-1] and bool((numbers == numbers[0]).all()):
                    saved.append((tensor, tensor.data))
                    drawn = torch.rand(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
                    value = numbers[0]
                    tensor.data = value * (0.7 + 0.6 * drawn) if abs(value) >= _SMALL else 0.1 + 0.2 * drawn
        yield
    finally:
        for tensor, before in saved:
            tensor.data = before
