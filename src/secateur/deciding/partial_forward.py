"""Many small changes to one network, each evaluated without computing again what stands in front of it.

A batch runs once through the whole traced graph, and the values at which some unit's change sets in are kept. To see
what the network says when one unit has lost channels, only the calls that depend on the unit's readers run again.

Calls that overwrite their input are found on the first batch and run on a copy from then on. Where that would not be
the same (the overwritten value is used again), and where the trace only fits the example's batch size, the model itself
runs instead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from secateur.base.batches import call, logits_of
from secateur.channels.graph import ChannelGraph
from secateur.channels.zeroing import zeroed

# (unit, kept channels) -> a block in which the graph's model lacks the unit's other channels. It may change the unit's
# readers and what lies behind them, and nothing else.
Cut = Callable[[str, Sequence[int]], AbstractContextManager[None]]

_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
KEPT_BYTES = 2**29  # of values that are kept
_MISFITS = (RuntimeError, TypeError, ValueError, KeyError)  # what a trace raises on a batch that it does not fit


class Staged:
    """Evaluates a network batch by batch: whole, and with channels of single units gone (zeroed, unless `cut` says)."""

    def __init__(self, graph: ChannelGraph, cut: Cut | None = None) -> None:
        self.graph = graph
        self._cut = cut or cut_by_zeroing(graph)
        self._nodes: list[fx.Node] = list(graph.found.traced.graph.nodes)
        self._modules = {n: graph.found.traced.module(n) for n in self._nodes if n.op == "call_module"}
        self._again = self._dependents()
        self._done_with = {unit: _last_uses(nodes) for unit, nodes in self._again.items()}
        needed = {
            used for nodes in self._again.values() for n in nodes for used in n.all_input_nodes if used not in nodes
        }
        self._done_with_whole = _last_uses(self._nodes, needed)
        self.at_once = max(1, KEPT_BYTES // max(1, self._bytes_an_image(needed)))  # images whose values fit in memory
        self._values: dict[fx.Node, Any] = {}
        self._overwriting: set[fx.Node] = set()
        self._inputs: Any = None
        self._plain = False

    def agrees(self, images: Any) -> bool:
        """Whether the trace can stand for the model on these images; if not, the model itself runs from then on.

        To be asked on the first batch.
        """
        try:
            self._overwriting = self._find_overwriting(images)
            got = self._run(self._nodes, self._start(images))
        except (_Shared, *_MISFITS):
            got = torch.zeros(0)
        want = logits_of(call(self.graph.model, tree_map(_copy, images)))
        same = got.shape == want.shape and bool(torch.allclose(got, want, atol=1e-4, rtol=1e-3))
        self._plain = not same
        return same

    def whole(self, images: Any) -> Tensor:
        """Logits of the whole network; what it computed on the way is kept for `without`."""
        self._inputs, self._values = images, {}
        if not self._plain:
            try:
                self._values = self._start(images)
                return self._run(self._nodes, self._values, self._done_with_whole)
            except _MISFITS:
                self._plain, self._values = True, {}
        return self._by_the_model()

    def without(self, unit: str, kept: list[int]) -> Tensor:
        """Logits on the same images when `unit` keeps only these channels."""
        with self._cut(unit, kept):
            if self._plain:
                return self._by_the_model()
            return self._run(self._again[unit], dict(self._values), self._done_with[unit])

    def _bytes_an_image(self, needed: Iterable[fx.Node]) -> int:
        """Bytes that these values have for each image of the example."""
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        images = max((size[0] for n in placeholders for size in self._sizes(n) if size), default=1)
        width = max((p.element_size() for p in self.graph.model.parameters()), default=4)
        values = sum(size.numel() for n in needed for size in self._sizes(n))
        return int(values * width // max(1, images))

    def _sizes(self, node: fx.Node) -> list[torch.Size]:
        shapes = self.graph.found.traced.shapes.get(node.name)
        leaves = tree_leaves(shapes, is_leaf=lambda x: isinstance(x, torch.Size))
        return [size for size in leaves if isinstance(size, torch.Size)]

    def _by_the_model(self) -> Tensor:
        return logits_of(call(self.graph.model, tree_map(_copy, self._inputs)))  # it may overwrite its input

    def _dependents(self) -> dict[str, list[fx.Node]]:
        """unit -> the calls that depend on what its readers say, in order."""
        order = {node: i for i, node in enumerate(self._nodes)}
        again = {}
        for name, unit in self.graph.units.items():
            reached: set[fx.Node] = set()
            readers = {reader.module for reader in unit.readers}
            waiting = [n for n in self._nodes if n.op == "call_module" and str(n.target) in readers]
            while waiting:
                node = waiting.pop()
                if node not in reached:
                    reached.add(node)
                    waiting += list(node.users)
            again[name] = sorted(reached, key=order.__getitem__)
        return again

    def _start(self, images: Any) -> dict[fx.Node, Any]:
        traced = self.graph.found.traced
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        values: dict[fx.Node, Any] = {}
        given = images if isinstance(images, tuple | list) else (images,)
        free = [n for n in placeholders if traced.shapes[n.name] is not None]
        if isinstance(images, dict):
            values |= {n: images[str(n.target)] for n in free}
        else:
            values |= dict(zip(free, given, strict=True))
        for node in placeholders:
            if node not in values:
                name = next((k for k in traced.constants if node.name in (k, f"{k}_1")), None)
                values[node] = None if name is None else traced.constants[name]
        return values

    def _run(
        self, nodes: list[fx.Node], values: dict[fx.Node, Any], done_with: dict[fx.Node, list[fx.Node]] | None = None
    ) -> Tensor:
        """Run calls in order on kept values; `done_with` says what may be forgotten after which call."""
        for node in nodes:
            if node.op == "placeholder":
                continue
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            if node.op == "output":
                return logits_of(args[0])
            values[node] = self._call(node, args, kwargs)
            if done_with is not None:  # frees memory that the next calls can use while it is still in the cache
                del args, kwargs
                for spent in done_with.get(node, ()):
                    del values[spent]
        raise RuntimeError("the graph has no output")

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if node in self._overwriting:  # a kept value must stay what it was
            if target in _IN_PLACE:
                return _IN_PLACE[target](*args, **kwargs)
            args, kwargs = tree_map(_copy, (args, kwargs))
        if node.op == "call_module":
            return self._modules[node](*args, **kwargs)
        if node.op == "get_attr":
            owner, _, attribute = str(target).rpartition(".")
            return getattr(self.graph.model.get_submodule(owner), attribute)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _find_overwriting(self, images: Any) -> set[fx.Node]:
        """Calls that overwrite one of their arguments; _Shared where somebody reads the same memory afterwards."""
        values = self._start(tree_map(_copy, images))
        order = {node: i for i, node in enumerate(self._nodes)}
        found: dict[fx.Node, set[int]] = {}  # call -> memory that it writes to
        for node in self._nodes:
            if node.op not in ("placeholder", "output"):
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                before = [(x, x._version) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
                values[node] = self._call(node, args, kwargs)
                written = {_memory(x) for x, version in before if x._version != version}
                if written:
                    found[node] = written
            for used in node.all_input_nodes:
                here = {_memory(x) for x in tree_leaves(values[used]) if isinstance(x, Tensor)}
                if any(order[used] < order[w] < order[node] and here & memory for w, memory in found.items()):
                    raise _Shared
        return set(found)


def cut_by_zeroing(graph: ChannelGraph) -> Cut:
    """A unit's channels zeroed, and nothing repaired."""
    return lambda unit, kept: zeroed(graph, {unit: kept})


class _Shared(Exception):
    """A value that was overwritten is used again, so the order of calls matters."""


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _last_uses(nodes: list[fx.Node], kept: Collection[fx.Node] = ()) -> dict[fx.Node, list[fx.Node]]:
    """call -> values computed in `nodes` that no later one of them needs, and that are not to be kept."""
    last: dict[fx.Node, fx.Node] = {}
    inside = set(nodes) - set(kept)
    for node in nodes:
        for used in node.all_input_nodes:
            if used in inside:
                last[used] = node
    spent: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        spent.setdefault(node, []).append(used)
    return spent
