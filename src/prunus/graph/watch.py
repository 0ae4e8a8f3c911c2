"""What happens inside of a network while it runs: labels, masks and clamped numbers at its end may hide differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus.graph.selection import InputMask
from prunus.graph.traced import channel_dim, named_modules
from prunus.graph.units import Indices
from prunus.util.state import has_own_code

_POSITIONS = 8  # along each axis that carries no channels
_UNWRITTEN = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
_BLOCK = 1 << 18  # numbers that are kept together
_DROPOUT_NAMES = (
    *("dropout", "dropout1d", "dropout2d", "dropout3d"),
    *("alpha_dropout", "feature_dropout", "feature_alpha_dropout"),
)
_DROPOUTS = frozenset(getattr(owner, name) for owner in (F, torch) for name in _DROPOUT_NAMES if hasattr(owner, name))


class WithoutDropout(TorchFunctionMode):
    """Dropout returns its input. Networks of other widths draw other random numbers, so they could not be compared."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Inside:
    """What of a network is compared, besides its outputs.

    Attributes:
        kept: conv or linear layer -> the channels of its input and of its output that the pruned layer has; None: all.
        foreign: whether a tensor belongs to the original network, so that the pruned one must not use it.
        user_ruled: modules with a user-provided rule: what they compute inside is their own affair.
        functions: whether results of functions are compared too: a threshold may hide from layers what came before.
    """

    kept: Mapping[str, tuple[Indices | None, Indices | None]]
    foreign: Callable[[Tensor], bool]
    user_ruled: Set[str] = frozenset()
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
    without_dropout: bool = False  # as `WithoutDropout`: one mode takes less time than two

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
            for name in self.inside.user_ruled:
                module = model.get_submodule(name)
                hooks.callback(module.register_forward_pre_hook(quiet(True)).remove)
                hooks.callback(module.register_forward_hook(quiet(False)).remove)
            with self:
                yield

    def _note_layer(self, place: tuple[str, ...], value: Any, module: nn.Module, kept: Tensor | None) -> None:
        """Note some positions of these channels of what enters or leaves a layer."""
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunction():
                if value.is_floating_point() and value.layout is torch.strided and not value.is_nested:
                    sizes, sample = self._sampled(value, channel_dim(module, value), kept)
                    self._add(place, _Noted(place, sizes, sample))

    def _note_function(self, function: Any, value: Tensor) -> None:
        """Note some positions of the result of a function, if the other run has a result of this shape there."""
        with torch._C.DisableTorchFunction():
            if value.is_floating_point() and value.layout is torch.strided and not value.is_nested:
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
            sizes = (*sizes[:axis], kept.numel(), *sizes[axis + 1 :])
        count, kind = math.prod(sizes), (value.dtype, value.device)
        block, used = self.blocks.get(kind, (None, 0))
        if block is None or block.numel() < used + count:
            with torch.inference_mode(False):
                block, used = torch.empty(max(count, _BLOCK), dtype=value.dtype, device=value.device), 0
        self.blocks[kind] = block, used + count
        copy = block.narrow(0, used, count).view(sizes)
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
        if self.without_dropout and func in _DROPOUTS:
            result = args[0] if args else kwargs["input"]
        else:
            result = func(*args, **kwargs) if kwargs else func(*args)
        if not isinstance(result, Tensor):
            return result
        if getattr(func, "__name__", "") in _UNWRITTEN:
            result.detach().zero_()  # whatever lies in memory is no difference
        if self.inside.functions and not self.quiet and not (self.running and self.running[-1] in self.plain):
            self._note_function(func, result)
        return result


@lru_cache(maxsize=4096)
def _grid(shape: tuple[int, ...], stride: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a few positions along each axis, and of all along one."""
    steps = [1 if d == axis else max(1, -(-n // _POSITIONS)) for d, n in enumerate(shape)]
    sizes = tuple(-(-n // step) for n, step in zip(shape, steps, strict=True))
    return sizes, tuple(s * step for s, step in zip(stride, steps, strict=True))
