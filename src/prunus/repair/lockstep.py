"""Two networks run in lockstep, front to back: both stop in front of a layer with all images before any goes on.

So a layer can be changed depending on what both networks have computed so far. A stop may need only some of the images;
the others then run through it later, without stopping. The images run in small chunks. Between two stops their values
are kept in memory if they fit. If not, they are kept in half precision, in memory and in a file, or computed again
(`prunus.repair.value_store`).
"""

from __future__ import annotations

import bisect
import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.cost import Liveness
from prunus.graph.layer_surgery import depthwise_filters
from prunus.graph.plan import Plan
from prunus.graph.runner import GraphRunner, Values, last_uses
from prunus.graph.selection import selection_of
from prunus.graph.traced import MIXING, Traced, is_depthwise
from prunus.graph.units import Indices, Mask
from prunus.repair.value_store import Stops, ValueStore, bytes_of, checkpoints, free_disk
from prunus.score.passes import CHUNK, Images, chunks, count_of
from prunus.util.batches import device_of
from prunus.util.processes import bytes_of_words, total_memory, used_memory
from prunus.util.state import evaluating, generators_kept

# The original and the pruned network side by side: which calls the cut has changed, and which channels are kept.


class NetworkPair:
    """Two networks with the same calls. models: the original and the pruned one."""

    def __init__(self, graph: ChannelGraph, pruned: nn.Module, live: Liveness, traced: Traced) -> None:
        self.traced, self.found = traced, graph.analysis
        self.nodes: list[fx.Node] = list(traced.graph.nodes)
        self.models = (graph.model, pruned)
        self._live, self._owners = live, graph.selections.readers
        self._changed = self._after_cuts()

    def layer(self, node: fx.Node) -> Any:
        """The module that a call_module node calls in the pruned network."""
        return self.models[1].get_submodule(str(node.target))

    def called_once(self, node: fx.Node) -> bool:
        """Whether the node calls a module that no other node calls."""
        return node.op == "call_module" and self.traced.calls[str(node.target)] == 1

    def changed(self, node: fx.Node) -> bool:
        """Whether the node computes something else in the pruned network."""
        return node in self._changed

    def lost_inputs(self, node: fx.Node) -> bool:
        """Whether the node is a conv or linear layer that reads fewer channels than it did."""
        name = self.found.traced.layer_of(node)
        if name is None or name not in self.found.reads:
            return False
        before, after = (_width(model.get_submodule(name)) for model in self.models)
        return after < before

    def _after_cuts(self) -> set[fx.Node]:
        changed: set[fx.Node] = set()
        for node in self.nodes:
            if self.lost_inputs(node) or any(used in changed for used in node.all_input_nodes):
                changed.add(node)
        return changed

    def kept_channels(self, name: str) -> Tensor | None:
        """Which channels of a layer that works channel by channel are kept; None if that is unknown."""
        # A selection comes first, so the layers between it and its reader have only the channels that are read.
        mask = self._live.read.get(self._owners.get(name, ""), self._live.alive)
        return _kept(self.found.passes.get(name), mask)

    def kept_outputs(self, name: str) -> Tensor | None:
        """Which outputs of a conv or linear layer are kept; None if that is unknown."""
        before, after = (model.get_submodule(name) for model in self.models)
        if is_depthwise(before):
            channels = self.kept_channels(name)
            kept = None if channels is None else torch.from_numpy(depthwise_filters(before, channels.numpy()))
        else:
            kept = _kept(self.found.writes.get(name), self._live.alive) if name in self.found.reads else None
        wide = getattr(after, "out_features", getattr(after, "out_channels", None))
        return kept if kept is not None and len(kept) == wide else None


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
    weight = getattr(layer, "weight", None)  # of a layer that the user has written
    return int(weight.shape[1]) if isinstance(weight, Tensor) else 0


log = logging.getLogger(__name__)

AT_ONCE = 2**26  # bytes of values that are computed at a time on a CPU: more of them are slower, not faster
IMAGES = 0.125  # share of the memory for the images themselves
USED = 0.9  # share of the memory that is planned with: freed memory comes back in pieces
GOLDEN = 0.618033988749895  # its multiples, modulo 1, are spread evenly
Both = tuple[Values, Values]  # of the original network, of the pruned one


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


@dataclass(frozen=True, eq=False)
class Route:
    """The calls in order, and the stops among them. ahead: whether the original network makes the call of a stop before
    the pruned one stops in front of it. reserve: bytes that the caller needs at a stop. images: how many of the images
    each stop needs at least; all if it is None."""

    order: Sequence[fx.Node]
    stops: Sequence[fx.Node]
    ahead: bool
    reserve: int = 0
    images: Sequence[int] | None = None


class Walk:
    """Both networks on their way. `take` the route first; then ask for the chunks at each of its stops in turn."""

    def __init__(
        self, graph: ChannelGraph, pruned: nn.Module, images: Images, live: Liveness, memory: int | None
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
        self._images = ValueStore(self._memory if given else int(IMAGES * self._memory))
        self.num_images, found = 0, []
        for part in _all(first, parts):
            for start in range(0, count_of(part), at_once):
                few = tree_map(lambda t, i=start: t[i : i + at_once], part)
                self._images.add(few if given else tree_map(torch.clone, few))
                found.append(range(self.num_images, self.num_images + count_of(few)))
                self.num_images += count_of(few)
        # Images may be sorted by class, so a stop that needs only some of the chunks takes them from everywhere.
        self._order = sorted(range(len(found)), key=lambda number: number * GOLDEN % 1)
        self._turns = [found[number] for number in self._order]  # the images of each chunk, by turn
        self._store: ValueStore | None = None  # None: at the images
        self._at = 0, 0  # calls that each network has made of the values in the store

    def take(self, route: Route) -> None:
        """Decide where values are kept on this route."""
        self._route, self._free = route, last_uses(route.order)
        self._place = {node: i for i, node in enumerate(route.order)}
        self._capacity = max(0, int(USED * self._memory) - used_memory() - route.reserve - 4 * AT_ONCE)
        self._chunks = self._chunks_needed(route)
        stops = self._tried(route)
        most = max((stops.bytes_at(k) for k in range(len(stops.sizes))), default=0.0)
        self._half = most > self._capacity  # the precision of kept values
        if not self._half:
            self._kept = [True] * len(stops.sizes)
            return
        halved = replace(stops, sizes=[size / 2 for size in stops.sizes])
        self._kept = checkpoints(halved, self._capacity, free_disk())
        log.info(
            "values of %d images take up to %.1f GiB: they are kept at %d of %d layers, and computed again elsewhere",
            self.num_images,
            most / 2**30,
            sum(self._kept),
            len(stops.sizes),
        )

    def upto(self, node: fx.Node) -> Iterator[Chunk]:
        """The chunks of images that `node`, the next stop, needs, one after the other, with both networks before it."""
        stop = self._route.stops.index(node)
        keep = self._kept[stop]
        ends = self._place[node] + self._route.ahead, self._place[node]
        kept = ValueStore(self._capacity, self._constant, self._half, beside=self._store)
        with ExitStack() as unfinished:
            unfinished.callback(kept.close)
            for turn in range(self._chunks[stop]):
                values, at = self._values(turn, again=not keep)
                for side in (0, 1):
                    self._runners[side].run(values[side], self._route.order[at[side] : ends[side]], self._free)
                images = self._turns[turn]
                yield Chunk(images.start, len(images), values, self._runners)
                if keep:
                    kept.add(values)
            if keep:
                unfinished.pop_all()
                if self._store is not None:
                    self._store.close()
                self._store, self._at = kept, ends

    def close(self) -> None:
        """Free everything, in memory and on disk."""
        for store in (self._images, self._store):
            if store is not None:
                store.close()

    def _values(self, turn: int, again: bool) -> tuple[Both, tuple[int, int]]:
        """The values of a chunk, and how many calls each network has made of them."""
        if self._store is not None and turn < len(self._store):
            return (self._store.copy(turn) if again else self._store.take(turn)), self._at
        number = self._order[turn]
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

    def _chunks_needed(self, route: Route) -> list[int]:
        """The number of chunks that each stop needs, never fewer than the one before."""
        wanted = itertools.accumulate(route.images or [self.num_images] * len(route.stops), max)
        ends = list(itertools.accumulate(map(len, self._turns)))
        return [min(bisect.bisect_left(ends, count) + 1, len(ends)) for count in wanted]

    def _tried(self, route: Route) -> Stops:
        """What the choice of checkpoints has to know, measured with the first image."""
        images = [sum(map(len, self._turns[:count])) for count in self._chunks]
        result = Stops([], [], images)
        for _ in range(2):  # the first time is slower
            values, at, seconds, sizes, spent = self._bound(self._some), [0, 0], [], [], 0.0
            for stop in route.stops:
                ends = self._place[stop] + route.ahead, self._place[stop]
                begun = time.thread_time()
                for side in (0, 1):
                    self._runners[side].run(values[side], route.order[at[side] : ends[side]], self._free)
                spent += time.thread_time() - begun
                at = list(ends)
                seconds.append(spent)
                sizes.append(float(self._size(values)))
            count = count_of(self._some)
            result = Stops([s / count for s in seconds], [s / count for s in sizes], images)
        return result

    def _size(self, values: Any) -> int:
        return bytes_of(tree_map(lambda t: None if _address(t) in self._constant else t, values))


@contextmanager
def walked(graph: ChannelGraph, plan: Plan, images: Images, memory: str | int | None = None) -> Iterator[Walk]:
    """A walk through the original network and a new one pruned by `plan`, both in eval mode inside the block.

    memory: how much the process may take: 4G, 500M, or a number of bytes; half of the machine's by default.
    """
    bound = None if memory is None else bytes_of_words(memory)
    pruned = prune(graph, plan)
    with evaluating(graph.model), evaluating(pruned), generators_kept(), torch.no_grad():
        walk = Walk(graph, pruned, images, graph.liveness(graph.keep_of(plan)), bound)
        try:
            yield walk
        finally:
            walk.close()


def _all(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _address(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None
