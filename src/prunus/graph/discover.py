"""Find the channels of a network: run its traced graph once on labels, and unite labels that must be removed together.

For layers that eval mode does not call, such as auxiliary heads, all channels that they read in training are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from prunus.graph.labels import (
    Balance,
    Call,
    CannotFollow,
    Emitter,
    Mismatch,
    Record,
    Replay,
    along,
    constant,
    entries_of,
    fixed_like,
    present,
    same_labels,
    tensors_in,
)
from prunus.graph.layer_trials import try_layers
from prunus.graph.proxies import Number
from prunus.graph.record import modes_kept, record_calls
from prunus.graph.rules.attention import PRODUCTS
from prunus.graph.rules.rulebook import RuleFinder
from prunus.graph.traced import (
    CONVOLUTIONS,
    FUNCTIONS,
    MIXING,
    Example,
    Traced,
    argument_of,
    as_call,
    batched_dims,
    named_modules,
    names_in_code,
)
from prunus.graph.units import Indices, components

_LARGEST_TABLE = 1 << 17  # numbers in a parameter that may be cut along several axes


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
    frozen: dict[int, str]  # channel that must be kept -> reason
    balances: tuple[Balance, ...]  # blocks hold channel numbers
    frozen_readers: Mapping[str, str] = field(default_factory=dict)  # reader that must not select channels -> reason
    averaged: bool = False  # whether only means in the code of modules keep some channels

    @property
    def traced(self) -> Traced:
        """The traced network."""
        return self.find_rule.traced

    def written_by(self, layer: str) -> Indices | None:
        """The channels that a layer writes, or for each of which a function does its work; None if there are none."""
        filters = self.record.filters.get(layer)
        if filters is None:
            return self.writes.get(layer)
        return np.where(filters >= 0, self.of_label[np.maximum(filters, 0)], filters)

    @cached_property
    def unable_to_select(self) -> frozenset[str]:
        """Layers that read all channels of a stream: they need all inputs, are functions, are called by keyword, or
        with an image without a batch dimension."""
        layers = {*self.find_rule.reading_all, *self.traced.functional.values()}
        for node in self.traced.graph.nodes:
            if node.op == "call_module" and str(node.target) in self.reads:
                module, shape = self.traced.module(node), self.traced.shapes[node.all_input_nodes[0].name]
                if not node.args or (isinstance(module, CONVOLUTIONS) and len(shape) < batched_dims(module)):
                    layers.add(str(node.target))
        return frozenset(layers)

    @property
    def depends_on_widths(self) -> bool:
        """Whether anything in the network uses the number of channels. Only then can a plan fail to fit."""
        calls = (node for node in self.traced.graph.nodes if node.op.startswith("call"))
        return bool(self.balances or self.traced.guards or self.record.failed) or any(
            not tensors_in(self.record.values[node.name]) for node in calls
        )


def discover(model: nn.Module, example: Example, *, compensates: bool = False, dims: bool = False) -> ChannelAnalysis:
    """Trace the network and follow its channels. The model is not changed. Call it inside `undisturbed(model)`.

    compensates: norms over channels may lose some.
    dims: attention loses dimensions of all heads, and not heads.
    """
    with modes_kept(model):
        traced = record_calls(model, example)
        find_rule = RuleFinder(traced, *try_layers(traced), compensates=compensates, dims=dims)
        while True:  # layers and parameters are cut only if the rules can follow every use of them
            emit = Emitter()
            record = LabelPass(find_rule, emit).run()
            known = (record.reads, record.passes, record.parameters)
            partly = {name: why for name, why in record.opaque.items() if any(name in part for part in known)}
            if not partly:
                break
            find_rule = replace(find_rule, opaque={**find_rule.opaque, **partly})
        _add_reads_of_training(find_rule, example, emit, record)
    return _number(find_rule, record, emit)


class LabelPass:
    """Runs a traced graph on label tensors instead of activations, by the rules that `find_rule` gives."""

    def __init__(self, find_rule: RuleFinder, emit: Emitter | Replay) -> None:
        self.traced = find_rule.traced
        self.opaque = find_rule.opaque
        self.find_rule = find_rule
        self.emit = emit
        self.record = Record()
        self._parameters: dict[fx.Node, bool] = {}

    @cached_property
    def with_products(self) -> bool:
        """Whether the network multiplies tensors with one another, as attention does."""
        return any(node.target in PRODUCTS for node in self.traced.graph.nodes)

    def run(self) -> Record:
        """Run all nodes."""
        for node in self.traced.graph.nodes:
            try:
                value = self.record.values[node.name] = self._value(node)
                if isinstance(value, Tensor) and node.name in self.traced.guards:  # computed from buffers
                    self.record.frozen.append((present(value), "the code looks at its values"))
                if isinstance(self.emit, Replay):
                    self._check_replay(node, value, self.emit.first)
            except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
                if isinstance(self.emit, Replay):  # what fails on labels would fail on the pruned activations too
                    raise Mismatch(node, str(error)) from error
                call = Call(self, node)
                self.record.failed[node.name] = f"the rule for {call.what} cannot follow it ({error})"
                self.record.values[node.name] = call.unknown(self.record.failed[node.name])
        return self.record

    def _value(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return fixed_like(self.traced.shapes[node.name])
        if node.op == "get_attr":
            return self._attribute(node)
        call = Call(self, node)
        if node.op == "output":
            call.unchanged()
            call.freeze(call.args, "it is an output of the network")
            return None
        if isinstance(self.emit, Replay) and node.name in self.emit.first.failed:
            return call.unknown(self.emit.first.failed[node.name])
        try:
            return self.find_rule(node)(call)
        except CannotFollow as error:
            return call.unknown(str(error))

    def _attribute(self, node: fx.Node) -> Any:
        """A parameter or buffer that the code uses outside of a layer. It writes channels along its only axis longer
        than 1, or along the first one if it holds a filter for each channel; otherwise it is fixed."""
        name = str(node.target)
        owner, _, attribute = name.rpartition(".")
        value = self.traced.attributes[name]
        if not isinstance(value, Tensor):
            return value
        long = [0] if _holds_filters(node, value) else [d for d in range(value.dim()) if value.size(d) > 1]
        # The weight or bias of a layer is cut with the layer. Surgery can replace parameters and buffers, but no plain
        # attributes and no constants of the code.
        of_layer = owner in self.traced.computed or any(self.traced.layer_of(user) == owner for user in node.users)
        of_layer = of_layer and attribute in self.traced.tensors_of(owner)
        is_table = (
            len(long) > 1 and self.with_products and value.is_floating_point() and value.numel() <= _LARGEST_TABLE
        )
        if not (len(long) == 1 or is_table) or name in self.opaque or name in self.traced.literals or of_layer:
            return constant(value.shape)
        module = self.traced.model.get_submodule(owner)
        if attribute not in module._parameters and attribute not in module._buffers:
            return constant(value.shape)
        if len(long) == 1:
            vector = self.emit(name, value.size(long[0]))
            self.record.parameters[name] = vector.numpy()
            return along(vector, value.shape, long[0])
        # A table, of position biases for example: where its numbers meet heads or channels shows along which axis.
        vector = self.emit(name, value.numel())
        self.record.parameters[name] = vector.numpy()
        if isinstance(self.emit, Emitter):
            return vector.view(value.shape)
        whole = self.emit.first.parameters[name]
        axes = entries_of(whole, value.shape, np.isin(whole, vector.numpy()))
        return torch.from_numpy(whole.reshape(value.shape)[np.ix_(*axes)])

    def is_parameter(self, node: fx.Node) -> bool:
        """Whether a tensor is a parameter or buffer, or is computed from these alone by operations."""
        if node not in self._parameters:
            tensors = [used for used in node.all_input_nodes if tensors_in(self.record.values[used.name])]
            by_operation = node.op.startswith("call") and node.op != "call_module" and bool(tensors)
            known = node.op == "get_attr" or (by_operation and all(map(self.is_parameter, tensors)))
            self._parameters[node] = known
        return self._parameters[node]

    def _check_replay(self, node: fx.Node, value: Any, first: Record) -> None:
        """Raise Mismatch if anything but the size of channel axes has changed."""
        before = first.values[node.name]
        looked_at = node.name in self.traced.guards
        if looked_at and not (same_labels(value, before) if isinstance(value, Tensor) else value == before):
            raise Mismatch(node, "the code would take another path with fewer channels")
        tensors, wanted = tensors_in(value), tensors_in(before)
        if len(tensors) != len(wanted):
            raise Mismatch(node, "it would return another number of tensors")
        for now, then in zip(tensors, wanted, strict=True):
            if now.shape != then.shape:
                changed = {d for d in range(then.dim()) if now.dim() == then.dim() and now.size(d) != then.size(d)}
                if not changed or not changed <= first.varying(then):
                    raise Mismatch(node, "an axis that carries no channels would change its size")
        if tensors and node.op.startswith("call") and not getattr(self.find_rule(node), "takes_sizes", False):
            for used in node.all_input_nodes:
                plain = self.record.values[used.name]
                if not isinstance(plain, Tensor) and not tensors_in(plain) and plain != first.values[used.name]:
                    raise Mismatch(node, "the number of channels is used as a value")


def _holds_filters(node: fx.Node, value: Tensor) -> bool:
    """Whether a tensor [C, 1, ...] is given to a convolution with a computed number of groups, as in blurs."""
    if value.dim() < 3 or value.size(1) != 1:
        return False
    for user in node.users:
        weight = argument_of(user, 1, "weight")
        groups = argument_of(user, 6, "groups")
        if user.target in FUNCTIONS and weight is node and isinstance(groups, fx.Node | Number):
            return True
        if user.op == "call_method" and user.target in ("to", "type", "type_as", "float") and user.args[0] is node:
            return _holds_filters(user, value)
    return False


# -- layers that only training calls


def _add_reads_of_training(find_rule: RuleFinder, example: Example, emit: Emitter, record: Record) -> None:
    """Add to `record` what layers read that eval mode never calls."""
    traced = find_rule.traced
    called = set(traced.calls)
    used = {str(node.target).rpartition(".")[0] for node in traced.graph.nodes if node.op == "get_attr" and node.users}
    unseen = set()
    for name, module in named_modules(traced.model):
        has_parameters = any(parameter is not None for parameter in module._parameters.values())
        if has_parameters and name not in called and name not in used:
            within = (name[:i] for i, c in enumerate(name) if c == ".")  # modules that it is a part of
            if called.isdisjoint(within):
                unseen.add(name)
    if not unseen:
        return
    training = record_calls(traced.model, example, training=True)
    kept = {name: f"{name} reads it in training, where eval mode does not show it" for name in unseen}
    extra = LabelPass(replace(find_rule, traced=training, opaque={**find_rule.opaque, **kept}), emit).run()
    record.unions += extra.unions  # its reads and writes are those of the first pass again
    record.frozen += extra.frozen
    for name, (_, reason) in extra.norms.items():
        if name not in record.norms:
            record.frozen.append((extra.passes[name][extra.passes[name] >= 0], reason))
    # The code may not have been followed to its end, or takes another path with other arguments. A layer that no trace
    # reaches might be called then, so every value that has its width is kept.
    left = unseen - set(training.calls)
    if any(node.op == "output" for node in training.graph.nodes):
        args, kwargs = as_call(example)
        signature = inspect.signature(traced.model.forward)
        given = signature.bind(*args, **kwargs).arguments
        omitted = any(p.default is not p.empty and p.name not in given for p in signature.parameters.values())
        flags = omitted or not all(isinstance(value, Tensor) for value in tree_leaves(given))
        left = {name for name in left if flags and _is_named(traced.model, name)}
    for name in sorted(left):
        module = traced.model.get_submodule(name)
        if not isinstance(module, MIXING):
            continue
        width = module.in_features if isinstance(module, nn.Linear) else module.in_channels
        for labels in tensors_in(list(record.values.values())):
            axis = labels.dim() - 1 if isinstance(module, nn.Linear) else 1
            if labels.dim() > axis > 0 and labels.size(axis) == width and len(distinct := present(labels)):
                record.frozen.append((distinct, f"{name}, which no trace reaches, could read it"))


def _is_named(model: nn.Module, name: str) -> bool:
    """Whether code names a layer, or the list that it is in."""
    owner, _, attribute = name.rpartition(".")
    while attribute.isdigit():
        owner, _, attribute = owner.rpartition(".")
    return names_in_code(model.get_submodule(owner), attribute)


# -- from labels to channels


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

    frozen: dict[int, str] = {}
    for labels, reason in record.frozen:
        for channel in np.unique(of_label[labels]).tolist():
            frozen.setdefault(channel, reason)
    stream = np.zeros(channels, dtype=bool)
    for one, _, additive, _ in record.unions:
        if additive:  # it goes through an addition with another layer's output
            stream[of_label[one]] = True
    reasons = {reason for _, reason in record.averaged}
    averaged = np.unique(of_label[np.concatenate([empty, *(labels for labels, _ in record.averaged)])])
    others = {c for labels, reason in record.frozen if reason not in reasons for c in of_label[labels].tolist()}
    return ChannelAnalysis(
        find_rule=find_rule,
        record=record,
        channels=channels,
        of_label=of_label,
        reads={name: numbers(vector) for name, vector in record.reads.items()},
        writes={name: numbers(vector) for name, vector in record.writes.items()},
        passes={name: numbers(vector) for name, vector in record.passes.items()},
        stream=stream,
        frozen=frozen,
        balances=tuple(Balance(numbers(each.blocks), each.reader, each.reason) for each in record.balances),
        averaged=any(channel not in others for channel in averaged.tolist()),
    )


def tensors_behind(node: fx.Node, values: Mapping[str, Any]) -> Iterator[list[Tensor]]:
    """The tensors at a node and among its arguments, then those that these were computed from, and so on.

    A comparison of two sizes has no tensors among its arguments; what it looked at are the tensors of these sizes.
    """
    level, seen = [node, *node.all_input_nodes], {node, *node.all_input_nodes}
    while level:
        yield [tensor for each in level for tensor in tensors_in(values[each.name])]
        level = list(dict.fromkeys(used for each in level for used in each.all_input_nodes if used not in seen))
        seen.update(level)
