"""Two networks run in lockstep, front to back: both stop in front of a layer with all images before any goes on.

So a layer can be changed depending on what both networks have computed so far. A stop may need only some of the images;
the others then run through it later, without stopping. The images run in small chunks. Between two stops their values
are kept in memory if they fit. If not, they are kept in half precision, in memory and in a file, or computed again
(`prunus.repairing.value_store`).
"""

from __future__ import annotations

import bisect
import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from prunus.graph.branches import is_idempotent
from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.cost import Liveness
from prunus.graph.plan import Plan
from prunus.graph.runner import GraphRunner, Values, last_uses
from prunus.graph.selection import selection_of
from prunus.graph.surgery import depthwise_filters
from prunus.graph.traced import MIXING, Traced, is_depthwise
from prunus.graph.units import Indices, Mask
from prunus.repairing.value_store import Stops, ValueStore, bytes_of, checkpoints, free_disk
from prunus.scoring.passes import CHUNK, Images, chunks
from prunus.util.batches import count_images, device_of
from prunus.util.options import parse_memory
from prunus.util.processes import total_memory, used_memory
from prunus.util.state import evaluating, generators_kept

logger = logging.getLogger(__name__)

AT_ONCE = 2**26  # bytes of values that are computed at a time on a CPU: more of them are slower, not faster
IMAGES_SHARE = 0.125  # share of the memory for the images themselves
USED = 0.9  # share of the memory that is planned with: freed memory comes back in pieces
GOLDEN = 0.618033988749895  # its multiples, modulo 1, are spread evenly
Both = tuple[Values, Values]  # of the original network, of the pruned one


class NetworkPair:
    """The original and the pruned network, which make the same calls: which calls the cut has changed, and which
    channels are kept."""

    def __init__(self, graph: ChannelGraph, pruned: nn.Module, live: Liveness, traced: Traced) -> None:
        self.traced, self._analysis = traced, graph.analysis
        self.nodes: list[fx.Node] = list(traced.graph.nodes)
        self.models = (graph.model, pruned)
        self._live, self._owners = live, graph.selections.readers
        # By name: the network may have been recorded again.
        self._gone = {node.name for node in live.removed.nodes}
        self._left = {node.name: other.name for node, other in live.removed.sums.items()}
        self.changed: set[fx.Node] = set()  # calls that compute something else in the pruned network
        for node in self.nodes:
            if self.lost_inputs(node) or any(used in self.changed for used in node.all_input_nodes):
                self.changed.add(node)

    def layer(self, node: fx.Node) -> Any:
        """The module that a call_module node calls in the pruned network."""
        return self.models[1].get_submodule(str(node.target))

    def called_once(self, node: fx.Node) -> bool:
        """Whether the node calls a module that no other node calls."""
        return node.op == "call_module" and self.traced.calls[str(node.target)] == 1

    def removed(self, node: fx.Node) -> bool:
        """Whether the call is part of a branch that is gone."""
        return node.name in self._gone

    def gap_after(self, node: fx.Node) -> fx.Node | None:
        """The last sum behind `node` that has lost its branch, and for which only `node` is used; None if there is
        none. Activations that change nothing the second time may come between."""
        found = None
        while len(users := [user for user in node.users if not self.removed(user)]) == 1:
            before, node = node, users[0]
            if self._left.get(node.name) == before.name:
                found = node
            elif not is_idempotent(node, self.traced.modules):
                break
        return found

    def lost_inputs(self, node: fx.Node) -> bool:
        """Whether the node is a conv or linear layer that reads fewer channels than it did."""
        name = self._analysis.traced.layer_of(node)
        if name is None or name not in self._analysis.reads:
            return False
        before, after = (_width(model.get_submodule(name)) for model in self.models)
        return after < before

    def kept_channels(self, name: str) -> Tensor | None:
        """Which channels of a layer that works channel by channel are kept; None if that is unknown."""
        # A selection comes first, so the layers between it and its reader have only the channels that are read.
        mask = self._live.read.get(self._owners.get(name, ""), self._live.alive)
        return _kept(self._analysis.passes.get(name), mask)

    def kept_outputs(self, name: str) -> Tensor | None:
        """Which outputs of a conv or linear layer are kept; None if that is unknown."""
        before, after = (model.get_submodule(name) for model in self.models)
        if is_depthwise(before):
            channels = self.kept_channels(name)
            kept = None if channels is None else torch.from_numpy(depthwise_filters(before, channels.numpy()))
        else:
            kept = _kept(self._analysis.writes.get(name), self._live.alive) if name in self._analysis.reads else None
        width = getattr(after, "out_features", getattr(after, "out_channels", None))
        return kept if kept is not None and len(kept) == width else None


def _kept(channels: Indices | None, mask: Mask) -> Tensor | None:
    if channels is None:
        return None
    return torch.from_numpy(np.flatnonzero((channels < 0) | mask[np.maximum(channels, 0)]))


def _width(layer: nn.Module) -> int:
    """How many channels a layer reads, without the zeros of a filled selection."""
    selection = selection_of(layer)
    if selection is not None and selection.filled:
        return int((selection.index < selection.index.max()).sum())
    if isinstance(layer, MIXING):
        return int(layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels)
    weight = getattr(layer, "weight", None)  # of a user-written layer
    return int(weight.shape[1]) if isinstance(weight, Tensor) else 0


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some of the images, and what both networks have computed of them."""

    first: int  # number of its first image
    size: int
    values: Both
    runners: tuple[GraphRunner, GraphRunner]

    def value(self, node: fx.Node, side: int) -> Any:
        """What `node` returned in the original (side 0) or the pruned network (1)."""
        return self.values[side][node]

    def entering(self, node: fx.Node, side: int) -> Tensor:
        """The input of the module of a call, after its channel selection."""
        runner = self.runners[side]
        x: Tensor = runner.arguments(node, self.values[side])[0][0]
        selection = selection_of(runner.submodules[str(node.target)])
        return x if selection is None else selection.of(x)


class Lockstep:
    """Both networks on their way. Call `start`, then ask for the chunks at each of its stops in turn."""

    def __init__(
        self, graph: ChannelGraph, pruned: nn.Module, images: Images, live: Liveness, memory: int | None = None
    ) -> None:
        parts = chunks(graph, images)
        first = next(parts)
        traced = graph.traced_for(first)
        self.pair = NetworkPair(graph, pruned, live, traced)
        self._memory = total_memory() // 2 if memory is None else memory
        self._runners = GraphRunner(traced), GraphRunner(traced, pruned)
        self._some = first if traced.guards else tree_map(lambda t: t[:1], first)
        self._constant = {t.untyped_storage().data_ptr() for m in self.pair.models for t in m.state_dict().values()}
        at_once = self._images_at_once(graph)
        given = isinstance(images, Tensor)  # the caller holds them anyway
        self._images = ValueStore(self._memory if given else int(IMAGES_SHARE * self._memory))
        self.num_images, ranges = 0, []
        for part in itertools.chain([first], parts):
            for start in range(0, count_images(part), at_once):
                few = tree_map(lambda t, i=start: t[i : i + at_once], part)
                self._images.add(few if given else tree_map(torch.clone, few))
                ranges.append(range(self.num_images, self.num_images + count_images(few)))
                self.num_images += count_images(few)
        # Images may be sorted by class, so a stop that needs only some of the chunks takes them from everywhere.
        self._turns = sorted(range(len(ranges)), key=lambda number: number * GOLDEN % 1)  # chunks in order of use
        self._ranges = [ranges[number] for number in self._turns]  # the images of each turn
        self._store: ValueStore | None = None  # None: at the images
        self._at = 0, 0  # calls that each network has made of the values in the store

    def start(
        self,
        order: Sequence[fx.Node],
        stops: Sequence[fx.Node],
        *,
        ahead: Mapping[fx.Node, fx.Node] | None = None,
        reserve: int = 0,
        images: Sequence[int] | None = None,
    ) -> None:
        """Decide at which stops values are kept.

        Args:
            order: All calls.
            ahead: Stop -> the last call that the original network makes before the pruned one stops in front of it.
            reserve: Bytes that the caller needs at a stop.
            images: How many of the images each stop needs at least; all by default.
        """
        self._order, self._stops, self._free = order, stops, last_uses(order)
        place = {node: i for i, node in enumerate(order)}
        first = {stop: place[stop] if ahead is None else place[ahead[stop]] + 1 for stop in stops}
        self._ends = [(first[stop], place[stop]) for stop in stops]  # calls that each network makes before it
        self._capacity = max(0, int(USED * self._memory) - used_memory() - reserve - 4 * AT_ONCE)
        wanted = itertools.accumulate(images or [self.num_images] * len(stops), max)  # never fewer than before
        counts = list(itertools.accumulate(map(len, self._ranges)))
        self._chunks = [min(bisect.bisect_left(counts, count) + 1, len(counts)) for count in wanted]
        known = self._measure()
        most = max((known.bytes_at(k) for k in range(len(stops))), default=0.0)
        self._half = most > self._capacity  # the precision of kept values
        if not self._half:
            self._kept = [True] * len(stops)
            return
        halved = replace(known, sizes=[size / 2 for size in known.sizes])
        self._kept = checkpoints(halved, self._capacity, free_disk())
        logger.info(
            "values of %d images take up to %.1f GiB: they are kept at %d of %d layers, and computed again elsewhere",
            *(self.num_images, most / 2**30, sum(self._kept), len(stops)),
        )

    def chunks_at(self, node: fx.Node) -> Iterator[Chunk]:
        """The chunks of images that `node`, the next stop, needs, one after the other, with both networks before it."""
        stop = self._stops.index(node)
        keep, ends = self._kept[stop], self._ends[stop]
        kept = ValueStore(self._capacity, self._constant, self._half, beside=self._store)
        with ExitStack() as unfinished:
            unfinished.callback(kept.close)
            for turn in range(self._chunks[stop]):
                values, at = self._values(turn, again=not keep)
                for side in (0, 1):
                    self._runners[side].run(values[side], self._order[at[side] : ends[side]], self._free)
                images = self._ranges[turn]
                yield Chunk(images.start, len(images), values, self._runners)
                if keep:
                    kept.add(values)
            if keep:
                unfinished.pop_all()
                if self._store is not None:
                    self._store.close()
                self._store, self._at = kept, ends

    def close(self) -> None:
        for store in (self._images, self._store):
            if store is not None:
                store.close()

    def _values(self, turn: int, again: bool) -> tuple[Both, tuple[int, int]]:
        """The values of a chunk, and how many calls each network has made of them."""
        if self._store is not None and turn < len(self._store):
            return (self._store.copy(turn) if again else self._store.take(turn)), self._at
        number = self._turns[turn]
        return self._bound(self._images.read(number) if again else self._images.take(number)), (0, 0)

    def _bound(self, images: Any) -> Both:
        """Each network gets a copy of the images, because it may write into them."""
        return self._runners[0].bind(images, copy=True), self._runners[1].bind(images, copy=True)

    def _images_at_once(self, graph: ChannelGraph) -> int:
        """Images in a chunk: as many as keep the values of a call small. On other devices than a CPU, `CHUNK`."""
        count = CHUNK
        if self._runners[0].traced.guards or device_of(graph.model).type != "cpu":
            return count
        values, free, most = self._bound(self._some), last_uses(self.pair.nodes), 1
        for side in (0, 1):
            for _ in self._runners[side].steps(values[side], free=free):
                most = max(most, self._size(values[side]))
        while count > 1 and count * most > min(AT_ONCE, self._memory / 8):
            count //= 2
        return count

    def _measure(self) -> Stops:
        """What the choice of checkpoints has to know, measured with the first image."""
        images = [sum(map(len, self._ranges[:count])) for count in self._chunks]
        seconds: list[float] = []
        sizes: list[float] = []
        for _ in range(2):  # the first time is slower
            values, at, spent = self._bound(self._some), (0, 0), 0.0
            seconds, sizes = [], []
            for ends in self._ends:
                begun = time.thread_time()
                for side in (0, 1):
                    self._runners[side].run(values[side], self._order[at[side] : ends[side]], self._free)
                spent += time.thread_time() - begun
                at = ends
                seconds.append(spent / count_images(self._some))
                sizes.append(self._size(values) / count_images(self._some))
        return Stops(seconds, sizes, images)

    def _size(self, values: Any) -> int:
        """Bytes of the values, without weights and buffers."""
        return bytes_of(values, without=self._constant)


@contextmanager
def lockstep(graph: ChannelGraph, plan: Plan, images: Images, memory: str | int | None = None) -> Iterator[Lockstep]:
    """The original network and a new one pruned by `plan`, both in eval mode inside the block.

    memory: how much the process may take: 4G, 500M, or a number of bytes; half of the machine's by default.
    """
    bound = None if memory is None else parse_memory(memory)
    pruned = prune(graph, plan)
    with evaluating(graph.model), evaluating(pruned), generators_kept(), torch.no_grad():
        networks = Lockstep(graph, pruned, images, graph.liveness(graph.keep_of(plan)), bound)
        try:
            yield networks
        finally:
            networks.close()
