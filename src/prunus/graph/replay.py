"""Replay a plan on labels: the slices of every layer that the plan leaves, and the proof that the plan fits.

Writers emit only the channels that are still alive, selections pass what their reader still reads, and the labels that
arrive at a layer give the slices of its weights to keep, in order. The replay proves the plan: labels that meet must
still belong together, and the channels that arrive must be the planned ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from prunus.errors import PlanError
from prunus.graph.cost import Liveness
from prunus.graph.discover import LabelPass
from prunus.graph.labels import GONE, Mismatch, Record, Replay, match
from prunus.graph.selection import selection_of
from prunus.graph.units import Indices, Keep, Mask

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph


@dataclass(frozen=True)
class Slices:
    """What is kept of each layer. Layers that keep everything in order are not listed."""

    mixing: dict[str, tuple[Indices, Indices]] = field(default_factory=dict)  # layer -> inputs, outputs
    passing: dict[str, tuple[Indices, int]] = field(default_factory=dict)  # layer -> channels, and how many there were
    parameters: dict[str, Indices] = field(default_factory=dict)  # bare parameter -> entries


def check_plan(graph: ChannelGraph, keep: Keep) -> None:
    """Raise PlanError unless the network can be pruned to `keep`."""
    replay_plan(graph, keep)


def replay_plan(graph: ChannelGraph, keep: Keep) -> tuple[Record, Slices]:
    """What the plan leaves of each layer. Raises PlanError if the network cannot carry it out."""
    try:
        return replay(graph, keep)
    except Mismatch as error:
        alone = [name for name, kept in keep.items() if len(kept) == graph.units[name].granule]
        advice = f" The usual cause is a unit that keeps one channel, as {alone[0]!r} does; keep two." if alone else ""
        raise PlanError(f"the network cannot be pruned like this, at {error.where}: {error}.{advice}") from error


def replay(graph: ChannelGraph, keep: Keep) -> tuple[Record, Slices]:
    """Run the labels of the channels that are left through the network. Raises Mismatch where they do not fit."""
    found = graph.analysis
    live = graph.liveness(keep)
    emit = {}
    for name, labels in {**found.record.writes, **found.record.parameters}.items():
        emit[name] = torch.from_numpy(labels[live.alive[found.of_label[labels]]])
    record = LabelPass(found.find_rule, Replay(emit, _wanted(graph, live), found.record)).run()
    for a, b, _, node in record.unions:
        if not np.array_equal(found.of_label[a], found.of_label[b]):
            raise Mismatch(node, "channels meet that do not belong together")
    return record, _slices(graph, live, record)


def _wanted(graph: ChannelGraph, live: Liveness) -> dict[str, Indices]:
    """Module that selects -> the labels that it passes on, for existing and for new selections."""
    found = graph.analysis
    readers = {graph.selections.carriers[reader]: reader for reader in live.read}
    for name, module in found.traced.modules.items():
        if selection_of(module) is not None:
            readers.setdefault(name, graph.selections.readers.get(name, name))
    whole = found.find_rule.reading_all & found.record.reads.keys()
    wanted = {name: found.record.reads[name] for name in whole}
    for name, reader in readers.items():
        if name in whole:
            continue
        before = _arriving(graph, name)
        wanted[name] = before[_stays(graph, before, live.read.get(reader, live.alive))]
    return wanted


def _stays(graph: ChannelGraph, labels: Indices, mask: Mask) -> Mask:
    """Which labels are fixed, or belong to a channel in the mask."""
    return (labels < 0) | mask[graph.analysis.of_label[np.maximum(labels, 0)]]


def _arriving(graph: ChannelGraph, module: str) -> Indices:
    """Labels that the module works on in the unpruned network, after its own selection."""
    found = graph.analysis
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


class _Matcher:
    """Compares the labels that arrive at layers in a replay with those of the unpruned network."""

    def __init__(self, graph: ChannelGraph) -> None:
        self.graph = graph
        nodes = graph.analysis.traced.graph.nodes
        traced = graph.analysis.traced
        self.nodes = {traced.layer_of(n) or str(n.target): n for n in nodes if n.op.startswith(("call", "get_attr"))}

    def kept(self, name: str, before: Indices, after: Indices, mask: Mask | None) -> Indices:
        """Positions in `before` of the labels `after`, which must be all that the mask allows."""
        index = match(before, after)
        if index is None:
            raise Mismatch(self.nodes[name], f"channels arrive at {name} that it never read")
        if mask is not None:
            planned = int(_stays(self.graph, before, mask).sum())
            if planned != len(index):
                raise Mismatch(self.nodes[name], f"{len(index)} channels arrive at {name}, {planned} were planned")
        return index

    def filled(self, name: str, before: Indices, after: Indices, mask: Mask) -> Indices:
        """All positions of `before`, which must be filled with zeros where the mask says so."""
        if not np.array_equal(after, np.where(_stays(self.graph, before, mask), before, GONE)):
            raise Mismatch(self.nodes[name], f"other channels arrive at {name} than were planned")
        return np.arange(len(before))


def _slices(graph: ChannelGraph, live: Liveness, record: Record) -> Slices:
    old, slices, matcher = graph.analysis.record, Slices(), _Matcher(graph)
    for name, read in old.reads.items():
        if name in graph.analysis.find_rule.reading_all:
            inputs = matcher.filled(name, read, record.reads[name], live.alive)
        else:
            inputs = matcher.kept(name, read, record.reads[name], live.read.get(name, live.alive))
        outputs = matcher.kept(name, old.writes[name], record.writes[name], live.alive)
        if not (_all(inputs, read) and _all(outputs, old.writes[name])):
            slices.mixing[name] = inputs, outputs
    for name, passed in old.passes.items():
        channels = matcher.kept(name, passed, record.passes[name], None)
        if not _all(channels, passed):
            slices.passing[name] = channels, len(passed)
    for name, written in old.parameters.items():
        index = matcher.kept(name, written, record.parameters[name], live.alive)
        if not _all(index, written):
            slices.parameters[name] = index
    return slices


def _all(index: Indices, before: Indices) -> bool:
    return len(index) == len(before) and bool((index == np.arange(len(before))).all())
