"""Follow channels by labels: run a traced graph once on label tensors instead of activations.

Operations that only move elements simply execute. The same pass serves two purposes. To *discover* channels, every
writer emits a new label for each filter, and the pass records which labels meet. To *replay* a plan, writers emit only
the labels that are still alive, selections are applied, and the labels that arrive at each layer give the slices of its
weights to keep, in order. So surgery needs no rules of its own, and a plan that the network's own reshapes and splits
cannot carry out is found here, instead of giving a wrong result.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from secateur.channels.labels.call import Call
from secateur.channels.labels.label_tensors import along, compact, constant, constant_along, fixed_like, tensors_in
from secateur.channels.labels.record import Emitter, Mismatch, Record, Replay
from secateur.channels.rules.rulebook import RuleFinder


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
