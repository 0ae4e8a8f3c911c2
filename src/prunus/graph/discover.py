"""Discover the channels of a network: which labels belong to the same channel, which must be kept, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor, fx, nn

from prunus.graph.labels import (
    Balance,
    Call,
    Emitter,
    Mismatch,
    Record,
    Replay,
    Rule,
    along,
    compact,
    constant,
    constant_along,
    fixed_like,
    present,
    tensors_in,
)
from prunus.graph.layer_trials import try_layers
from prunus.graph.record import left_as_found, record_calls
from prunus.graph.rules.rulebook import RuleFinder, is_leaf, kept_because
from prunus.graph.traced import CONVOLUTIONS, MIXING, Example, Traced, batched_dims, named_modules
from prunus.graph.units import Indices

# Follow channels by labels: run a traced graph once on label tensors instead of activations.


class LabelPass:
    """Runs a traced graph on labels, by the rules that `find_rule` gives for its nodes."""

    def __init__(self, find_rule: RuleFinder, emit: Emitter | Replay) -> None:
        self.traced = find_rule.traced
        self.opaque = find_rule.opaque
        self.find_rule = find_rule
        self.emit = emit
        self.record = Record()
        self.replaying = isinstance(emit, Replay)

    def run(self) -> Record:
        """Run all nodes."""
        for node in self.traced.graph.nodes:
            try:
                value = self.record.values[node.name] = self._value(node)
                if isinstance(self.emit, Replay):
                    self._check_replay(node, value, self.emit.first)
            except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
                if isinstance(self.emit, Replay):  # what fails on labels would fail on the pruned activations too
                    raise Mismatch(node, str(error)) from error
                call = Call(self, node)
                self.record.failed[node.name] = f"the rule for {call.what} cannot follow it ({error})"
                self.record.values[node.name] = call.unknown(self.record.failed[node.name])
        return self.record

    def _check_replay(self, node: fx.Node, value: Any, first: Record) -> None:
        """Raise Mismatch if anything but the size of channel axes has changed."""
        before = first.values[node.name]
        if node.name in self.traced.guards and value != before:
            raise Mismatch(node, "the code would take another path with fewer channels")
        tensors, wanted = tensors_in(value), tensors_in(before)
        if len(tensors) != len(wanted):
            raise Mismatch(node, "it would return another number of tensors")
        for now, then in zip(tensors, wanted, strict=True):
            if now.shape != then.shape and not _only_channels_changed(now, then):
                raise Mismatch(node, "an axis that carries no channels would change its size")
        if tensors and node.op.startswith("call") and not getattr(self.find_rule(node), "takes_sizes", False):
            for used in node.all_input_nodes:
                plain = self.record.values[used.name]
                if not isinstance(plain, Tensor) and not tensors_in(plain) and plain != first.values[used.name]:
                    raise Mismatch(node, "the number of channels is used as a value")

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return fixed_like(self.traced.shapes[node.name])
        if node.op == "get_attr":
            return self._attribute(node)
        call = Call(self, node)
        if node.op == "output":
            call.unchanged()
            call.hold(call.args, "it is an output of the network")
            return None
        if isinstance(self.emit, Replay) and node.name in self.emit.first.failed:
            return call.unknown(self.emit.first.failed[node.name])
        return self.find_rule(node)(call)

    def _is_state(self, name: str) -> bool:
        """Whether a tensor is a parameter or buffer, which surgery can replace, and not a plain attribute."""
        owner_name, _, attribute = name.rpartition(".")
        if name in self.traced.literals:
            return False
        owner = self.traced.model.get_submodule(owner_name)
        return attribute in owner._parameters or attribute in owner._buffers

    def _of_layer(self, node: fx.Node) -> bool:
        """Whether a tensor is the weight or bias of a layer, which is cut with it."""
        owner, _, tensor = str(node.target).rpartition(".")
        return tensor in ("weight", "bias") and any(self.traced.layer_of(user) == owner for user in node.users)

    def _attribute(self, node: fx.Node) -> Any:
        """A bare parameter or buffer. It writes channels along its only axis longer than 1; otherwise it is fixed."""
        name = str(node.target)
        value = self.traced.attributes[name]
        if not isinstance(value, Tensor):
            return value
        long = [d for d in range(value.dim()) if value.size(d) > 1]
        if len(long) != 1 or name in self.opaque or not self._is_state(name) or self._of_layer(node):
            return constant(value.shape)
        vector = self.emit(name, value.size(long[0]))
        if isinstance(self.emit, Emitter):
            self.emit.bare.add(name)
        self.record.parameters[name] = vector.numpy()
        return along(vector, value.shape, long[0])


def _only_channels_changed(now: Tensor, then: Tensor) -> bool:
    """Whether two label tensors differ in size only along axes of channels."""
    if now.dim() != then.dim():
        return False
    changed = [d for d in range(now.dim()) if now.size(d) != then.size(d)]
    small = compact(then)
    return all(small.size(d) > 1 and not constant_along(small, d) for d in changed)


# Layers that eval mode does not call, such as auxiliary heads: all channels that they read in training are kept.


def read_by_training(find_rule: RuleFinder, example: Example, emit: Emitter, record: Record) -> None:
    """Add to `record` what layers read that eval mode never calls. Call it inside `left_as_found(model)`."""
    traced = find_rule.traced
    unseen = _unseen_layers(traced)
    if not unseen:
        return
    training = record_calls(traced.model, example, is_leaf, training=True)
    extra = LabelPass(_TrainingRules(training, find_rule.opaque, find_rule.reading_all, frozenset(unseen)), emit).run()
    record.unions += extra.unions  # its reads and writes are those of the first pass again
    record.holds += extra.holds
    if not any(node.op == "output" for node in training.graph.nodes):  # not followed to its end
        for name in sorted(unseen - set(training.calls)):
            _could_read(traced, name, record)


def _unseen_layers(traced: Traced) -> set[str]:
    """Modules with parameters of their own that no call of the graph reaches."""
    bare = {str(node.target).rpartition(".")[0] for node in traced.graph.nodes if node.op == "get_attr" and node.users}
    called = set(traced.calls)
    unseen = set()
    for name, module in named_modules(traced.model):
        if name in called or name in bare or all(p is None for p in module._parameters.values()):
            continue
        if not called.intersection(name[:i] for i, c in enumerate(name) if c == "."):
            unseen.add(name)
    return unseen


@dataclass(frozen=True)
class _TrainingRules(RuleFinder):
    """The usual rules, except that layers which only training calls keep all channels that they read."""

    unseen: frozenset[str] = frozenset()

    def __call__(self, node: fx.Node) -> Rule:
        if node.op == "call_module" and str(node.target) in self.unseen:
            return kept_because(f"{node.target} reads it in training, where eval mode does not show it")
        return super().__call__(node)


def _could_read(traced: Traced, name: str, record: Record) -> None:
    """A layer that no trace reaches might be called later in training: every value that has its width is kept."""
    module = traced.model.get_submodule(name)
    if not isinstance(module, MIXING):
        return
    width = module.in_features if isinstance(module, nn.Linear) else module.in_channels
    for value in list(record.values.values()):
        for labels in tensors_in(value):
            axis = labels.dim() - 1 if isinstance(module, nn.Linear) else 1
            if labels.dim() > axis > 0 and labels.size(axis) == width and len(found := present(labels)):
                record.holds.append((found, f"{name}, which no trace reaches, could read it"))


@dataclass(frozen=True)
class ChannelAnalysis:
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


def discover(model: nn.Module, example: Example) -> ChannelAnalysis:
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


def _number(find_rule: RuleFinder, record: Record, emit: Emitter) -> ChannelAnalysis:
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
    return ChannelAnalysis(
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


# The tensors that a value was computed from.


def tensors_behind(node: fx.Node, values: Mapping[str, Any]) -> Iterator[list[Tensor]]:
    """The tensors at a node and among its arguments, then those that these were computed from, and so on.

    A comparison of two sizes has no tensors among its arguments; what it looked at are the tensors of these sizes.
    """
    level, seen = [node, *node.all_input_nodes], {node, *node.all_input_nodes}
    while level:
        yield [tensor for each in level for tensor in tensors_in(values[each.name])]
        level = list(dict.fromkeys(used for each in level for used in each.all_input_nodes if used not in seen))
        seen.update(level)
