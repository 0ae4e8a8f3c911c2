"""What happens inside of a network while it runs: labels, masks and clamped numbers at its end may hide differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus.graph.distance import tensor_distance
from prunus.graph.selection import InputMask
from prunus.graph.traced import channel_dim, named_modules
from prunus.graph.units import Indices
from prunus.util.state import has_own_code

_POSITIONS = 8  # along each axis that carries no channels
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


@dataclass(slots=True)
class _Noted:
    """A sample of a value: the layer or function and those around it, for messages; the whole shape of a function's
    result, or the shape of what a layer's sample has; the sample, in one row."""

    where: tuple[Any, ...]
    shape: tuple[int, ...]
    sample: Tensor


@dataclass
class Watch(TorchFunctionMode):
    """Notes samples of the values that enter and leave layers, and of the results of functions."""

    inside: Inside
    pruned: bool
    values: dict[tuple[Any, int], _Noted] = field(default_factory=dict)  # by place and number of the call
    met: Counter[Any] = field(default_factory=Counter)
    running: list[str] = field(default_factory=list)  # layers that were entered and not left
    left: str = "the input"  # the layer that was left last
    foreign: bool = False
    quiet: bool = False
    plain: set[str] = field(default_factory=set)  # layers with PyTorch's own code: what they call is what leaves them
    blocks: dict[Any, tuple[Tensor, int]] = field(default_factory=dict)  # type and device -> memory, and how full it is
    against: Watch | None = None  # the run that is compared with; functions whose results differ in shape are skipped

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Inside the block, the calls of the model's layers and functions are watched."""

        def entering(name: str, kept: Tensor | None) -> Callable[..., None]:
            place = ("the input of", name)

            def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
                self.running.append(name)
                self._note_layer(place, args[0] if args else next(iter(kwargs.values()), None), module, kept)

            return hook

        def leaving(name: str, kept: Tensor | None) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                self.left = self.running.pop()
                self._note_layer((name,), output, module, kept)

            return hook

        def quiet(on: bool) -> Callable[..., None]:
            return lambda module, *values: setattr(self, "quiet", on)

        modules = dict(named_modules(model))
        with ExitStack() as hooks:
            for module in modules.values():
                # Selections, which only one of the networks may have.
                if module._forward_pre_hooks and any(
                    type(h) is not InputMask for h in module._forward_pre_hooks.values()
                ):
                    hooks.callback(module.register_forward_pre_hook(quiet(True), prepend=True).remove)
                    hooks.callback(module.register_forward_pre_hook(quiet(False)).remove)
            for name, kept in self.inside.kept.items():
                module = modules[name] if name in modules else model.get_submodule(name)
                inputs, outputs = (None if self.pruned or k is None else torch.from_numpy(k) for k in kept)
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

    def _note_layer(self, place: tuple[str, ...], value: Any, module: nn.Module, kept: Tensor | None) -> None:
        """Note some positions of these channels of what enters or leaves a layer."""
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunction():
                if value.is_floating_point() and value.layout is torch.strided:
                    sizes, sample = self._sampled(value, channel_dim(module, value), kept)
                    self._add(place, _Noted(place, sizes, sample))

    def _note_function(self, function: Any, value: Any) -> None:
        """Note some positions of the result of a function, if the other run has a result of this shape there."""
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunction():
                if value.is_floating_point() and value.layout is torch.strided:
                    other = None if self.against is None else self.against.values.get((function, self.met[function]))
                    if self.against is not None and (other is None or other.shape != value.shape):
                        self.met[function] += 1
                    else:
                        where = ("in", self.running[-1]) if self.running else ("after", self.left)
                        what = (getattr(function, "__name__", function), *where)
                        self._add(function, _Noted(what, value.shape, self._sampled(value, -1, None)[1]))

    def _add(self, place: Any, noted: _Noted) -> None:
        number = self.met[place]
        self.values[place, number] = noted
        self.met[place] = number + 1

    def _sampled(self, value: Tensor, axis: int, kept: Tensor | None) -> tuple[tuple[int, ...], Tensor]:
        """The shape of a sample and a copy of it, in a large block of memory: small ones between those of the network
        would keep it from reusing its own."""
        sizes, strides = _grid(value.shape, value.stride(), axis)
        sample = value.detach().as_strided(sizes, strides)
        if kept is not None:
            sizes = (*sizes[:axis], len(kept), *sizes[axis + 1 :])
        dense, count = _contiguous(sizes)
        kind = value.dtype, value.device
        block, used = self.blocks.get(kind, (None, 0))
        if block is None or len(block) < used + count:
            with torch.inference_mode(False):
                block, used = torch.empty(max(count, _BLOCK), dtype=value.dtype, device=value.device), 0
        self.blocks[kind] = block, used + count
        copy = block.as_strided(sizes, dense, used)
        if kept is None:
            copy.copy_(sample)
        else:
            torch.index_select(sample, axis, kept.to(value.device), out=copy)
        return sizes, copy

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self.pruned and not self.foreign:
            for value in args:
                if isinstance(value, Tensor) and self.inside.foreign(value):
                    self.foreign = True
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _UNWRITTEN and isinstance(result, Tensor):
            result.detach().zero_()  # whatever lies in memory is no difference
        if self.inside.functions and not self.quiet and not (self.running and self.running[-1] in self.plain):
            self._note_function(func, result)
        return result

    def distances(self, want: Watch) -> Iterator[tuple[str, float]]:
        """How far the values of two runs are apart at each place that both have, in order.

        A function is a place if both runs call it equally often. Values of another shape have lost channels; what
        reads them tells whether they are the right ones.
        """
        pairs: list[tuple[str, Tensor, Tensor]] = []
        for (place, number), noted in self.values.items():
            other = want.values.get((place, number))
            if other is not None and other.shape == noted.shape and self.met[place] == want.met[place]:
                pairs.append((" ".join(map(str, noted.where)), noted.sample, other.sample))
        known = _distances([(got, wanted) for _, got, wanted in pairs])
        for (where, got, wanted), distance in zip(pairs, known, strict=True):
            yield where, tensor_distance(got, wanted, by_parts=False) if distance is None else distance


def _distances(pairs: list[tuple[Tensor, Tensor]]) -> list[float | None]:
    """The largest difference of each pair relative to the spread of the second, all in a few steps; None where numbers
    are not finite or do not vary."""
    kinds = {(got.dtype, want.dtype, want.device) for got, want in pairs}
    unlike = len(kinds) != 1 or not {kind for pair in kinds for kind in pair[:2]} <= {torch.float32, torch.float64}
    if unlike or not all(want.numel() for _, want in pairs):
        return [None] * len(pairs)
    lengths = torch.tensor([want.numel() for _, want in pairs], device=pairs[0][1].device)
    got, want = (torch.cat([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
    gaps = (got - want).abs_()
    if not bool(gaps.isfinite().all()) or not bool(want.isfinite().all()):
        return [None] * len(pairs)
    gap, highest = (torch.segment_reduce(numbers, "max", lengths=lengths) for numbers in (gaps, want))
    lowest, mean = (torch.segment_reduce(want, how, lengths=lengths) for how in ("min", "mean"))
    spread = torch.maximum(highest - mean, mean - lowest)
    return [apart if wide > 0 else None for apart, wide in zip((gap / spread).tolist(), spread.tolist(), strict=True)]


@lru_cache(maxsize=4096)
def _grid(shape: tuple[int, ...], stride: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a few positions along each axis, and of all along one."""
    steps = [1 if d == axis else max(1, -(-n // _POSITIONS)) for d, n in enumerate(shape)]
    sizes = tuple(-(-n // step) for n, step in zip(shape, steps, strict=True))
    return sizes, tuple(s * step for s, step in zip(stride, steps, strict=True))


@lru_cache(maxsize=4096)
def _contiguous(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The strides of a dense tensor, and how many numbers it has."""
    strides, count = [], 1
    for size in reversed(sizes):
        strides.append(count)
        count *= size
    return tuple(reversed(strides)), count
