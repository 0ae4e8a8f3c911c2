"""Two networks run in lockstep: each call of the traced graph is made for all images, in the original and in the pruned
network, before the next call. So a layer can be changed depending on what both networks have computed so far, and the
whole walk costs one forward pass of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import MIXING, is_depthwise
from secateur.channels.layer_surgery import depthwise_filters
from secateur.channels.liveness import Liveness
from secateur.channels.plan import Plan
from secateur.channels.runner import GraphRunner, Values, last_uses
from secateur.channels.selection import selection_of
from secateur.channels.surgery import prune
from secateur.channels.traced import Traced
from secateur.channels.units import Indices, Mask
from secateur.scoring.unlabelled_images import CHUNK, Images, count_of, gather


class Walk:
    """The values of both networks at the current node, for every chunk of images. Values are freed after last use."""

    def __init__(self, graph: ChannelGraph, pruned: nn.Module, images: Any, live: Liveness) -> None:
        count = count_of(images)
        guarded = bool(graph.found.traced.guards)
        if guarded and count > CHUNK:
            count -= count % CHUNK  # the trace below is valid for one number of images only
        starts = range(0, count, CHUNK)
        chunks = [tree_map(lambda t, i=i: t[i : min(i + CHUNK, count)], images) for i in starts]
        self.traced: Traced = graph.traced_for(chunks[0])
        self.found = graph.found
        self._live = live
        self._owners = graph.selections.readers
        self.nodes: list[fx.Node] = list(self.traced.graph.nodes)
        self.models = (graph.model, pruned)
        self.num_images = count
        self.sizes = [count_of(chunk) for chunk in chunks]
        self._runners = (GraphRunner(self.traced), GraphRunner(self.traced, pruned))
        # Each network gets a copy of the images, because it may write into them.
        self._values: list[tuple[Values, Values]] = [
            (self._runners[0].bind(chunk, copy=True), self._runners[1].bind(chunk, copy=True)) for chunk in chunks
        ]
        self._free = last_uses(self.nodes)
        self._done: set[fx.Node] = set()
        self._changed = self._after_cuts()

    # -- what the cut has changed

    def layer(self, node: fx.Node) -> Any:
        """The module that a call_module node calls in the pruned network."""
        return self.models[1].get_submodule(str(node.target))

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

    # -- values

    def value(self, node: fx.Node, side: int, chunk: int) -> Any:
        """What `node` returned in the original (side 0) or the pruned network (1) for a chunk of images."""
        return self._values[chunk][side][node]

    def entering(self, node: fx.Node, side: int, chunk: int) -> Tensor:
        """The input of the module of a call, after its channel selection."""
        x: Tensor = self._runners[side].arguments(node, self._values[chunk][side])[0][0]
        selection = selection_of(self.models[side].get_submodule(str(node.target)))
        return x if selection is None else selection.of(x)

    def done(self, node: fx.Node) -> bool:
        """Whether the call has been made in both networks."""
        return node in self._done

    def run(self, node: fx.Node, sides: tuple[int, ...] = (0, 1)) -> None:
        """Make the call in the networks `sides` (0 the original, 1 the pruned one) for all images."""
        for values in self._values:
            for side in sides:
                values[side][node] = self._runners[side].call(node, values[side])
        if 1 in sides:
            self._done.add(node)

    def free(self, node: fx.Node) -> None:
        """Free the values that `node` was the last to use."""
        for values in self._values:
            for side in values:
                for dead in self._free.get(node, ()):
                    side.pop(dead, None)


@contextmanager
def walked(graph: ChannelGraph, plan: Plan, images: Images) -> Iterator[Walk]:
    """A walk through the original network and a new one pruned by `plan`, both in eval mode inside the block."""
    inputs = gather(graph, images)
    pruned = prune(graph, plan)
    with evaluating(graph.model), evaluating(pruned), generators_kept(), torch.no_grad():
        yield Walk(graph, pruned, inputs, graph.liveness(graph.keep_of(plan)))


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
