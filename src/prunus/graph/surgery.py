"""Carry out a plan: a copy of the model with slices of its layers, or the model itself with zeros."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from prunus.errors import PlanError
from prunus.graph import layer_surgery
from prunus.graph.branches import remove_branch, zeros_like_output
from prunus.graph.numbers import set_number
from prunus.graph.plan import Plan
from prunus.graph.replay import Slices
from prunus.graph.selection import InputMask, select, unselect
from prunus.graph.traced import is_depthwise, named_modules
from prunus.graph.units import Indices, Keep
from prunus.util.state import CONTAINERS, PLAIN, nothing_compiled

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.graph.labels import Record


# How modules are copied, by default.
_COPYING = {
    name: getattr(nn.Module, name, None)
    for name in ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__slots__")
}
_HOLDERS = (list, tuple, dict)
_PARTS = frozenset(("_parameters", "_buffers", "_modules"))


def carve(graph: ChannelGraph, record: Record, slices: Slices, *, share: bool = False) -> nn.Module:
    """A copy of the model with these slices of its layers.

    Args:
        graph: the graph of the model.
        record: what the replay of the plan saw, with the selections.
        slices: what is kept of each layer.
        share: layers that are not cut share their parameters with the original.
    """
    cut = [*slices.mixing, *slices.passing]
    layers = [graph.model] if share else [graph.model.get_submodule(name) for name in cut]
    shared = [parameter for layer in layers for parameter in layer.parameters(recurse=share)]
    model = copy_sharing(graph.model, shared)  # what is cut anyway need not be copied first
    for name, selected in record.selected.items():
        if selected.everything:
            unselect(model.get_submodule(name))
        else:
            chosen = torch.from_numpy(selected.index)
            select(model.get_submodule(name), chosen, selected.dim, filled=selected.filled)
    for name, (inputs, outputs) in slices.mixing.items():
        layer_surgery.shrink_mixing(model.get_submodule(name), inputs, outputs)
    for name, (channels, width) in slices.passing.items():
        layer = model.get_submodule(name)
        if is_depthwise(layer):
            layer_surgery.shrink_depthwise(layer, channels)
        else:
            layer_surgery.shrink_channelwise(layer, channels, width)
    for name, entries in slices.parameters.items():
        layer_surgery.shrink_parameter(model, name, entries)
    for origin, number in slices.numbers.items():
        set_number(model, origin, number)
    for name in () if share else cut:  # parameters of cut layers that were not cut, such as a single slope
        for parameter, old in zip(
            model.get_submodule(name).parameters(recurse=False),
            graph.model.get_submodule(name).parameters(recurse=False),
            strict=True,
        ):
            if parameter.data_ptr() == old.data_ptr():
                parameter.data = parameter.data.clone()
    for branch in slices.removed:
        remove_branch(model, branch)
    return model


def copy_sharing(model: nn.Module, parameters: Iterable[nn.Parameter] = ()) -> nn.Module:
    """A deep copy whose parameters are new ones, but share the memory of these with the original."""
    memo: dict[int, object] = {  # tensors that were made in inference mode cannot be trained, copies can
        id(p): nn.Parameter(p.detach().clone() if p.is_inference() else p.detach(), p.requires_grad) for p in parameters
    }
    for _, module in named_modules(model):
        attributes = [value for value in module.__dict__.values() if type(value) not in PLAIN]
        held = [v for v in attributes if isinstance(v, Tensor) or (isinstance(v, _HOLDERS) and v and _may_hold(v))]
        for value in tree_leaves(held) if held else ():
            if isinstance(value, Tensor) and not value.is_leaf:  # left by a forward pass; such tensors have no copy
                memo[id(value)] = value.detach().clone()
    try:
        for _, module in reversed(named_modules(model)):  # children first, so that deepcopy finds them in the memo
            _copy_module(module, memo)
        twin = copy.deepcopy(model, memo)
        for parameter in twin.parameters():
            if not parameter.is_leaf:  # of a TorchScript module
                parameter.detach_().requires_grad_()
        return twin
    except Exception as error:  # whatever the attributes of the model raise
        raise PlanError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and pruning makes a copy. "
            "Remove the attribute that cannot be copied, or give its class a __deepcopy__."
        ) from error


def _may_hold(value: list[object] | tuple[object, ...] | dict[object, object]) -> bool:
    """Whether a value may contain tensors besides parameters and modules: not if it has plain values."""
    parts = value.values() if isinstance(value, dict) else value
    return not all(type(part) in PLAIN or isinstance(part, nn.Module) for part in parts)


def _copy_module(module: nn.Module, memo: dict[int, object]) -> None:
    """Put a copy of the module in the memo: what deepcopy makes of a class that says nothing of copies, in a third of
    the time."""
    kind = type(module)
    special = not kind.__setstate__.__module__.startswith("torch.nn.")  # torch.nn's own is for old files
    if special or id(module) in memo or any(getattr(kind, name, None) is not usual for name, usual in _COPYING.items()):
        return
    memo[id(module)] = twin = kind.__new__(kind)
    for key, value in module.__dict__.items():
        sort = type(value)
        if sort in PLAIN or (sort is tuple and PLAIN.issuperset(map(type, value))):
            twin.__dict__[key] = value
        elif sort in CONTAINERS and not value:
            twin.__dict__[key] = sort()
        elif sort is dict and key in _PARTS:
            twin.__dict__[key] = {name: copy.deepcopy(part, memo) for name, part in value.items()}
        else:
            twin.__dict__[key] = copy.deepcopy(value, memo)


# -- zeroing equals removing: dropped channels are zero where they are read


@contextmanager
def zeroed(graph: ChannelGraph, plan: Plan | Keep) -> Iterator[None]:
    """Inside the block, `graph.model` computes what the pruned model would compute.

    The channels that a reader drops are set to zero where they enter it. Of a branch that is removed, zeros are added.
    Weights are not touched.

    Args:
        graph: the graph of the model.
        plan: which channels each unit keeps.
    """
    dropped: dict[str, list[Indices]] = {}  # reader -> positions on its input axis that it no longer reads
    keep = graph.keep_of(plan)
    for name, kept in keep.items():
        unit = graph.units[name]
        gone = np.ones(unit.width, dtype=bool)
        gone[np.asarray(kept, dtype=np.int64)] = False
        for reader in unit.readers if gone.any() else ():
            dropped.setdefault(reader.module, []).append(reader.inputs[gone[reader.channels]].reshape(-1))
    hooks: list[RemovableHandle] = []
    try:
        for name, parts in dropped.items():
            mask = InputMask(torch.from_numpy(np.concatenate(parts)))
            hooks.append(graph.analysis.traced.modules[name].register_forward_pre_hook(mask, with_kwargs=True))
        ends = [graph.model.get_submodule(branch.end) for branch in graph.removed_by(keep).branches]
        hooks += [end.register_forward_hook(zeros_like_output) for end in ends]
        with nothing_compiled():  # compiled code does not see new hooks
            yield
    finally:
        for hook in hooks:
            hook.remove()
