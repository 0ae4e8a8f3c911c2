"""Discover the channels of a network: which labels belong to the same channel, which must be kept, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import nn

from secateur.channels.discovery.layer_trials import try_layers
from secateur.channels.discovery.unseen_layers import read_by_training
from secateur.channels.labels.label_pass import LabelPass
from secateur.channels.labels.label_tensors import tensors_in
from secateur.channels.labels.record import Balance, Emitter, Record
from secateur.channels.layer_kinds import CONVOLUTIONS, batched_dims
from secateur.channels.recording.tracing import left_as_found, record_calls
from secateur.channels.rules.rulebook import RuleFinder, is_leaf
from secateur.channels.traced import Example, Traced
from secateur.channels.units import Indices


@dataclass(frozen=True)
class Discovery:
    """The channels of a network. A *channel* is a set of labels that can only be removed together.

    Channels are numbered 0 .. channels - 1 in the order in which the network writes them. `reads`, `writes` and
    `passes` hold these numbers for each layer; negative numbers are fixed positions.
    """

    find_rule: RuleFinder
    record: Record
    channels: int
    of_label: Indices  # label -> channel
    reads: Mapping[str, Indices]
    writes: Mapping[str, Indices]
    passes: Mapping[str, Indices]
    stream: npt.NDArray[np.bool_]  # [channels] whether it goes through an addition
    held: dict[int, str]  # channel that must be kept -> reason
    balances: tuple[Balance, ...]  # blocks hold channel numbers
    held_readers: Mapping[str, str] = field(default_factory=dict)  # reader that must not select channels -> reason

    @property
    def traced(self) -> Traced:
        """The traced network."""
        return self.find_rule.traced

    @cached_property
    def unable_to_select(self) -> frozenset[str]:
        """Layers that read all channels of a stream: they need all inputs, are functions, are called by keyword, or
        with an image without a batch dimension."""
        found = {*self.find_rule.reading_all, *self.traced.functional.values()}
        for node in self.traced.graph.nodes:
            if node.op == "call_module" and str(node.target) in self.reads:
                module, shape = self.traced.module(node), self.traced.shapes[node.all_input_nodes[0].name]
                if not node.args or (isinstance(module, CONVOLUTIONS) and len(shape) < batched_dims(module)):
                    found.add(str(node.target))
        return frozenset(found)

    @property
    def depends_on_widths(self) -> bool:
        """Whether anything in the network uses the number of channels. Only then can a plan fail to fit."""
        calls = (node for node in self.traced.graph.nodes if node.op.startswith("call"))
        return bool(self.balances or self.traced.guards or self.record.failed) or any(
            not tensors_in(self.record.values[node.name]) for node in calls
        )


def discover(model: nn.Module, example: Example) -> Discovery:
    """Trace the network and follow its channels. The model is not changed."""
    with left_as_found(model):
        traced = record_calls(model, example, is_leaf)
        find_rule = RuleFinder(traced, *try_layers(traced))
        find_rule, emit, record = _follow(find_rule)
        read_by_training(find_rule, example, emit, record)
    return _number(find_rule, record, emit)


def _follow(find_rule: RuleFinder) -> tuple[RuleFinder, Emitter, Record]:
    """Run the labels. A layer that is called several times is cut only if the rules can follow every call of it."""
    while True:
        emit = Emitter()
        record = LabelPass(find_rule, emit).run()
        partly = {name: why for name, why in record.opaque.items() if name in record.reads or name in record.passes}
        if not partly:
            return find_rule, emit, record
        find_rule = replace(find_rule, opaque={**find_rule.opaque, **partly})


def _number(find_rule: RuleFinder, record: Record, emit: Emitter) -> Discovery:
    """Unite labels that meet, and number the resulting channels in the order of their first label."""
    empty = np.zeros(0, np.int64)
    a = np.concatenate([empty, *[union[0] for union in record.unions]])
    b = np.concatenate([empty, *[union[1] for union in record.unions]])
    of_label, channels = components(emit.count, a, b)

    def numbers(labels: Indices) -> Indices:
        if labels.min(initial=0) >= 0:
            return of_label[labels]
        return np.where(labels >= 0, of_label[np.maximum(labels, 0)], labels)

    def numbered(vectors: Mapping[str, Indices]) -> dict[str, Indices]:
        return {name: numbers(vector) for name, vector in vectors.items()}

    held: dict[int, str] = {}
    for labels, reason in record.holds:
        for channel in np.unique(of_label[labels]).tolist():
            held.setdefault(channel, reason)
    return Discovery(
        find_rule,
        record,
        channels,
        of_label,
        numbered(record.reads),
        numbered(record.writes),
        numbered(record.passes),
        _streams(record, emit, of_label, channels),
        held,
        tuple(Balance(numbers(b.blocks), b.reader, b.reason) for b in record.balances),
    )


def _streams(record: Record, emit: Emitter, of_label: Indices, channels: int) -> npt.NDArray[np.bool_]:
    """[channels] whether a channel goes through an addition with another layer's output. Adding a bias is none."""
    stream = np.zeros(channels, dtype=bool)
    bare = np.zeros(emit.count, dtype=bool)
    for name in emit.bare:
        bare[emit.ranges[name].numpy()] = True
    for a, b, additive, _ in record.unions:
        if additive:
            stream[of_label[a[~bare[a] & ~bare[b]]]] = True
    return stream


def components(count: int, a: Indices, b: Indices) -> tuple[Indices, int]:
    """Number the connected components of `count` nodes with edges a[i] - b[i], in the order of their first node."""
    if count == 0:
        return np.zeros(1, dtype=np.int64), 0
    links = coo_matrix((np.ones(len(a), np.int8), (a, b)), shape=(count, count))
    found, of_node = connected_components(links, directed=False)
    _, first = np.unique(of_node, return_index=True)
    order = np.empty(found, dtype=np.int64)
    order[np.argsort(first)] = np.arange(found)
    return order[of_node], int(found)
