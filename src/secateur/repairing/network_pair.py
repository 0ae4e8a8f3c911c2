"""The original and the pruned network side by side: which calls the cut has changed, and which channels are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from secateur.channels.graph import ChannelGraph
from secateur.channels.layer_kinds import MIXING, is_depthwise
from secateur.channels.layer_surgery import depthwise_filters
from secateur.channels.liveness import Liveness
from secateur.channels.selection import selection_of
from secateur.channels.traced import Traced
from secateur.channels.units import Indices, Mask


class NetworkPair:
    """Two networks with the same calls. models: the original and the pruned one."""

    def __init__(self, graph: ChannelGraph, pruned: nn.Module, live: Liveness, traced: Traced) -> None:
        self.traced, self.found = traced, graph.found
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
