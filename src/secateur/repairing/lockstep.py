"""Two networks walked through in lock-step: each call of the traced graph made for all images, in the original and in
the pruned network, before the next one is looked at. So a layer can be changed in the light of what both have computed
up to it, and the whole walk costs one forward of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from secateur.channels.graph import ChannelGraph, Liveness, Mask
from secateur.channels.layer_surgery import depthwise_filters
from secateur.channels.rulebook import is_leaf
from secateur.channels.rules import is_depthwise
from secateur.channels.selection import selection_of
from secateur.channels.tracing import Traced, as_call, trace_calls
from secateur.channels.units import Indices
from secateur.scoring.unlabelled_images import CHUNK, count_of

Values = dict[fx.Node, Any]


class Walk:
    """The values of both networks at the present node, for every chunk of images; what no later call needs is freed."""

    def __init__(self, graph: ChannelGraph, pruned: nn.Module, images: Any, live: Liveness) -> None:
        count = count_of(images)
        guarded = bool(graph.found.traced.guards)
        if guarded and count > CHUNK:
            count -= count % CHUNK  # the trace below holds for one number of images only
        starts = range(0, count, CHUNK)
        chunks = [tree_map(lambda t, i=i: t[i : min(i + CHUNK, count)], images) for i in starts]
        # Code that has looked at sizes may have seen the example's number of images: trace it with this one.
        self.traced: Traced = trace_calls(graph.model, chunks[0], is_leaf) if guarded else graph.found.traced
        self.found = graph.found
        self._live = live
        self._owners = graph.selections_by_member
        self.nodes: list[fx.Node] = list(self.traced.graph.nodes)
        self.models = (graph.model, pruned)
        self.images = count
        self.sizes = [count_of(chunk) for chunk in chunks]
        self._inputs = chunks
        self._values: list[tuple[Values, Values]] = [({}, {}) for _ in chunks]
        self._dying = _last_uses(self.nodes)
        self._done: set[fx.Node] = set()
        self._changed = self._behind_cuts()

    # -- what is the same, and what is not

    def layer(self, node: fx.Node) -> Any:
        """The module that a call_module node calls in the pruned network."""
        return self.models[1].get_submodule(str(node.target))

    def changed(self, node: fx.Node) -> bool:
        """Whether the node computes something else in the pruned network, be it ever so little."""
        return node in self._changed

    def lost_inputs(self, node: fx.Node) -> bool:
        """Whether the node is a conv or linear layer that reads fewer channels than it did."""
        if node.op != "call_module" or str(node.target) not in self.found.reads:
            return False
        before, after = (_width(model.get_submodule(str(node.target))) for model in self.models)
        return after < before

    def _behind_cuts(self) -> set[fx.Node]:
        changed: set[fx.Node] = set()
        for node in self.nodes:
            if self.lost_inputs(node) or any(used in changed for used in node.all_input_nodes):
                changed.add(node)
        return changed

    def kept_channels(self, name: str) -> Tensor | None:
        """Which channels of a layer that works channel by channel are left; None where they are not known."""
        # Between a selection and its reader there is only what that reader reads.
        mask = self._live.read.get(self._owners.get(name, ""), self._live.alive)
        return _kept(self.found.passes.get(name), mask)

    def kept_outputs(self, name: str) -> Tensor | None:
        """Which outputs of a conv or linear layer are left; None where they are not known."""
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
        """The tensor that the module of a call computes with, behind its channel selection."""
        x: Tensor = self._arguments(node, side, chunk)[0]
        selection = selection_of(self.models[side].get_submodule(str(node.target)))
        return x if selection is None else x.index_select(selection.dim, selection.index)

    def done(self, node: fx.Node) -> bool:
        """Whether the call has been made in both networks."""
        return node in self._done

    def run(self, node: fx.Node, sides: tuple[int, ...] = (0, 1)) -> None:
        """Make the call in the networks `sides` (0 the original, 1 the pruned one) for all images."""
        for number, values in enumerate(self._values):
            for side in sides:
                values[side][node] = self._call(node, side, number)
        if 1 in sides:
            self._done.add(node)

    def free(self, node: fx.Node) -> None:
        """Forget what `node` was the last to use."""
        for values in self._values:
            for side in values:
                for dead in self._dying.get(node, ()):
                    side.pop(dead, None)

    def _arguments(self, node: fx.Node, side: int, chunk: int) -> tuple[Any, ...]:
        values = self._values[chunk][side]
        found: tuple[Any, ...] = fx.node.map_arg(node.args, lambda n: values[n])
        return found

    def _call(self, node: fx.Node, side: int, chunk: int) -> Any:
        if node.op == "placeholder":
            return self._input(node, chunk)
        if node.op == "get_attr":
            name = str(node.target)
            if name.startswith("_tensor_constant"):  # a constant of the code, which is the same for both
                return self.traced.attributes[name]
            return _attribute(self.models[side], name)
        if node.op == "output":
            return None
        args = self._arguments(node, side, chunk)
        values = self._values[chunk][side]
        kwargs: dict[str, Any] = fx.node.map_arg(node.kwargs, lambda n: values[n])
        if node.op == "call_module":
            return self.models[side].get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _input(self, node: fx.Node, chunk: int) -> Any:
        for name, value in self.traced.constants.items():
            if node.name == name or node.name.rpartition("_")[0] == name:
                return value
        args, kwargs = as_call(self._inputs[chunk])
        given = kwargs.get(node.name) if kwargs else args[self._position(node)]
        return given.clone() if isinstance(given, Tensor) else given  # the network may write into it

    def _position(self, node: fx.Node) -> int:
        return [n for n in self.nodes if n.op == "placeholder"].index(node)


def _kept(channels: Indices | None, mask: Mask) -> Tensor | None:
    if channels is None:
        return None
    return torch.from_numpy(np.flatnonzero((channels < 0) | mask[np.maximum(channels, 0)]))


def _width(layer: nn.Module) -> int:
    return int(getattr(layer, "in_features", getattr(layer, "in_channels", 0)))


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """node -> the nodes whose value it is the last to use."""
    last: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        last[node] = node  # what nobody uses dies at once
        for used in node.all_input_nodes:
            last[used] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for used, user in last.items():
        dying.setdefault(user, []).append(used)
    return dying


def _attribute(model: nn.Module, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    value = getattr(model.get_submodule(owner), attribute)
    return value.detach() if isinstance(value, Tensor) else value
