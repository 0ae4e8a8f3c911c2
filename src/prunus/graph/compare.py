"""Run two networks on the same input, and decide whether their outputs differ by more than rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.distance import distance, flattened
from prunus.graph.surgery import copy_sharing
from prunus.graph.traced import Example, as_call, named_modules
from prunus.graph.watch import Inside, Watch
from prunus.util.state import (
    ModuleState,
    evaluating,
    generators_kept,
    module_state_kept,
    nothing_compiled,
    overrides_train,
)

# -- inputs on which two networks are compared


def copied(example: Example) -> Example:
    """A copy of all tensors, because a network may work in place on what it is given."""
    return tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, example)


def few_images(example: Example, most: int = 2) -> Example:
    """The first images of each tensor, if all tensors have the same number of them."""
    counts = {value.size(0) for value in tree_leaves(example) if isinstance(value, Tensor) and value.dim() > 1}
    if len(counts) != 1 or max(counts) <= most:
        return example
    (count,) = counts

    def narrowed(value: Any) -> Any:
        fits = isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == count
        return value[:most] if fits else value

    return tree_map(narrowed, example)


def is_constant(example: Example) -> bool:
    """Whether all numbers of every tensor are equal, as in an example of zeros."""
    tensors = [v for v in tree_leaves(example) if isinstance(v, Tensor) and v.is_floating_point()]
    return all(bool((tensor == tensor.reshape(-1)[:1]).all()) for tensor in tensors if tensor.numel())


def randomised(example: Example, seed: int = 0) -> Example:
    """Normal numbers in place of those of each floating-point tensor, with the same mean and spread (1 if none)."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        plain = value.detach().double().cpu()
        spread, mean = plain.std(correction=0), plain.mean()
        if not (torch.isfinite(spread) and spread > 0):
            spread, mean = torch.ones(()), torch.zeros(())
        numbers = torch.randn(value.shape, generator=generator, dtype=torch.float64) * spread + mean
        return numbers.to(value.device, value.dtype)

    return tree_map(drawn, example)


# -- run two networks, and decide whether their outputs differ by more than rounding

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


@dataclass(frozen=True)
class Run:
    """What one run of a network gave: its flattened output, that of a second call if it keeps something from one call
    to the next, and samples of the values inside of it."""

    output: list[Any]
    again: list[Any]
    changed: bool  # whether the run changed the model, before it was restored
    watch: Watch | None


def outputs_of(model: nn.Module, inputs: Example) -> list[Any]:
    """The flattened output of a model in its present mode. Model and random generators are left as they were."""
    return run_of(model, inputs).output


def run_of(
    model: nn.Module,
    inputs: Example,
    seed: int = 0,
    dropout: bool = True,
    watch: Watch | None = None,
    restored: bool = True,
) -> Run:
    """Run a model in its present mode. Random generators, and the model if it is to be restored, are left as they were.

    Training mode is without dropout layers, and both modes are without any dropout if asked. A model that is watched,
    and that keeps something from one call to the next, is called twice.
    """
    drops = model.training and any(isinstance(m, nn.modules.dropout._DropoutNd) for _, m in named_modules(model))
    quiet = WithoutDropout() if drops or not dropout else nullcontext()
    state = ModuleState(model) if restored else ModuleState()

    def call() -> list[Any]:
        args, kwargs = as_call(copied(inputs))
        with nullcontext() if watch is None else watch.of(model):
            return flattened(model(*args, **kwargs))

    changed = True
    with generators_kept(seed), nothing_compiled(), quiet:
        try:
            output = call()
            changed = state.changed()  # the hooks of the watch are gone
            again = call() if changed and watch is not None and not model.training else []
            return Run(output, again, changed, watch)
        finally:
            if changed:
                state.restore()


# -- whether two networks differ by more than rounding


def precision_of(model: nn.Module) -> torch.dtype:
    """The coarsest floating-point type of the model's parameters."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


def difference(
    pruned: nn.Module,
    whole: nn.Module,
    inputs: Example,
    inside: Inside | None = None,
    dropout: bool = True,
    want: Run | None = None,
) -> str | None:
    """How the outputs of two networks in their present modes differ, in words; None if only by rounding. With
    `inside`, also how values inside of them differ. `want` is a run of `whole`, if there has been one.

    Raises NotRun if `whole` itself does not run on these inputs.
    """

    def run(model: nn.Module, numbers: Example, seed: int = 0, against: Run | None = None) -> Run:
        other = None if against is None else against.watch
        watch = None if inside is None else Watch(inside, model is pruned or model is finer, against=other)
        # It has the same code: it changes itself if the other network does.
        restored = against is None or against.changed
        try:
            return run_of(model, numbers, seed, dropout, watch, restored)
        except Exception as error:
            if model is not pruned:
                raise
            where = f" in {watch.running[-1]}" if watch is not None and watch.running else ""
            raise _Fails(f"it fails with {said(error)}{where}") from error

    finer: nn.Module | None = None
    try:
        want = want or run(whole, inputs)
    except Exception as error:
        raise NotRun(said(error)) from error
    try:
        got = run(pruned, inputs, against=want)
    except _Fails as error:
        return str(error)
    if got.watch is not None and got.watch.foreign:
        return "it uses a tensor of the original network, as a function does that was patched into the original"
    largest = _apart(got, want)
    # Training mode magnifies rounding: its batch norms divide by the spread of a few values.
    close = _CLOSE.get(precision_of(whole), -1.0) * (10 if whole.training else 1)
    if largest <= close:
        return None
    # In float64 rounding is too small to be taken for a difference. A forward that insists on a coarser type is judged
    # in that type.
    noise = float(torch.finfo(precision_of(whole)).eps)  # the rounding of weights
    finer, exact = (copy_sharing(model).double() for model in (pruned, whole))
    numbers = tree_map(_in_double, inputs)
    try:
        output = run(exact, numbers)
        remaining = _apart(run(finer, numbers, against=output), output)
        noise = min(noise, torch.finfo(torch.float32).eps)
    except Exception:  # noqa: BLE001  forward mixes types
        exact, numbers, remaining = copy_sharing(whole), inputs, largest
        output = run(exact, numbers)
    if remaining <= _SAME:
        return None
    again = run(whole, inputs, 1)
    if _apart(again, want) > 0.0:
        if _outputs_apart(again, want) == 0.0:  # only values inside are random, or memory that nobody has written yet
            return difference(pruned, whole, inputs, None, dropout)
        return difference(pruned, whole, inputs, inside, dropout=False) if dropout else RANDOM
    if math.isfinite(remaining):
        _add_noise(exact, noise)
        moved = _apart(run(exact, numbers), output)
        if math.isfinite(moved) and remaining <= _MARGIN * moved:
            return None
    rounding, where = float(torch.finfo(precision_of(whole)).eps) ** 0.5, ""
    if got.watch is not None and want.watch is not None:
        where = next((f", first at {place}" for place, d in got.watch.distances(want.watch) if not d <= rounding), "")
    outputs = _outputs_apart(got, want)
    if where and outputs <= close:
        return f"values inside it differ by {largest:.2g} of their size, though its outputs do not{where}"
    if math.isinf(outputs):
        return f"its outputs have another shape, type or structure{where}"
    return f"its outputs differ by {outputs:.2g} of their size{where}"


def _apart(got: Run, want: Run) -> float:
    """How far two runs are apart, in their outputs and inside."""
    watched = got.watch is not None and want.watch is not None
    places = [apart for _, apart in got.watch.distances(want.watch)] if watched else []  # type: ignore[union-attr,arg-type]
    return max([_outputs_apart(got, want), *places])


def _outputs_apart(got: Run, want: Run) -> float:
    return distance([*got.output, *got.again], [*want.output, *want.again])


class _Fails(Exception):
    """The pruned network does not run."""


def _in_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _add_noise(model: nn.Module, noise: float) -> None:
    """Round each weight: a network may magnify rounding, and this shows how much."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
            parameter.data.mul_((1 + noise * drawn).to(parameter.device, parameter.dtype))


def said(error: BaseException) -> str:
    """The class and the first line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"


@contextmanager
def in_mode(model: nn.Module, mode: str) -> Iterator[None]:
    """Inside the block the model is in "eval" or "training" mode, or in its "own", without gradients unless the mode
    says so ("eval with gradients")."""
    plain = mode.removesuffix(WITH_GRADIENTS)
    state = module_state_kept(model, weights=True) if overrides_train(model) else nullcontext()
    with state, nullcontext() if plain == "own" else evaluating(model):
        if plain == "training":
            model.train()
        with torch.set_grad_enabled(mode != plain):
            yield
