"""Run two networks on the same input, and decide whether their outputs differ by more than rounding."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.surgery import copy_sharing
from prunus.graph.traced import Example, as_call, channel_dim, named_modules
from prunus.graph.units import Indices
from prunus.util.state import (
    ModuleState,
    evaluating,
    generators_kept,
    has_own_code,
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


# -- the values in a network's output, whatever its structure, and how far two outputs are apart

_DEPTH = 12  # how deep objects other than containers are followed
_MANY = 16  # numbers that tell how much a part of a tensor varies


def flattened(output: Any, depth: int = 0, around: tuple[int, ...] = ()) -> list[Any]:
    """Copies of all tensors, and all numbers and strings, of an output, in a fixed order.

    Follows tuples, lists, dicts, dataclasses and other objects with attributes.
    """
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
        gap, mean = (got - want).abs_().amax().item(), want.mean().item()
        lowest, highest = (end.item() for end in torch.aminmax(want))
        spread = max(highest - mean, mean - lowest)
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


def outputs_of(
    model: nn.Module, inputs: Example, seed: int = 0, dropout: bool = True, watch: Watch | None = None
) -> list[Any]:
    """The flattened output of a model in its present mode. Model and random generators are left as they were.

    Training mode is without dropout layers, and both modes are without any dropout if asked. A model that is watched,
    and that keeps something from one call to the next, is called twice.
    """
    drops = model.training and any(isinstance(m, nn.modules.dropout._DropoutNd) for _, m in named_modules(model))
    quiet = WithoutDropout() if drops or not dropout else nullcontext()
    state = ModuleState(model)

    def call() -> list[Any]:
        args, kwargs = as_call(copied(inputs))
        with nullcontext() if watch is None else watch.of(model):
            return flattened(model(*args, **kwargs))

    changed = True
    with generators_kept(seed), nothing_compiled(), quiet:
        try:
            output = call()
            changed = state.changed()  # the hooks of the watch are gone
            if changed and watch is not None and not model.training:
                output += call()
            return output
        finally:
            if changed:
                state.restore()


# -- what happens inside of a network: labels, masks and clamped numbers at its end may hide differences

_POSITIONS = 8  # along each axis that carries no channels, of values inside a network
_UNWRITTEN = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
_BLOCK = 1 << 18  # numbers that are kept together


@dataclass(frozen=True)
class Inside:
    """What of a network is compared, besides its outputs.

    Attributes:
        kept: conv or linear layer -> the channels of its input and of its output that the pruned layer has; None: all.
        foreign: whether a tensor belongs to the original network, so that the pruned one must not use it.
        told: modules with a user-provided rule: what they compute inside is their own affair.
        functions: whether results of functions are compared too: a threshold may hide from layers what came before.
    """

    kept: Mapping[str, tuple[Indices | None, Indices | None]]
    foreign: Callable[[Tensor], bool]
    told: Set[str] = frozenset()
    functions: bool = True


@dataclass
class Watch(TorchFunctionMode):
    """Notes samples of the values that enter and leave layers, and of the results of functions."""

    inside: Inside
    pruned: bool
    values: dict[tuple[Any, int], tuple[str, torch.Size, Tensor]] = field(default_factory=dict)  # by place and number
    met: Counter[Any] = field(default_factory=Counter)
    running: list[str] = field(default_factory=list)  # layers that were entered and not left
    left: str = "the input"  # the layer that was left last
    foreign: bool = False
    quiet: bool = False
    plain: set[str] = field(default_factory=set)  # layers with PyTorch's own code: what they call is what leaves them
    blocks: dict[Any, Tensor] = field(default_factory=dict)  # type and device -> memory for samples
    against: Watch | None = None  # the run that is compared with; functions whose results differ in shape are skipped

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Inside the block, the calls of the model's layers and functions are watched."""

        def entering(name: str, kept: Indices | None) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
                self.running.append(name)
                self._note(f"the input of {name}", next(iter((*args, *kwargs.values())), None), module, kept)

            return hook

        def leaving(name: str, kept: Indices | None) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                self.left = self.running.pop()
                self._note(name, output, module, kept)

            return hook

        def quiet(on: bool) -> Callable[..., None]:
            return lambda module, *values: setattr(self, "quiet", on)

        with ExitStack() as hooks:
            for _, module in named_modules(model):
                if module._forward_pre_hooks:  # selections and masks, which only one of the networks may have
                    hooks.callback(module.register_forward_pre_hook(quiet(True), prepend=True).remove)
                    hooks.callback(module.register_forward_pre_hook(quiet(False)).remove)
            for name, (inputs, outputs) in self.inside.kept.items():
                module = model.get_submodule(name)
                inputs, outputs = (None, None) if self.pruned else (inputs, outputs)
                if not has_own_code(module):
                    self.plain.add(name)
                before = module.register_forward_pre_hook(entering(name, inputs), with_kwargs=True)
                hooks.callback(before.remove)
                hooks.callback(module.register_forward_hook(leaving(name, outputs)).remove)
            for name in self.inside.told:
                module = model.get_submodule(name)
                hooks.callback(module.register_forward_pre_hook(quiet(True)).remove)
                hooks.callback(module.register_forward_hook(quiet(False)).remove)
            with self:
                yield

    def _note(self, place: Any, value: Any, module: nn.Module | None = None, kept: Indices | None = None) -> None:
        if not isinstance(value, Tensor):
            return
        with torch._C.DisableTorchFunction():
            if not value.is_floating_point() or value.layout != torch.strided:
                return
            number = self.met[place]
            self.met[place] += 1
            shape, where = value.shape, place
            if module is None:
                if self.against is not None and self.against.shape_at(place, number) != shape:
                    return
                name = getattr(place, "__name__", str(place))
                where = f"{name} in {self.running[-1]}" if self.running else f"{name} after {self.left}"
            axis = -1 if module is None else channel_dim(module, value)
            few = tuple(slice(None, None, 1 if d == axis else -(-n // _POSITIONS)) for d, n in enumerate(shape))
            sample = value.detach()[few]
            if kept is not None:
                sample = sample.index_select(axis, torch.from_numpy(kept).to(value.device))
            # The shape of a function's result tells whether they compare; that of a layer's, after its channels are
            # selected.
            self.values[place, number] = where, shape if module is None else sample.shape, self._stored(sample)

    def _stored(self, sample: Tensor) -> Tensor:
        """A copy in a large block of memory: small ones between those of the network would keep it from reusing its
        own."""
        kind, count = (sample.dtype, sample.device), sample.numel()
        block = self.blocks.get(kind)
        if block is None or len(block) < count:
            block = torch.empty(max(count, _BLOCK), dtype=sample.dtype, device=sample.device)
        self.blocks[kind] = block[count:]
        return block[:count].view(sample.shape).copy_(sample)

    def shape_at(self, place: Any, number: int) -> torch.Size | None:
        """The shape of the value that was noted here."""
        found = self.values.get((place, number))
        return None if found is None else found[1]

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self.pruned and not self.foreign:
            self.foreign = any(isinstance(value, Tensor) and self.inside.foreign(value) for value in args)
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _UNWRITTEN and isinstance(result, Tensor):
            result.detach().zero_()  # whatever lies in memory is no difference
        if self.inside.functions and not self.quiet and not (self.running and self.running[-1] in self.plain):
            self._note(func, result)
        return result

    def distances(self, want: Watch) -> Iterator[tuple[str, float]]:
        """How far the values of two runs are apart at each place that both have, in order.

        A function is a place if both runs call it equally often. Values of another shape have lost channels; what
        reads them tells whether they are the right ones.
        """
        for (place, number), (where, shape, got) in self.values.items():
            _, other_shape, other = want.values.get((place, number), ("", None, got))
            if other_shape == shape and self.met[place] == want.met[place]:
                yield where, tensor_distance(got, other, by_parts=False)


def precision_of(model: nn.Module) -> torch.dtype:
    """The coarsest floating-point type of the model's parameters."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return max(kinds, key=lambda kind: torch.finfo(kind).eps, default=torch.float32)


def difference(
    pruned: nn.Module, whole: nn.Module, inputs: Example, inside: Inside | None = None, dropout: bool = True
) -> str | None:
    """How the outputs of two networks in their present modes differ, in words; None if only by rounding. With
    `inside`, also how values inside of them differ.

    Raises NotRun if `whole` itself does not run on these inputs.
    """

    def run(
        model: nn.Module, numbers: Example, seed: int = 0, against: Watch | None = None
    ) -> tuple[list[Any], Watch | None]:
        watch = None if inside is None else Watch(inside, model is pruned or model is finer, against=against)
        try:
            return outputs_of(model, numbers, seed, dropout, watch), watch
        except Exception as error:
            if model is not pruned:
                raise
            where = f" in {watch.running[-1]}" if watch is not None and watch.running else ""
            raise _Fails(f"it fails with {said(error)}{where}") from error

    def apart(got: tuple[list[Any], Watch | None], want: tuple[list[Any], Watch | None]) -> float:
        places = [] if got[1] is None or want[1] is None else [d for _, d in got[1].distances(want[1])]
        return max([distance(got[0], want[0]), *places])

    finer: nn.Module | None = None
    try:
        want = run(whole, inputs)
    except Exception as error:
        raise NotRun(said(error)) from error
    try:
        got = run(pruned, inputs, against=want[1])
    except _Fails as error:
        return str(error)
    if got[1] is not None and got[1].foreign:
        return "it uses a tensor of the original network, as a function does that was patched into the original"
    largest = apart(got, want)
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
        remaining = apart(run(finer, numbers, against=output[1]), output)
        noise = min(noise, torch.finfo(torch.float32).eps)
    except Exception:  # noqa: BLE001  forward mixes types
        exact, numbers, remaining = copy_sharing(whole), inputs, largest
        output = run(exact, numbers)
    if remaining <= _SAME:
        return None
    again = run(whole, inputs, 1)
    if apart(again, want) > 0.0:
        if distance(again[0], want[0]) == 0.0:  # only values inside are random, or memory that nobody has written yet
            return difference(pruned, whole, inputs, None, dropout)
        return difference(pruned, whole, inputs, inside, dropout=False) if dropout else RANDOM
    if math.isfinite(remaining):
        _add_noise(exact, noise)
        moved = apart(run(exact, numbers), output)
        if math.isfinite(moved) and remaining <= _MARGIN * moved:
            return None
    where = ""
    if got[1] is not None and want[1] is not None:
        rounding = float(torch.finfo(precision_of(whole)).eps) ** 0.5
        where = next((f", first at {place}" for place, d in got[1].distances(want[1]) if not d <= rounding), "")
    outputs = distance(got[0], want[0])
    if where and outputs <= close:
        return f"values inside it differ by {largest:.2g} of their size, though its outputs do not{where}"
    if math.isinf(outputs):
        return f"its outputs have another shape, type or structure{where}"
    return f"its outputs differ by {outputs:.2g} of their size{where}"


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
