"""What happens inside of a network while it runs: labels, masks and clamped numbers at its end may hide differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from prunus.graph.selection import InputMask
from prunus.graph.traced import FUNCTIONS, channel_dim, named_modules
from prunus.graph.units import Indices
from prunus.util.state import has_own_code

Sample: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_POSITIONS = 8  # along each axis that carries no channels
_UNWRITTEN = frozenset(("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"))
_CALLED = frozenset((*FUNCTIONS, torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d))  # by layers
_NUMPY = frozenset((torch.float32, torch.float64))
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
        own_affair: modules with a user-provided rule, and norms over channels: only what they return is compared.
        functions: whether results of functions are compared too: a threshold may hide from layers what came before.
    """

    kept: Mapping[str, tuple[Indices | None, Indices | None]]
    foreign: Callable[[Tensor], bool]
    own_affair: Set[str] = frozenset()
    functions: bool = True


@dataclass(slots=True)
class _Noted:
    """A sample of a value: the layer or function and those around it, for messages; the whole shape of a function's
    result, or that of a layer's sample; the sample."""

    where: tuple[Any, ...]
    shape: tuple[int, ...]
    sample: Sample


@dataclass(slots=True)
class _Plain:
    """A layer with PyTorch's own code: it calls one function, on its input and its weight. Its channels that the pruned
    one has, of the input and of the output."""

    name: str
    module: nn.Module
    weight: Tensor
    inputs: Indices | None
    outputs: Indices | None


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
    plain: dict[int, _Plain] = field(default_factory=dict)  # by the id of their weight
    blocks: dict[Any, tuple[Sample, int]] = field(default_factory=dict)  # type -> memory, and how full it is
    against: Watch | None = None  # the run that is compared with; functions whose results differ in shape are skipped
    without_dropout: bool = False  # as `WithoutDropout`: one mode takes less time than two

    def __post_init__(self) -> None:
        super().__init__()

    @contextmanager
    def of(self, model: nn.Module) -> Iterator[None]:
        """Inside the block, the calls of the model's layers and functions are watched."""

        def entering(name: str, kept: Indices | None) -> Callable[..., None]:
            place = ("the input of", name)

            def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
                self.running.append(name)
                self._note_layer(place, args[0] if args else next(iter(kwargs.values()), None), module, kept)

            return hook

        def leaving(name: str, kept: Indices | None) -> Callable[..., None]:
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
            self.plain.clear()
            for name, kept in self.inside.kept.items():
                module = modules[name] if name in modules else model.get_submodule(name)
                inputs, outputs = (None if self.pruned else k for k in kept)
                weight = module._parameters.get("weight")
                if weight is not None and id(weight) not in self.plain and not has_own_code(module):
                    self.plain[id(weight)] = _Plain(name, module, weight, inputs, outputs)  # hooks would take time
                    continue
                before = module.register_forward_pre_hook(entering(name, inputs), with_kwargs=True)
                hooks.callback(before.remove)
                hooks.callback(module.register_forward_hook(leaving(name, outputs)).remove)
            for name in self.inside.own_affair:
                module = model.get_submodule(name)
                hooks.callback(module.register_forward_pre_hook(quiet(True)).remove)
                hooks.callback(module.register_forward_hook(quiet(False)).remove)
            with self:
                yield

    def _note_layer(self, place: tuple[str, ...], value: Any, module: nn.Module, kept: Indices | None) -> None:
        """Note some positions of these channels of what enters or leaves a layer."""
        if isinstance(value, Tensor):
            with torch._C.DisableTorchFunction():
                if value.is_floating_point() and value.layout is torch.strided and not value.is_nested:
                    sample = self._sampled(value, channel_dim(module, value), kept)
                    self._add(place, _Noted(place, sample.shape, sample))

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
                    self._add(function, _Noted(what, value.shape, self._sampled(value, -1, None)))

    def _add(self, place: Any, noted: _Noted) -> None:
        number = self.met[place]
        self.values[place, number] = noted
        self.met[place] = number + 1

    def _sampled(self, value: Tensor, axis: int, kept: Indices | None) -> Sample:
        """A copy of some positions, in a large block of memory: small ones between those of the network would keep it
        from reusing its own. In numpy, which is faster for a few numbers."""
        part = _grid(value.shape, axis)
        known = value.dtype in _NUMPY and value.device.type == "cpu"
        sample: Sample = value.numpy(force=True)[part] if known else value[part].double().numpy(force=True)
        if kept is not None:
            sample = sample.take(kept, axis)
        block, used = self.blocks.get(sample.dtype, (None, 0))
        if block is None or len(block) < used + sample.size:
            block, used = np.empty(max(sample.size, _BLOCK), sample.dtype), 0
        self.blocks[sample.dtype] = block, used + sample.size
        copy = block[used : used + sample.size].reshape(sample.shape)
        copy[...] = sample
        return copy

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if self.pruned and not self.foreign:
            for value in args:
                if isinstance(value, Tensor) and self.inside.foreign(value):
                    self.foreign = True
        if self.without_dropout and func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        layer = self.plain.get(id(args[1])) if len(args) > 1 and func in _CALLED else None
        if layer is not None:
            self.running.append(layer.name)  # where it fails, if it does
            self._note_layer(("the input of", layer.name), args[0], layer.module, layer.inputs)
            result = func(*args, **kwargs) if kwargs else func(*args)
            self._note_layer((layer.name,), result, layer.module, layer.outputs)
            self.left = self.running.pop()
            return result
        result = func(*args, **kwargs) if kwargs else func(*args)
        if not isinstance(result, Tensor):
            return result
        if getattr(func, "__name__", "") in _UNWRITTEN:
            result.detach().zero_()  # whatever lies in memory is no difference
        if self.inside.functions and not self.quiet:
            self._note_function(func, result)
        return result


@lru_cache(maxsize=4096)
def _grid(shape: tuple[int, ...], axis: int) -> tuple[slice, ...]:
    """A few positions along each axis, and all along one."""
    return tuple(slice(None, None, 1 if d == axis else max(1, -(-n // _POSITIONS))) for d, n in enumerate(shape))
