"""One pass of labels over a network: which channels are one and the same, which of them must stay, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import fx, nn

from secateur.channels.label_pass import LabelPass
from secateur.channels.label_record import Balance, Emitter, Record
from secateur.channels.labels import present, tensors_in
from secateur.channels.layer_trials import opaque_layers
from secateur.channels.recording.tracing import left_as_found, record_calls
from secateur.channels.rule_call import Call, Rule
from secateur.channels.rulebook import find_rule, is_leaf
from secateur.channels.rules import MIXING
from secateur.channels.traced import Example, Traced
from secateur.channels.units import Indices


@dataclass(frozen=True)
class Discovery:
    """Channels of a network. A *channel* here is a set of labels that only go together, numbered 0 .. channels - 1
    in the order in which the network writes them; reads, writes and passes hold these numbers (negative: fixed)."""

    traced: Traced
    opaque: Mapping[str, str]
    record: Record
    channels: int
    of_label: Indices  # label -> channel
    reads: Mapping[str, Indices]
    writes: Mapping[str, Indices]
    passes: Mapping[str, Indices]
    stream: npt.NDArray[np.bool_]  # [channels] goes through an addition
    held: dict[int, str]  # channel -> why it must stay
    balances: tuple[Balance, ...]  # blocks hold channel numbers

    @property
    def depends_on_widths(self) -> bool:
        """Whether anything in the network asks how many channels there are: only then can a plan fail to fit."""
        asks = (node for node in self.traced.graph.nodes if node.op.startswith("call"))
        return bool(self.balances or self.traced.guards or self.record.failed) or any(
            not tensors_in(self.record.values[node.name]) for node in asks
        )


def discover(model: nn.Module, example: Example) -> Discovery:
    """Trace the network and follow its channels. The model is not changed."""
    with left_as_found(model):
        traced = record_calls(model, example, is_leaf)
        opaque = opaque_layers(traced)
        emit = Emitter()
        record = LabelPass(traced, emit, find_rule, opaque).run()
        _read_by_training(traced, example, emit, opaque, record)
    return _number(traced, opaque, record, emit)


def _number(traced: Traced, opaque: Mapping[str, str], record: Record, emit: Emitter) -> Discovery:
    """Unite labels that meet, and number the resulting channels in the order of their first label."""
    a = np.concatenate([np.zeros(0, np.int64), *[u[0] for u in record.unions]])
    b = np.concatenate([np.zeros(0, np.int64), *[u[1] for u in record.unions]])
    of_label, channels = components(emit.count, a, b)
    stream = np.zeros(channels, dtype=bool)
    bare = np.zeros(emit.count, dtype=bool)
    for name in emit.bare:
        bare[emit.ranges[name].numpy()] = True
    for a, b, additive, _ in record.unions:
        if additive:  # a bias added to channels does not make them a stream
            stream[of_label[a[~bare[a] & ~bare[b]]]] = True
    held: dict[int, str] = {}
    for labels, reason in record.holds:
        for channel in np.unique(of_label[labels]):
            held.setdefault(int(channel), reason)

    def numbers(labels: Indices) -> Indices:
        if labels.min(initial=0) >= 0:
            return of_label[labels]
        return np.where(labels >= 0, of_label[np.maximum(labels, 0)], labels)

    def numbered(vectors: Mapping[str, Indices]) -> dict[str, Indices]:
        return {name: numbers(vector) for name, vector in vectors.items()}

    balances = tuple(Balance(numbers(b.blocks), b.reader, b.reason) for b in record.balances)
    reads, writes, passes = numbered(record.reads), numbered(record.writes), numbered(record.passes)
    return Discovery(traced, opaque, record, channels, of_label, reads, writes, passes, stream, held, balances)


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


# ------------------------------------------------------------------------------------- what eval mode does not call


def _read_by_training(
    traced: Traced, example: Example, emit: Emitter, opaque: Mapping[str, str], record: Record
) -> None:
    """Layers that eval mode never calls (auxiliary heads) read all that they could read."""
    unseen = _unseen_layers(traced)
    if not unseen:
        return
    training = record_calls(traced.model, example, is_leaf, training=True)
    extra = Record()  # its reads and writes are dropped: they are those of the first pass again
    LabelPass(training, emit, _rule_for_unseen(unseen), opaque, extra).run()
    record.unions += extra.unions
    record.holds += extra.holds
    never = unseen - set(training.calls)
    for name in sorted(never):
        _could_read(traced, name, record)


def _unseen_layers(traced: Traced) -> set[str]:
    """Modules with parameters of their own that no call in the graph reaches."""
    bare = {str(node.target).rpartition(".")[0] for node in traced.graph.nodes if node.op == "get_attr"}
    called = set(traced.calls)
    unseen = set()
    for name, module in traced.model.named_modules():
        if name in called or name in bare or all(p is None for p in module._parameters.values()):
            continue
        if not called.intersection(name[:i] for i, c in enumerate(name) if c == "."):
            unseen.add(name)
    return unseen


def _rule_for_unseen(unseen: set[str]):  # type: ignore[no-untyped-def]
    def find(labels: LabelPass, node: fx.Node) -> Rule:
        rule = find_rule(labels, node)
        if node.op != "call_module" or str(node.target) not in unseen:
            return rule

        def hold_then(call: Call) -> object:
            return call.unknown(f"{call.name} reads it in training, where eval mode does not show it")

        return hold_then

    return find


def _could_read(traced: Traced, name: str, record: Record) -> None:
    """A layer that no trace reaches might be called by other code: whatever has its width stays."""
    module = traced.model.get_submodule(name)
    if not isinstance(module, MIXING):
        return
    width = module.in_features if isinstance(module, nn.Linear) else module.in_channels
    for value in list(record.values.values()):
        for labels in tensors_in(value):
            axis = labels.dim() - 1 if isinstance(module, nn.Linear) else 1
            if labels.dim() > axis > 0 and labels.size(axis) == width and len(found := present(labels)):
                record.holds.append((found, f"{name}, which no trace reaches, could read it"))
