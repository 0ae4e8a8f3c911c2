"""Replay a plan on labels: the slices of every layer that the plan leaves, and the proof that the plan fits.

Writers emit only the channels that are still alive, selections pass what their reader still reads, and the labels that
arrive at a layer give the slices of its weights to keep, in order. The replay proves the plan: labels that meet must
still belong together, and the channels that arrive must be the planned ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx

from prunus.errors import PlanError
from prunus.graph.branches import Branch, Removed
from prunus.graph.cost import Liveness
from prunus.graph.discover import LabelPass
from prunus.graph.labels import GONE, Mismatch, Record, Replay, entries_of, match, pick, varying
from prunus.graph.own_widths import WIDTH
from prunus.graph.proxies import Origin
from prunus.graph.rules.rulebook import RuleFinder
from prunus.graph.selection import selection_of
from prunus.graph.units import Indices, Keep, Mask

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph


@dataclass(frozen=True)
class Slices:
    """What is kept of each layer. Layers that keep everything in order are not listed."""

    mixing: dict[str, tuple[Indices, Indices]] = field(default_factory=dict)  # layer -> inputs, outputs
    passing: dict[str, tuple[Indices, int]] = field(default_factory=dict)  # layer -> channels, and how many there were
    parameters: dict[str, dict[int, Indices]] = field(default_factory=dict)  # standalone parameter -> axis -> entries
    numbers: dict[Origin, int] = field(default_factory=dict)  # attribute of a module that counts channels -> new value
    scales: dict[tuple[str, str], float] = field(default_factory=dict)  # attribute of an attention -> its scale
    removed: tuple[Branch, ...] = ()  # branches that are gone


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
    analysis, live = graph.analysis, graph.liveness(keep)
    emit = {}
    for name, labels in {**analysis.record.writes, **analysis.record.parameters}.items():
        emit[name] = torch.from_numpy(labels[live.alive[analysis.of_label[labels]]])
    numbers = {
        origin: int(_stays(graph, vector, live.alive).sum()) for origin, vector in analysis.record.numbers.items()
    }
    plan = Replay(emit, _wanted(graph, live), analysis.record, numbers)
    record = _Pass(analysis.find_rule, plan, live.removed).run()
    for a, b, _, node in record.unions:
        if not np.array_equal(analysis.of_label[a], analysis.of_label[b]):
            raise Mismatch(node, "channels meet that do not belong together")
    return record, _slices(graph, live, record, numbers)


class _Pass(LabelPass):
    """A label pass without the calls of removed branches: what is left of a sum is its other operand."""

    def __init__(self, find_rule: RuleFinder, emit: Replay, removed: Removed) -> None:
        super().__init__(find_rule, emit)
        self._removed, self.first = removed, emit.first

    def _value(self, node: fx.Node) -> Any:
        if node in self._removed.nodes and node.op != "get_attr":  # parameters stay
            return None
        if node in self._removed.sums:
            return self._left_of_sum(node, self._removed.sums[node].name)
        return super()._value(node)

    def _left_of_sum(self, node: fx.Node, other: str) -> Tensor:
        """The labels of a sum, where its other operand still has channels."""
        now: Tensor = self.record.values[other]
        whole: Tensor = self.first.values[other]
        total: Tensor = self.first.values[node.name]
        dims = sorted({*varying(whole), *varying(total)})
        if now.shape == total.shape:
            return total
        if len(dims) != 1:
            raise Mismatch(node, "channels lie on more than one axis of a sum")
        have, want = (labels.movedim(dims[0], 0).flatten(1)[:, 0].numpy() for labels in (whole, now))
        index = match(have, want)
        if index is None:
            raise Mismatch(node, "other channels arrive at a sum than before")
        return pick(total, dims[0], torch.from_numpy(index))

    def _check_replay(self, node: fx.Node, value: Any, first: Record) -> None:
        if node not in self._removed.nodes and node not in self._removed.sums:
            super()._check_replay(node, value, first)


def _wanted(graph: ChannelGraph, live: Liveness) -> dict[str, Indices]:
    """Module that selects -> the labels that it passes on, for existing and for new selections."""
    analysis = graph.analysis
    readers = {graph.selections.carriers[reader]: reader for reader in live.read}
    for name, module in analysis.traced.modules.items():
        if selection_of(module) is not None:
            readers.setdefault(name, graph.selections.readers.get(name, name))
    whole = analysis.find_rule.reading_all & analysis.record.reads.keys()
    wanted = {name: analysis.record.reads[name] for name in whole}
    for name, reader in readers.items():
        if name not in whole:
            before = _arriving(graph, name)
            wanted[name] = before[_stays(graph, before, live.read.get(reader, live.alive))]
    return wanted


def _arriving(graph: ChannelGraph, module: str) -> Indices:
    """Labels that the module works on in the unpruned network, after its own selection."""
    analysis = graph.analysis
    for vectors in (analysis.record.reads, analysis.record.passes):
        if module in vectors:
            return vectors[module]
    node = next(n for n in analysis.traced.graph.nodes if n.op == "call_module" and str(n.target) == module)
    labels = analysis.record.values[node.all_input_nodes[0].name]
    selection = selection_of(graph.model.get_submodule(module))
    axes = varying(labels)
    dim = selection.dim if selection is not None else axes[0] if len(axes) == 1 else 1
    vector = labels.movedim(dim, 0).reshape(labels.size(dim), -1)[:, 0]
    if selection is not None:
        vector = vector[selection.index.cpu()]
    return np.ascontiguousarray(vector.numpy())


def _stays(graph: ChannelGraph, labels: Indices, mask: Mask) -> Mask:
    """Which labels are fixed, or belong to a channel in the mask."""
    return (labels < 0) | mask[graph.analysis.of_label[np.maximum(labels, 0)]]


def _slices(graph: ChannelGraph, live: Liveness, record: Record, numbers: dict[Origin, int]) -> Slices:
    """Compare the labels that arrive at layers with those of the unpruned network."""
    traced, old = graph.analysis.traced, graph.analysis.record
    slices = Slices(removed=live.removed.branches)

    def mismatch(name: str, message: str) -> Mismatch:
        nodes = [n for n in traced.graph.nodes if n.op.startswith(("call", "get_attr"))]
        return Mismatch({traced.layer_of(n) or str(n.target): n for n in nodes}[name], message)

    def kept(name: str, before: Indices, after: Indices, mask: Mask | None) -> Indices:
        """Positions in `before` of the labels `after`, which must be all that the mask allows."""
        index = match(before, after)
        if index is None:
            raise mismatch(name, f"channels arrive at {name} that it never read")
        if mask is not None and (planned := int(_stays(graph, before, mask).sum())) != len(index):
            raise mismatch(name, f"{len(index)} channels arrive at {name}, {planned} were planned")
        return index

    def is_all(index: Indices, before: Indices) -> bool:
        return len(index) == len(before) and bool((index == np.arange(len(before))).all())

    gone = live.removed.modules
    for name, read in old.reads.items():
        if name in gone:
            continue
        if name in graph.analysis.find_rule.reading_all:  # zeros must be in the places of channels that are gone
            if not np.array_equal(record.reads[name], np.where(_stays(graph, read, live.alive), read, GONE)):
                raise mismatch(name, f"other channels arrive at {name} than were planned")
            inputs = np.arange(len(read))
        else:
            inputs = kept(name, read, record.reads[name], live.read.get(name, live.alive))
        outputs = kept(name, old.writes[name], record.writes[name], live.alive)
        if not (is_all(inputs, read) and is_all(outputs, old.writes[name])):
            slices.mixing[name] = inputs, outputs
    for name, passed in old.passes.items():
        if name in gone:
            continue
        channels = kept(name, passed, record.passes[name], None)
        if not is_all(channels, passed):
            slices.passing[name] = channels, len(passed)
    for name, written in old.parameters.items():
        index = kept(name, written, record.parameters[name], live.alive)
        if not is_all(index, written):
            shape = traced.attributes[name].shape
            axes = entries_of(written, shape, np.isin(np.arange(len(written)), index))
            slices.parameters[name] = {d: each for d, each in enumerate(axes) if len(each) < shape[d]}
    for attribute, (labels, scale) in old.scales.items():
        if not live.alive[graph.analysis.of_label[labels]].all():
            slices.scales[attribute] = scale
    # Code that takes the width of its input for another one needs its own also if only the input has become narrower.
    narrower = graph.streams == "coupled" and bool(slices.mixing)
    for each, count in numbers.items():
        if 0 < count < len(old.numbers[each]) or (count and narrower and each[1].startswith(WIDTH)):
            slices.numbers[each] = count
    return slices
