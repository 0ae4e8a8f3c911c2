"""Run two networks on the same input, and decide whether their outputs differ by more than rounding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.surgery import copy_sharing
from prunus.graph.traced import Example, as_call, named_modules
from prunus.graph.watch import Inside, Sample, Watch, WithoutDropout
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


def few_images(example: Example, most: int) -> Example:
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


def randomised(example: Example) -> Example:
    """Normal numbers in place of those of each floating-point tensor, with the same mean and spread (1 if none)."""
    generator = torch.Generator().manual_seed(0)

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return value
        plain = value.detach().double().cpu()
        spread, mean = plain.std(correction=0), plain.mean()
        if not (torch.isfinite(spread) and spread > 0):
            spread, mean = torch.ones(()), torch.zeros(())
        numbers = torch.randn(value.shape, generator=generator, dtype=torch.float64) * spread + mean
        return torch.empty_like(value).copy_(numbers)  # in the memory format of the example

    return tree_map(drawn, example)


# -- run two networks, and decide whether their outputs differ by more than rounding

_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}  # differences that need no second look; others always do
_SAME = 1e-9  # of copies in float64
_LEAST_NOISE = 1e-13  # a sum of a thousand products in float64, in another order, differs by this share of its size
_MOVED = 0.1  # noise that moves numbers by this share of what they vary by is no measure of rounding elsewhere
_MARGIN = 30.0  # how much larger a difference by rounding may be than the one that noise in the weights makes

WITH_GRADIENTS = " with gradients"
RANDOM = "its outputs depend on random numbers, so that they cannot be compared"


class NotRun(Exception):
    """The network does not run on these inputs, pruned or not."""


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
    without_dropout = drops or not dropout
    state = ModuleState(model) if restored else ModuleState()

    def call() -> list[Any]:
        args, kwargs = as_call(copied(inputs))
        if watch is not None:
            watch.without_dropout = without_dropout
            with watch.of(model):
                return flattened(model(*args, **kwargs))
        with WithoutDropout() if without_dropout else nullcontext():
            return flattened(model(*args, **kwargs))

    changed = True
    with generators_kept(seed), nothing_compiled():
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
        small = model is pruned or model is finer
        watch = None if inside is None else Watch(inside, small, against=other)
        # It has the same code: it changes itself if the other network does.
        restored = against is None or against.changed
        try:
            with _in_other_mode(whole) if small else nullcontext():
                return run_of(model, numbers, seed, dropout, watch, restored)
        except Exception as error:
            if model is not pruned:
                raise
            where = f" in {watch.running[-1]}" if watch is not None and watch.running else ""
            raise _Fails(f"it fails with {error_text(error)}{where}") from error

    finer: nn.Module | None = None
    try:
        want = want or run(whole, inputs)
    except Exception as error:
        raise NotRun(error_text(error)) from error
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
    noise = max(float(torch.finfo(precision_of(whole)).eps), _LEAST_NOISE)  # the rounding of weights, or of sums
    finer, exact = (
        copy_sharing(model, [p for p in model.parameters() if p.dtype != torch.float64]).double()
        for model in (pruned, whole)
    )
    numbers = tree_map(lambda v: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v, inputs)
    judged = got
    try:
        output = run(exact, numbers)
        judged = run(finer, numbers, against=output)
        remaining = _apart(judged, output)
        noise = min(noise, torch.finfo(torch.float32).eps)
    except Exception:  # noqa: BLE001  forward mixes types
        exact, numbers, remaining, judged = copy_sharing(whole), inputs, largest, got
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
        if _is_rounding(judged, output, run(exact, numbers)):
            return None
    rounding = float(torch.finfo(precision_of(whole)).eps) ** 0.5
    places = (place for _, place, apart in _places_apart(got, want) if not apart <= rounding)
    where = next((f", first at {' '.join(map(str, place))}" for place in places), "")
    outputs = _outputs_apart(got, want)
    if where and outputs <= close:
        return f"values inside it differ by {largest:.2g} of their size, though its outputs do not{where}"
    if math.isinf(outputs):
        return f"its outputs have another shape, type or structure{where}"
    return f"its outputs differ by {outputs:.2g} of their size{where}"


@contextmanager
def _in_other_mode(model: nn.Module) -> Iterator[None]:
    """Inside the block, training modules of a network are in eval mode and others in training mode. So a pruned network
    shows that it asks the original for its mode, through a function that was made for the original."""
    states = [vars(module) for _, module in named_modules(model) if "training" in vars(module)]
    for state in states:
        state["training"] = not state["training"]
    try:
        yield
    finally:
        for state in states:
            state["training"] = not state["training"]


class _Fails(Exception):
    """The pruned network does not run."""


def _add_noise(model: nn.Module, noise: float) -> None:
    """Round each weight: a network may magnify rounding, and this shows how much."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 0.5
            parameter.data.mul_((1 + noise * drawn).to(parameter.device, parameter.dtype))


def error_text(error: BaseException) -> str:
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


# -- how far two runs are apart


def _apart(got: Run, want: Run) -> float:
    """How far two runs are apart, in their outputs and inside."""
    return max([_outputs_apart(got, want), *(apart for _, _, apart in _places_apart(got, want))])


def _is_rounding(got: Run, want: Run, noisy: Run) -> bool:
    """Whether two runs differ nowhere by much more than noise in the weights makes there, or before: that it moves what
    comes later is no excuse. Nor is a place where it moves nearly all, because the numbers there hardly vary."""
    moved = {key: apart for key, _, apart in _places_apart(noisy, want)}
    at_the_end, before = _outputs_apart(noisy, want), 0.0
    if not all(map(math.isfinite, (at_the_end, *moved.values()))):
        return False
    for key, _, apart in _places_apart(got, want):
        here = moved.get(key, 0.0)
        before = max(before, here if here < _MOVED else 0.0)
        if not apart <= max(_SAME, _MARGIN * max(here, before)):
            return False
    before = max([before, *(each for each in moved.values() if each < _MOVED)])
    return _outputs_apart(got, want) <= max(_SAME, _MARGIN * max(at_the_end, before))


def _outputs_apart(got: Run, want: Run) -> float:
    return distance([*got.output, *got.again], [*want.output, *want.again])


def _places_apart(got: Run, want: Run) -> list[tuple[tuple[Any, int], tuple[Any, ...], float]]:
    """How far the values of two runs are apart at each place that both have, in order: its key, words for it, and how
    far.

    A function is a place if both runs call it equally often. Values of another shape have lost channels; what reads
    them tells whether they are the right ones.
    """
    one, other = got.watch, want.watch
    if one is None or other is None:
        return []
    pairs = [
        ((place, number), noted, same)
        for (place, number), noted in one.values.items()
        if (same := other.values.get((place, number))) is not None
        and same.shape == noted.shape
        and one.met[place] == other.met[place]
    ]
    known = _at_once([(noted.sample, same.sample) for _, noted, same in pairs])
    return [(key, noted.where, apart) for (key, noted, _), apart in zip(pairs, known, strict=True)]


def _at_once(pairs: list[tuple[Sample, Sample]]) -> list[float]:
    """The largest difference of each pair relative to the spread of the second: all in a few steps if numbers are
    finite and vary."""
    distances = [-1.0] * len(pairs)
    if len({sample.dtype for pair in pairs for sample in pair}) == 1 and all(want.size for _, want in pairs):
        lengths = torch.tensor([want.size for _, want in pairs])
        got, want = (torch.from_numpy(np.concatenate([pair[side].reshape(-1) for pair in pairs])) for side in (0, 1))
        gaps = (got - want).abs_()
        if bool(gaps.isfinite().all()) and bool(want.isfinite().all()):
            gap, highest = (torch.segment_reduce(numbers, "max", lengths=lengths) for numbers in (gaps, want))
            lowest, mean = (torch.segment_reduce(want, how, lengths=lengths) for how in ("min", "mean"))
            spread = torch.maximum(highest - mean, mean - lowest)
            distances = torch.where(spread > 0, gap / spread, -1.0).tolist()
    return [
        tensor_distance(torch.from_numpy(got), torch.from_numpy(want), by_parts=False) if known < 0 else known
        for (got, want), known in zip(pairs, distances, strict=True)
    ]


# -- the values in an output, whatever its structure, and how far two outputs are apart

_DEPTH = 12  # how deep objects other than containers are followed
_MANY = 16  # numbers that tell how much a part of a tensor varies


def flattened(output: Any, depth: int = 0, around: tuple[int, ...] = ()) -> list[Any]:
    """Copies of all tensors, and all numbers and strings, of an output, in a fixed order.

    Follows tuples, lists, dicts, dataclasses and other objects with attributes.
    """
    if isinstance(output, Tensor) and output.is_nested:  # it has no shape of its own
        output = output.unbind()
    if isinstance(output, Tensor):
        return [output.detach().clone()]
    if isinstance(output, np.ndarray) and output.dtype != object:
        return [torch.tensor(output)]
    if output is None or isinstance(output, bool | int | float | complex | str):
        return [output]
    if depth > _DEPTH or id(output) in around or isinstance(output, Set | type) or callable(output):
        return []
    contained = isinstance(output, Mapping | tuple | list | np.ndarray)
    if isinstance(output, Mapping):
        parts = [*output.keys(), *output.values()]
    elif contained:
        parts = list(output)
    elif dataclasses.is_dataclass(output):
        parts = [getattr(output, field.name) for field in dataclasses.fields(output)]
    else:
        parts = list(getattr(output, "__dict__", {}).values())
    below = depth if contained else depth + 1
    return [len(parts), *(value for part in parts for value in flattened(part, below, (*around, id(output))))]


def largest_difference(got: Any, want: Any) -> float:
    """The largest difference between two outputs of any structure, relative to how much the values of each part vary.

    Rounding in float32 gives about 1e-6, in float16 or int8 1e-3 to 1e-1. Infinite if structure, shapes, whole numbers
    or positions of NaN differ. See `tensor_distance` for the parts.
    """
    return distance(flattened(got), flattened(want))


def distance(got: list[Any], want: list[Any]) -> float:
    """As `largest_difference`, of outputs that are flattened."""
    if len(got) != len(want):
        return math.inf
    largest = 0.0
    for one, other in zip(got, want, strict=True):
        if isinstance(one, float) and isinstance(other, float):
            one, other = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            largest = max(largest, tensor_distance(one, other) if one.shape == other.shape else math.inf)
        elif type(one) is not type(other) or one != other:
            return math.inf
    return largest


def tensor_distance(got: Tensor, want: Tensor, by_parts: bool = True) -> float:
    """The largest difference of two tensors of one shape, relative to how much the values vary.

    In tensors with three dimensions or more this is asked of each part along the second and the last dimension: one
    tensor may hold boxes, in pixels, and scores.
    """
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if not want.numel():
        return 0.0
    if not (want.is_floating_point() or want.is_complex()):
        return 0.0 if torch.equal(got, want) else math.inf
    if not by_parts and want.is_floating_point():  # in a few steps where all numbers are finite
        ends = *want.aminmax(), *(got - want).aminmax(), want.mean()
        lowest, highest, least, most, mean = torch.stack(ends).tolist()
        gap, spread = max(most, -least), max(highest - mean, mean - lowest)
        if math.isfinite(gap) and math.isfinite(spread) and spread > 0:
            return float(gap / spread)
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return 0.0
    difference = torch.where(same, 0, got - want).abs()
    if not bool(difference.isfinite().all()):
        return math.inf
    values = torch.where(want.isfinite(), want, 0)
    axes = {1, want.dim() - 1} if want.dim() > 2 and by_parts else set()
    parts = [(difference.movedim(axis, 0).flatten(1), values.movedim(axis, 0).flatten(1)) for axis in sorted(axes)]
    parts = [part for part in parts if part[0].size(1) >= _MANY] + [(difference.reshape(1, -1), values.reshape(1, -1))]
    return max(_relative(*part) for part in parts)


def _relative(difference: Tensor, values: Tensor) -> float:
    """The largest difference in a row, relative to the spread of the row, or to its size if it does not vary."""
    largest = difference.amax(1)
    spread = (values - values.mean(1, keepdim=True)).abs().amax(1)
    scale = torch.where(spread > 0, spread, values.abs().amax(1))
    ratio = torch.where(largest == 0, largest, largest / scale)
    return float(ratio.max().item())
