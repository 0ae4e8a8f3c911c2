"""Carry out what a replay found: a copy of the model with slices of its layers."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from secateur.base.module_state import CONTAINERS, PLAIN
from secateur.channels import layer_surgery
from secateur.channels.layer_kinds import is_depthwise
from secateur.channels.replay import Slices
from secateur.channels.selection import select, unselect
from secateur.channels.traced import named_modules
from secateur.errors import PlanError

# How modules are copied, by default.
_COPYING = {
    name: getattr(nn.Module, name, None)
    for name in ("__new__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__slots__")
}
_PARTS = frozenset(("_parameters", "_buffers", "_modules"))

if TYPE_CHECKING:
    from secateur.channels.graph import ChannelGraph
    from secateur.channels.labels.record import Record


def carve(graph: ChannelGraph, record: Record, slices: Slices, *, share: bool = False) -> nn.Module:
    """A copy of the model with these slices of its layers. With `share`, layers that are not cut share their
    parameters with the original."""
    cut = [*slices.mixing, *slices.passing]
    model = copy_sharing(graph.model, graph.model.parameters() if share else _parameters_of(graph.model, cut))
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
    for name, index in slices.parameters.items():
        layer_surgery.shrink_parameter(model, name, index)
    if not share:
        _own_parameters(model, graph.model, cut)
    return model


def _parameters_of(model: nn.Module, names: Collection[str]) -> list[nn.Parameter]:
    return [parameter for name in names for parameter in model.get_submodule(name).parameters(recurse=False)]


def copy_sharing(model: nn.Module, parameters: Iterable[nn.Parameter] = ()) -> nn.Module:
    """A deep copy that shares these parameters with the original."""
    memo: dict[int, object] = {id(parameter): parameter for parameter in parameters}
    for _, module in named_modules(model):
        for value in module.__dict__.values():
            if isinstance(value, Tensor) and not value.is_leaf:  # left by a forward pass; such tensors have no copy
                memo[id(value)] = value.detach().clone()
    try:
        for _, module in reversed(named_modules(model)):  # children first, so that deepcopy finds them in the memo
            _copy_module(module, memo)
        return copy.deepcopy(model, memo)
    except Exception as error:  # whatever the attributes of the model raise
        raise PlanError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}), and pruning makes a copy. "
            "Remove the attribute that cannot be copied, or give its class a __deepcopy__."
        ) from error


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


def _own_parameters(model: nn.Module, original: nn.Module, names: list[str]) -> None:
    """Copy parameters that were not replaced, so that the new model shares nothing with the original."""
    for name in names:
        layer, old = model.get_submodule(name), original.get_submodule(name)
        for key, parameter in layer._parameters.items():
            if parameter is not None and parameter is old._parameters[key]:
                layer._parameters[key] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
