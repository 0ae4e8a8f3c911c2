"""The paper's channel selection layer: a layer that reads only some of the channels of a stream.

A layer whose weights depend on all of its inputs, such as a weight-standardised convolution, keeps them all. In front
of it the selection is *filled*: zeros take the places of channels that are gone.

It is a forward pre-hook on the layer, with its index in a buffer that is not saved. So the layer keeps its class,
parameters keep their names, `.to(device)`, deep copies and export work, and the plan restores the index on loading.
`print(model)` shows it behind the layer's own settings.

Some engines have no operation that selects channels, or a slow one. For them `with_convolutions` makes a copy in which
a selection is a 1x1 convolution with one-hot weights: w[j, i] = 1 if i is the channel that place j reads, otherwise 0.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunus.util.batches import call, device_of, to_device
from prunus.util.state import evaluating, generators_kept, module_state_kept

INDEX = "prunus_selection"
DIM = "prunus_selection_dim"
FILLED = "prunus_selection_filled"
WEIGHT = "prunus_selection_weight"
SHOWN = "extra_repr"


@dataclass(frozen=True)
class Selection:
    """Which channels of its input a layer reads, along `dim`. If it is filled, an index behind the last channel is a
    channel of zeros. With a weight it is a 1x1 convolution, or a linear layer if `dim` is the last one."""

    index: Tensor
    dim: int
    filled: bool = False
    weight: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        """The channels of `x` that the layer reads."""
        if self.weight is not None:
            return F.linear(x, self.weight) if self.weight.dim() == 2 else _CONVOLVE[x.dim()](x, self.weight)
        if not self.filled:
            return _selected(x, self.dim, self.index)
        zeros = torch.zeros_like(x.narrow(self.dim, 0, 1))
        return torch.cat([x, zeros], self.dim).index_select(self.dim, self.index)

    def __str__(self) -> str:
        """As `print(model)` shows it: channels=[0, 1, 5, 7], or the first and last of many."""
        if self.index.is_meta:
            return f"channels=[{len(self.index)} of them]"
        numbers = [str(number) for number in self.index.tolist()]
        if self.filled:
            numbers = ["zeros" if number == str(int(self.index.max())) else number for number in numbers]
        shown = numbers if len(numbers) <= 8 else [*numbers[:4], "...", numbers[-1]]
        return f"channels=[{', '.join(shown)}]" + (f" ({len(numbers)})" if shown is not numbers else "")


def selection_of(module: nn.Module) -> Selection | None:
    """The selection in front of `module`, if it has one."""
    if INDEX not in module._buffers:  # of a TorchScript module, this is no dict
        return None
    index: Tensor = module._buffers[INDEX]  # type: ignore[assignment]
    return Selection(index, int(getattr(module, DIM)), hasattr(module, FILLED), module._buffers.get(WEIGHT))


def select(module: nn.Module, index: Tensor, dim: int, *, filled: bool = False) -> None:
    """Make `module` read only `index` of its input along `dim`. Replaces an existing selection."""
    had = selection_of(module) is not None
    device = next((t.device for t in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
    module.register_buffer(INDEX, index.to(device), persistent=False)
    setattr(module, DIM, dim)
    if filled:
        setattr(module, FILLED, True)
    if not had:
        module.register_forward_pre_hook(_take)
    if SHOWN not in vars(module):
        setattr(module, SHOWN, _Shown(module))


def unselect(module: nn.Module) -> None:
    """Remove the selection in front of `module`, if it has one."""
    if selection_of(module) is None:
        return
    delattr(module, INDEX)
    delattr(module, DIM)
    module._buffers.pop(WEIGHT, None)
    if hasattr(module, FILLED):
        delattr(module, FILLED)
    if isinstance(vars(module).get(SHOWN), _Shown):
        delattr(module, SHOWN)
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _take:
            del module._forward_pre_hooks[key]


@contextmanager
def without_selection(module: nn.Module) -> Iterator[None]:
    """Inside the block, a module reads all of its input."""
    hooks = module._forward_pre_hooks
    before = dict(hooks) if selection_of(module) is not None else {}
    for key in [key for key, hook in before.items() if hook is _take]:
        del hooks[key]
    try:
        yield
    finally:
        if before:
            hooks.clear()
            hooks.update(before)


_CONVOLVE: dict[int, Any] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}  # dimensions of the input ->


def with_convolutions(model: nn.Module, example: Any) -> nn.Module:
    """A copy of `model`, in eval mode, in which selections are 1x1 convolutions or linear layers with one-hot weights.

    It computes the same, unless channels that are not selected hold infinite numbers. A model without selections is
    returned as it is.
    """
    if all(selection_of(module) is None for module in model.modules()):
        return model
    copied = copy.deepcopy(model)
    read: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        read[module] = args[0]

    found = [module for module in copied.modules() if selection_of(module) is not None]
    handles = [module.register_forward_pre_hook(note, prepend=True) for module in found]
    with evaluating(copied), generators_kept(), module_state_kept(copied), torch.no_grad():
        call(copied, to_device(example, device_of(copied)))
    for handle in handles:
        handle.remove()
    for module, x in read.items():
        selection = selection_of(module)
        assert selection is not None
        dim, width = selection.dim % x.dim(), x.size(selection.dim)
        weight = torch.zeros(len(selection.index), width + 1, dtype=x.dtype, device=x.device)
        weight[torch.arange(len(weight)), selection.index.to(x.device)] = 1  # the last column is that of zeros
        if dim == x.dim() - 1:
            module.register_buffer(WEIGHT, weight[:, :width].contiguous(), persistent=False)
        elif dim == 1 and x.dim() in _CONVOLVE:
            ones = [1] * (x.dim() - 2)
            module.register_buffer(WEIGHT, weight[:, :width].reshape(-1, width, *ones).contiguous(), persistent=False)
    return copied.eval()


def _take(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    selection = selection_of(module)
    return args if selection is None else (selection.of(args[0]), *args[1:])


class _Shown:
    """The `extra_repr` of a layer with a selection. It does not keep the layer alive; a copy is that of the copy."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)

    def __call__(self) -> str:
        module = self._module()
        if module is None:
            return ""
        return ", ".join(filter(None, [type(module).extra_repr(module), str(selection_of(module) or "")]))

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shown:
        module: Any = self._module()
        return _Shown(memo.get(id(module), module))

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shown, (self._module(),)


def _selected(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """`x.index_select(dim, index)`, but fast on images in channels_last, and without losing their layout."""
    if dim != 1 or x.dim() != 4 or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return x.index_select(dim, index)
    rows = x.permute(0, 2, 3, 1).flatten(0, 2)  # [N H W, C] no copy
    return rows.index_select(1, index).view(x.size(0), x.size(2), x.size(3), len(index)).permute(0, 3, 1, 2)


# -- zeros in the place of channels that a layer does not read, for comparison


class InputMask:
    """A forward pre-hook that sets these channels of a layer's input to zero."""

    def __init__(self, channels: Tensor, axis: int | None = None) -> None:
        """axis: of the channels, counted from the end if it is negative; None: that of a conv or linear layer."""
        self.channels, self.axis = channels, axis

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if args:
            return (self.of(layer, args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: self.of(layer, kwargs[name])}

    def of(self, layer: nn.Module, x: Tensor) -> Tensor:
        """`x` with zeros in these channels. Modes that watch the network's functions do not see it."""
        axis = self.axis
        if axis is None:
            weight: Tensor = layer.weight  # type: ignore[assignment]
            axis = x.dim() - weight.dim() + 1
        with torch._C.DisableTorchFunction() if type(x) is Tensor else nullcontext():
            return x.index_fill(axis, self.channels.to(x.device), 0)


class OutputMask:
    """A forward hook that sets these channels of a layer's output to zero."""

    def __init__(self, channels: Tensor) -> None:
        self.channels = channels

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        with torch._C.DisableTorchFunction() if type(output) is Tensor else nullcontext():
            return output.index_fill(output.dim() - weight.dim() + 1, self.channels.to(output.device), 0)
