"""The modes and inputs in which `trace` tries a network: as small as the network allows."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from secateur.channels.traced import Example, named_modules
from secateur.channels.verifying.comparison import in_mode, outputs_of
from secateur.channels.verifying.inputs import SMALL, few_images, randomised, smaller, two_images

_MODES = frozenset(("training", "is_grad_enabled", "requires_grad"))  # what code asks to know that it is trained


_WHOLE_BRANCHES = frozenset(("StochasticDepth", "DropPath"))  # drop branches of whole images, and no channels


class Trial(NamedTuple):
    """One run: a mode ("eval" or "training"), inputs, and the flattened output of the whole model."""

    mode: str
    inputs: Example
    output: list[Any]


def trials_for(model: nn.Module, example: Example) -> list[Trial]:
    """A trial in eval mode, and one in training mode if the model's own code does something else there.

    A network that runs in neither has no trials.
    """
    trials = [_smallest(model, few_images(example, 1), example, "eval")]
    if acts_on_training(model):
        trials.append(_smallest(model, two_images(example), example, "training"))
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


def acts_on_training(model: nn.Module) -> bool:
    """Whether code of the model that is not PyTorch's own asks for the mode, or may do so in a hook."""
    kinds = {type(module) for _, module in named_modules(model) if type(module).__name__ not in _WHOLE_BRANCHES}
    if any(_asks(code) for kind in kinds for code in _own_code(kind)):
        return True
    return any(
        "forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks
        for _, module in named_modules(model)
    )


def _own_code(kind: type) -> Iterator[CodeType]:
    """The code of all methods that a class and its bases define outside of torch.nn."""
    for base in kind.__mro__:
        if not base.__module__.startswith(("torch.nn.", "builtins")):
            for value in vars(base).values():
                yield from _codes(value)


def _codes(value: Any) -> Iterator[CodeType]:
    function = getattr(value, "__func__", getattr(value, "fget", value))
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield code


def _asks(code: CodeType) -> bool:
    if _MODES.intersection(code.co_names):
        return True
    return any(_asks(const) for const in code.co_consts if isinstance(const, CodeType))
