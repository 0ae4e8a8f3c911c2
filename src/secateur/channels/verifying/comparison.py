"""Run two networks on the same input, and decide whether their outputs differ by more than rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from secateur.base.module_state import has_own_switch, module_state_kept
from secateur.base.preserve_state import evaluating, generators_kept, nothing_compiled
from secateur.channels.carving import copy_sharing
from secateur.channels.traced import Example, as_call
from secateur.channels.verifying.inputs import copied, in_double
from secateur.channels.verifying.outputs import distance, flattened

_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}  # differences that need no second look; others always do
_SAME = 1e-9  # of copies in float64
_MARGIN = 30.0  # how much larger a difference by rounding may be than the one that noise in the weights makes

WITH_GRADIENTS = " with gradients"
RANDOM = "its outputs depend on random numbers, so that they cannot be compared"

_DROPOUT_NAMES = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_dropout", "feature_alpha_dropout"),
)
_DROPOUTS = frozenset(getattr(owner, name) for owner in (F, torch) for name in _DROPOUT_NAMES if hasattr(owner, name))


class NotRun(Exception):
    """The network does not run on these inputs, pruned or not."""


class WithoutDropout(TorchFunctionMode):
    """Dropout returns its input. Networks of other widths draw other random numbers, so they could not be compared."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


@contextmanager
def training(model: nn.Module) -> Iterator[nn.Module]:
    """Put all of the model into training mode, and restore the mode of each module afterwards."""
    with evaluating(model):
        model.train()
        yield model


def outputs_of(model: nn.Module, inputs: Example, seed: int = 0, dropout: bool = True) -> list[Any]:
    """The flattened output of a model in its present mode. Model and random generators are left as they were.

    Training mode is without dropout, and so is eval mode if asked.
    """
    quiet = nullcontext() if dropout and not model.training else WithoutDropout()
    with module_state_kept(model), generators_kept(seed), nothing_compiled(), quiet:
        args, kwargs = as_call(copied(inputs))
        return flattened(model(*args, **kwargs))


def precision_of(model: nn.Module) -> torch.dtype:
    """The coarsest floating-point type of the model's parameters."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


def difference(pruned: nn.Module, whole: nn.Module, inputs: Example, dropout: bool = True) -> str | None:
    """How the outputs of two networks in their present modes differ, in words; None if only by rounding.

    Raises NotRun if `whole` itself does not run on these inputs.
    """
    try:
        want = outputs_of(whole, inputs, dropout=dropout)
    except Exception as error:
        raise NotRun(said(error)) from error
    try:
        got = outputs_of(pruned, inputs, dropout=dropout)
    except Exception as error:  # noqa: BLE001  whatever the model's own code raises
        return f"it fails with {said(error)}"
    apart = distance(got, want)
    if apart <= _CLOSE.get(precision_of(whole), -1.0):
        return None
    finer = _in_double(pruned, whole, inputs, apart, dropout)
    if finer.apart <= _SAME:
        return None
    if distance(outputs_of(whole, inputs, 1, dropout), want) > 0.0:
        return difference(pruned, whole, inputs, dropout=False) if dropout else RANDOM
    if math.isfinite(finer.apart) and finer.apart <= _MARGIN * _effect_of_noise(finer):
        return None
    if math.isinf(apart):
        return "its outputs have another shape, type or structure"
    return f"its outputs differ by {apart:.2g} of their size"


def said(error: BaseException) -> str:
    """The class and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"


class _Finer(NamedTuple):
    """A comparison of copies: how far their outputs are apart, and what it takes to run the whole network again."""

    apart: float
    whole: nn.Module
    inputs: Example
    output: list[Any]
    noise: float  # the rounding of weights


def _in_double(pruned: nn.Module, whole: nn.Module, inputs: Example, apart: float, dropout: bool) -> _Finer:
    """Compare copies in float64, where rounding is too small to be taken for a difference.

    A forward that insists on a coarser type is judged in that type.
    """
    noise = torch.finfo(precision_of(whole)).eps
    finer, exact = (copy_sharing(model).double() for model in (pruned, whole))
    numbers = in_double(inputs)
    try:
        want = outputs_of(exact, numbers, dropout=dropout)
        apart = distance(outputs_of(finer, numbers, dropout=dropout), want)
        noise = min(noise, torch.finfo(torch.float32).eps)
    except Exception:  # noqa: BLE001  forward mixes types
        exact, numbers = copy_sharing(whole), inputs
        want = outputs_of(exact, numbers, dropout=dropout)
    return _Finer(apart, exact, numbers, want, noise)


def _effect_of_noise(finer: _Finer) -> float:
    """How far the output moves if each weight is rounded: a network may magnify rounding. Changes `finer.whole`."""
    generator = torch.Generator().manual_seed(0)
    for parameter in finer.whole.parameters():
        if parameter.is_floating_point():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
            parameter.data.mul_((1 + finer.noise * drawn).to(parameter.device, parameter.dtype))
    moved = distance(outputs_of(finer.whole, finer.inputs), finer.output)
    return moved if math.isfinite(moved) else 0.0


@contextmanager
def in_mode(model: nn.Module, mode: str) -> Iterator[None]:
    """Inside the block the model is in "eval" or "training" mode, or in its "own", without gradients unless the mode
    says so ("eval with gradients")."""
    plain = mode.removesuffix(WITH_GRADIENTS)
    switched: AbstractContextManager[Any] = nullcontext()
    if plain != "own":
        switched = evaluating(model) if plain == "eval" else training(model)
    state = module_state_kept(model) if has_own_switch(model) else nullcontext()
    with state, switched, torch.set_grad_enabled(mode != plain):
        yield
