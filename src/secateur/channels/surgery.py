"""Channels physically removed: a new, smaller model of the same class.

A plan is replayed on labels: writers emit only the channels that live on, selections let through what their reader
still reads, and the labels that then arrive at a layer say which slices of its weights stay, in which order. The
replay also proves the plan: labels that meet must still belong together, and what arrives must be what was planned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from secateur.channels import layer_surgery
from secateur.channels.graph import ChannelGraph, Keep, Liveness, Mask
from secateur.channels.label_pass import LabelPass
from secateur.channels.label_record import Mismatch, Record, Replay
from secateur.channels.labels import match, present, tensors_in
from secateur.channels.plan import Plan
from secateur.channels.rulebook import find_rule
from secateur.channels.rules import is_depthwise
from secateur.channels.selection import select, selection_of, unselect
from secateur.channels.units import Indices, Unit
from secateur.errors import PlanError


def prune(graph: ChannelGraph, plan: Plan) -> nn.Module:
    """A new model of the same class without the channels that the plan drops; `graph.model` is untouched.

    Where a stream is read in part, the reader (or the batch norm in front of it, if that serves no one else) selects
    its channels. Names of the surviving parameters are unchanged.
    """
    record, slices = _carried_out(graph, graph.keep_of(plan))
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


def check_plan(graph: ChannelGraph, keep: Keep) -> None:
    """Raise PlanError unless the network can carry out what is to be kept."""
    _carried_out(graph, keep)


def _carried_out(graph: ChannelGraph, keep: Keep) -> tuple[Record, _Slices]:
    try:
        return _replay(graph, keep)
    except Mismatch as error:
        where = getattr(error.node.target, "__name__", str(error.node.target))
        raise PlanError(
            f"the network cannot carry this plan out at {where}: {error}. Units that are cut down to a single "
            "channel are the usual cause; keep two."
        ) from error


def _copy_except(model: nn.Module, names: list[str]) -> nn.Module:
    """A deep copy in which the tensors of these modules are still the original's: they are about to be replaced."""
    memo: dict[int, object] = {}
    for name in names:
        for parameter in model.get_submodule(name).parameters(recurse=False):
            memo[id(parameter)] = parameter
    return copy.deepcopy(model, memo)


def _own_parameters(model: nn.Module, original: nn.Module, names: list[str]) -> None:
    """Copy what no cut has replaced, so that the new model shares nothing with the original."""
    for name in names:
        layer, old = model.get_submodule(name), original.get_submodule(name)
        for key, parameter in layer._parameters.items():
            if parameter is not None and parameter is old._parameters[key]:
                layer._parameters[key] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


class _Slices:
    """What stays of each layer; layers that keep everything in its order are not listed."""

    def __init__(self) -> None:
        self.mixing: dict[str, tuple[Indices, Indices]] = {}
        self.passing: dict[str, tuple[Indices, int]] = {}
        self.parameters: dict[str, Indices] = {}


def _replay(graph: ChannelGraph, keep: Keep) -> tuple[Record, _Slices]:
    """Run the labels of what the plan leaves through the network; raises Mismatch where they do not fit."""
    found = graph.found
    live = graph.liveness(keep)
    emit = {}
    for name, labels in {**found.record.writes, **found.record.parameters}.items():
        emit[name] = torch.from_numpy(labels[live.alive[found.of_label[labels]]])
    replay = Replay(emit, _wanted(graph, live), found.record)
    record = LabelPass(found.traced, replay, find_rule, found.opaque).run()
    for a, b, _, node in record.unions:
        if not np.array_equal(found.of_label[a], found.of_label[b]):
            raise Mismatch(node, "channels meet that do not belong together")
    return record, _slices(graph, live, record)


def _wanted(graph: ChannelGraph, live: Liveness) -> dict[str, Indices]:
    """Module that selects -> the labels that it hands on, for selections that are there and for those to come."""
    found = graph.found
    modules = {graph.selections[reader]: reader for reader in live.read}
    for name in found.traced.calls:
        if selection_of(found.traced.modules[name]) is not None:
            modules.setdefault(name, graph.selections_by_member.get(name, name))
    wanted = {}
    for module, reader in modules.items():
        before = _arriving(graph, module)
        mask = live.read.get(reader, live.alive)
        wanted[module] = before[(before < 0) | mask[found.of_label[np.maximum(before, 0)]]]
    return wanted


def _arriving(graph: ChannelGraph, module: str) -> Indices:
    """Labels that the module works on in the unpruned network, behind a selection of its own."""
    found = graph.found
    for vectors in (found.record.reads, found.record.passes):
        if module in vectors:
            return vectors[module]
    node = next(n for n in found.traced.graph.nodes if n.op == "call_module" and str(n.target) == module)
    labels = found.record.values[node.all_input_nodes[0].name]
    selection = selection_of(graph.model.get_submodule(module))
    vector = labels.movedim(1, 0).reshape(labels.size(1), -1)[:, 0]
    if selection is not None:
        vector = vector[selection.index.cpu()]
    return np.ascontiguousarray(vector.numpy())


def _slices(graph: ChannelGraph, live: Liveness, record: Record) -> _Slices:
    found, slices = graph.found, _Slices()
    by_name = {str(n.target): n for n in found.traced.graph.nodes if n.op in ("call_module", "get_attr")}

    def kept(name: str, before: Mapping[str, Indices], after: Mapping[str, Indices], mask: Mask | None) -> Indices:
        index = match(before[name], after[name])
        if index is None:
            raise Mismatch(by_name[name], f"channels arrive at {name} that it never read")
        if mask is not None:
            stay = (before[name] < 0) | mask[found.of_label[np.maximum(before[name], 0)]]
            if int(stay.sum()) != len(index):
                raise Mismatch(by_name[name], f"{len(index)} channels arrive at {name}, {int(stay.sum())} were planned")
        return index

    old = found.record
    for name in old.reads:
        inputs = kept(name, old.reads, record.reads, live.read.get(name, live.alive))
        outputs = kept(name, old.writes, record.writes, live.alive)
        if not (_all(inputs, old.reads[name]) and _all(outputs, old.writes[name])):
            slices.mixing[name] = inputs, outputs
    for name in old.passes:
        channels = kept(name, old.passes, record.passes, None)
        if not _all(channels, old.passes[name]):
            slices.passing[name] = channels, len(old.passes[name])
    for name in old.parameters:
        index = kept(name, old.parameters, record.parameters, live.alive)
        if not _all(index, old.parameters[name]):
            slices.parameters[name] = index
    return slices


def _all(index: Indices, before: Indices) -> bool:
    return len(index) == len(before) and bool((index == np.arange(len(before))).all())


# ------------------------------------------------------------------------------------------------ proof


def prove(graph: ChannelGraph) -> ChannelGraph:
    """Try a plan that takes something from every unit; what the network cannot carry out is held, with the reason."""
    for _ in range(1000):
        if not graph.units or not graph.found.depends_on_widths:
            return graph
        try:
            uneven = any(unit.granule > 1 for unit in graph.units.values())
            for stagger in (0, 1) if uneven else (0,):
                _replay(graph, {name: _probe(unit, stagger) for name, unit in graph.units.items()})
        except Mismatch as error:
            graph = _hold(graph, error)
        else:
            return graph
    raise PlanError("the channels of this network cannot be told apart")  # pragma: no cover


def _probe(unit: Unit, stagger: int) -> list[int]:
    """Drop half of each block: the first half, which shifts everything behind it, or another half in each block."""
    kept = []
    for block in range(unit.granule):
        inside = np.roll(np.flatnonzero(unit.blocks == block), -stagger * block)
        kept += inside[len(inside) // 2 :].tolist()
    return sorted(kept)


def _hold(graph: ChannelGraph, error: Mismatch) -> ChannelGraph:
    """Hold the channels that meet at the node where the replay failed."""
    found = graph.found
    labels = [
        present(t) for n in [error.node, *error.node.all_input_nodes] for t in tensors_in(found.record.values[n.name])
    ]
    channels = np.unique(found.of_label[np.concatenate([np.zeros(0, np.int64), *labels])])
    units = [name for name, numbers in graph.channels_of.items() if np.isin(numbers, channels).any()]
    if not units:
        units = list(graph.units)
    reason = f"{error.node.target} does not work with fewer channels ({error})"
    held = dict(found.held)
    for name in units:
        held |= {int(c): reason for c in graph.channels_of[name] if int(c) not in held}
    return ChannelGraph(replace(found, held=held), graph.example, graph.streams)
