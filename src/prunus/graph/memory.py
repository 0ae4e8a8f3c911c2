"""The memory that activations take: for one image, at each call of the network, in closed form under a plan.

A value is alive from the call that computes it to the last call that reads it, and the input of the network is alive at
least to its first reader. What is alive while a call runs:

    bytes(call) = sum of the values that it reads, that later calls read, and that it computes

and the peak is the largest of these. Views and in-place calls share the memory of what they view: that is seen in one
run of the network, not guessed. Of a value, the share of its positions whose channels are left stays. A selection in
front of a reader copies the channels that it reads. Weights are not counted, nor what a kernel needs inside a call, nor
variables that Python code keeps longer than it reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from prunus.graph.cost import Liveness, batch_of
from prunus.graph.labels import compact, tensors_in
from prunus.graph.runner import GraphRunner
from prunus.graph.units import Indices, Keep
from prunus.util.state import evaluating, generators_kept, module_state_kept

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """A piece of memory that one or more values share.

    Attributes:
        size: Its bytes for one image, before pruning.
        channels: The channel at each of its positions, -1 for fixed ones; None if nothing is known about it.
        reader: The reader that selects in front of it, if it only has the channels that this one reads.
    """

    size: float
    channels: Indices | None
    reader: str | None = None

    def under(self, live: Liveness) -> float:
        """Its bytes with the channels that are left."""
        if self.channels is None or not len(self.channels):
            return self.size
        left = live.alive if self.reader is None else live.read.get(self.reader, live.alive)
        known = self.channels >= 0
        return self.size * float((~known).sum() + left[self.channels[known]].sum()) / len(self.channels)


@dataclass(frozen=True, eq=False)
class Memory:
    """The blocks of a network, and which of them are alive at each call.

    Attributes:
        blocks: All pieces of memory.
        calls: Name of each call.
        alive: [calls, blocks] whether a block is alive while a call runs.
        copies: Call -> the block that its selection copies, and the reader that selects.
    """

    graph: ChannelGraph
    blocks: Sequence[Block]
    calls: Sequence[str]
    alive: npt.NDArray[np.bool_]
    copies: dict[int, tuple[int, str]]

    def sizes(self, keep: Keep) -> Floats:
        """Bytes of each block if units keep these channels."""
        live = self.graph.liveness(keep)
        return np.array([block.under(live) for block in self.blocks], dtype=np.float64)

    def at_calls(self, keep: Keep) -> Floats:
        """Bytes that are alive while each call runs."""
        live, total = self.graph.liveness(keep), self.alive @ self.sizes(keep)
        for call in self.copies:
            total[call] += self._copied(call, live)
        return np.asarray(total, dtype=np.float64)

    def at_call(self, call: int, keep: Keep) -> float:
        """Bytes that are alive while one call runs."""
        live = self.graph.liveness(keep)
        total = sum(self.blocks[number].under(live) for number in np.flatnonzero(self.alive[call]).tolist())
        return total + self._copied(call, live)

    def _copied(self, call: int, live: Liveness) -> float:
        """Bytes that a selection in front of a call copies."""
        number, reader = self.copies.get(call, (0, ""))
        mask, channels = live.read.get(reader), self.blocks[number].channels
        if mask is None or channels is None:
            return 0.0
        numbers = channels[channels >= 0]
        if mask[numbers].sum() == live.alive[numbers].sum():
            return 0.0
        return Block(self.blocks[number].size, channels, reader).under(live)

    def peak(self, keep: Keep | None = None) -> int:
        """The largest number of bytes that is alive at a time."""
        return round(float(self.at_calls(keep or {}).max()))

    def where(self, keep: Keep | None = None) -> str:
        """The call at which the peak is."""
        return self.calls[int(self.at_calls(keep or {}).argmax())]


def peak_of(graph: ChannelGraph, keep: Keep | None = None) -> int | None:
    """The peak in bytes; None if the calls of a network cannot be run one by one."""
    try:
        return graph.memory.peak(keep)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


@torch.no_grad()
def measure(graph: ChannelGraph) -> Memory:
    """The memory of a network that has been traced. It runs once on the example, and all values are kept meanwhile, so
    that equal addresses are shared memory."""
    traced, record = graph.analysis.traced, graph.analysis.record
    runner, batch, reader_of = GraphRunner(traced), batch_of(traced), _readers_behind(graph)
    owner: dict[fx.Node, list[int]] = {}  # node -> numbers of the blocks of its value
    blocks: list[Block] = []
    held: dict[int, int | None] = {}  # address -> number of its block; None: a weight
    with evaluating(graph.model), generators_kept(), module_state_kept(graph.model):
        values = runner.bind(graph.example, copy=True)
        for node in runner.nodes[:-1]:
            values[node] = runner.call(node, values)
            labels = tensors_in(record.values.get(node.name))
            leaves = [leaf for leaf in tree_leaves(values[node]) if isinstance(leaf, Tensor)]
            for place, leaf in enumerate(leaves):
                address = leaf.untyped_storage().data_ptr()
                if address not in held and node.op == "get_attr":
                    held[address] = None
                elif address not in held:
                    channels = _channels(graph, labels[place]) if len(labels) == len(leaves) else None
                    held[address] = len(blocks)
                    blocks.append(Block(leaf.numel() * leaf.element_size() / batch, channels, reader_of.get(node)))
                if (number := held[address]) is not None:
                    owner.setdefault(node, []).append(number)
    return _liveness(graph, runner.nodes, owner, blocks)


def _channels(graph: ChannelGraph, labels: Tensor) -> Indices:
    """The channel at each position, once for each position that differs."""
    flat = compact(labels).reshape(-1).numpy()
    found = np.full(len(flat), -1, dtype=np.int64)
    known = flat >= 0
    found[known] = graph.analysis.of_label[flat[known]]
    return found


def _readers_behind(graph: ChannelGraph) -> dict[fx.Node, str]:
    """Node between a selection and its reader -> the reader: its value has the selected channels only."""
    found: dict[fx.Node, str] = {}
    readers = graph.selections.readers
    carriers = set(graph.selections.carriers.values())
    for node in graph.analysis.traced.graph.nodes:
        before = [found[used] for used in node.all_input_nodes if used in found]
        name = str(node.target) if node.op == "call_module" else ""
        if name in graph.grouped.selecting.values():  # the reader itself writes channels of its own
            continue
        if name in carriers:
            found[node] = readers[name]
        elif before and len(node.all_input_nodes) == 1:
            found[node] = before[0]
    return found


def _liveness(
    graph: ChannelGraph, nodes: Sequence[fx.Node], owner: dict[fx.Node, list[int]], blocks: Sequence[Block]
) -> Memory:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    calls = [node for node in nodes if node.op != "get_attr"]
    place = {node: number for number, node in enumerate(calls)}
    for node in calls:
        for used in (*node.all_input_nodes, node):
            for block in owner.get(used, []):
                first.setdefault(block, place[node])
                last[block] = place[node]
    alive = np.zeros((len(calls), len(blocks)), dtype=bool)
    for block in range(len(blocks)):
        alive[first[block] : last[block] + 1, block] = True
    copies: dict[int, tuple[int, str]] = {}
    for reader, carrier in graph.selections.carriers.items():
        for node in calls:
            if node.op == "call_module" and node.target == carrier:
                for block in owner.get(node.all_input_nodes[0], [])[:1]:
                    copies[place[node]] = (block, reader)
    return Memory(graph, blocks, [str(node.name) for node in calls], alive, copies)
