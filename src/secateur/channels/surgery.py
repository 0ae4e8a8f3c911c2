"""Remove channels: a new, smaller model of the same class."""

from __future__ import annotations

import copy

import torch
from torch import nn

from secateur.channels import layer_surgery
from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import is_depthwise
from secateur.channels.plan import Plan
from secateur.channels.replay import replay_plan
from secateur.channels.selection import select, unselect


def prune(graph: ChannelGraph, plan: Plan) -> nn.Module:
    """A new model of the same class without the channels that the plan drops. `graph.model` is not changed.

    Where a layer reads a part of a stream, the layer (or the batch norm in front of it, if no other layer uses it)
    selects its channels. The names of parameters do not change.
    """
    record, slices = replay_plan(graph, graph.keep_of(plan))
    model = _copy_except(graph.model, [*slices.mixing, *slices.passing])
    for name, selected in record.selected.items():
        if selected.everything:
            unselect(model.get_submodule(name))
        else:
            select(model.get_submodule(name), torch.from_numpy(selected.index), selected.dim)
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
    _own_parameters(model, graph.model, [*slices.mixing, *slices.passing])
    return model


def _copy_except(model: nn.Module, names: list[str]) -> nn.Module:
    """A deep copy that shares the parameters of these modules with the original, because they will be replaced."""
    memo: dict[int, object] = {}
    for name in names:
        for parameter in model.get_submodule(name).parameters(recurse=False):
            memo[id(parameter)] = parameter
    return copy.deepcopy(model, memo)


def _own_parameters(model: nn.Module, original: nn.Module, names: list[str]) -> None:
    """Copy parameters that were not replaced, so that the new model shares nothing with the original."""
    for name in names:
        layer, old = model.get_submodule(name), original.get_submodule(name)
        for key, parameter in layer._parameters.items():
            if parameter is not None and parameter is old._parameters[key]:
                layer._parameters[key] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
