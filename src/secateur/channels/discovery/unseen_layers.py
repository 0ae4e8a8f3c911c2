"""Layers that eval mode does not call, such as auxiliary heads: all channels that they read in training are kept.

A layer that training does not call either is unused. It keeps its shape and holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx, nn

from secateur.channels.labels.call import Rule
from secateur.channels.labels.label_pass import LabelPass
from secateur.channels.labels.label_tensors import present, tensors_in
from secateur.channels.labels.record import Emitter, Record
from secateur.channels.layer_kinds import MIXING
from secateur.channels.recording.tracing import record_calls
from secateur.channels.rules.rulebook import RuleFinder, is_leaf, kept_because
from secateur.channels.traced import Example, Traced, named_modules


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
