"""Evaluate many small changes to one network, without computing again what comes before each change.

A batch runs once through the whole traced graph, and the values that some unit's readers start from are kept. To get
the logits when one unit has lost channels, only the calls that depend on the unit's readers run again.

Calls that overwrite their input are found on the first batch and run on a copy from then on. The model itself runs
instead where copies would change the result (the overwritten value is used again), and where the trace only fits the
batch size of the example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.runner import GraphRunner, InPlaceError, Values, copied, last_uses
from prunus.graph.surgery import zeroed
from prunus.tasks.evaluate import tensors_of
from prunus.util.batches import call, logits_of

# (unit, kept channels) -> a block in which the graph's model lacks the unit's other channels. It may change the unit's
# readers and what comes after them, and nothing else.
Cut = Callable[[str, Sequence[int]], AbstractContextManager[None]]

KEPT_BYTES = 2**29  # for kept values
_MISFITS = (RuntimeError, TypeError, ValueError, KeyError)  # what a trace raises on a batch that it does not fit


class PartialForward:
    """Evaluates a network batch by batch: whole, and with channels of single units cut (by default zeroed)."""

    def __init__(self, graph: ChannelGraph, cut: Cut | None = None, outputs: Callable[[Any], Any] = logits_of) -> None:
        """outputs: the network's output -> what `whole` and `without` return of it."""
        self.graph, self._outputs = graph, outputs
        self._cut = cut or cut_by_zeroing(graph)
        self._runner = GraphRunner(graph.analysis.traced)
        self._again = {
            name: self._runner.dependents(self._runner.calls_of(graph.zeroing(name))) for name in graph.units
        }
        self._free_again = {unit: last_uses(nodes) for unit, nodes in self._again.items()}
        needed: set[fx.Node] = set()  # nodes that some unit's calls use and do not compute themselves
        for nodes in self._again.values():
            needed.update({used for node in nodes for used in node.all_input_nodes} - {*nodes})
        self._free_whole = last_uses(self._runner.nodes, needed)
        self.at_once = max(1, KEPT_BYTES // max(1, self._bytes_per_image(needed)))  # images whose values fit in memory
        self._values: Values = {}
        self._inputs: Any = None
        self._plain = False

    def agrees(self, images: Any) -> bool:
        """Whether the trace computes what the model computes on these images. If not, the model itself runs from then
        on. Call this on the first batch.
        """
        self._plain = not trace_agrees(self._runner, images, self._outputs)
        return not self._plain

    def whole(self, images: Any) -> Any:
        """Outputs of the whole network. The values that `without` needs are kept."""
        self._inputs, self._values = images, {}
        if not self._plain:
            try:
                self._values = self._runner.bind(images)
                return self._outputs(self._runner.run(self._values, free=self._free_whole))
            except _MISFITS:
                self._plain, self._values = True, {}
        return self._by_the_model(images)

    def without(self, unit: str, kept: list[int]) -> Any:
        """Outputs on the same images when `unit` keeps only these channels."""
        with self._cut(unit, kept):
            if self._plain:
                return self._by_the_model(self._inputs)
            return self._outputs(self._runner.run(dict(self._values), self._again[unit], self._free_again[unit]))

    def _by_the_model(self, images: Any) -> Any:
        return self._outputs(call(self.graph.model, tree_map(copied, images)))  # it may overwrite its input

    def _bytes_per_image(self, needed: Iterable[fx.Node]) -> int:
        """Memory of these values for each image of the example."""
        placeholders = [n for n in self._runner.nodes if n.op == "placeholder"]
        images = max((size[0] for n in placeholders for size in self._sizes(n) if size), default=1)
        width = max((p.element_size() for p in self.graph.model.parameters()), default=4)
        return sum(size.numel() for n in needed for size in self._sizes(n)) * width // max(1, images)

    def _sizes(self, node: fx.Node) -> list[torch.Size]:
        shapes = self.graph.analysis.traced.shapes.get(node.name)
        return [x for x in tree_leaves(shapes, lambda x: isinstance(x, torch.Size)) if isinstance(x, torch.Size)]


def trace_agrees(runner: GraphRunner, images: Any, outputs: Callable[[Any], Any]) -> bool:
    """Whether the trace computes what the model computes on these images. Calls that overwrite their input are found,
    and the runner runs them on copies from then on."""
    try:
        runner.run_in_place_calls_on_copies(images)
        got = list(tensors_of(outputs(runner.run(runner.bind(images)))))
    except (InPlaceError, *_MISFITS):
        return False
    want = list(tensors_of(outputs(call(runner.traced.model, tree_map(copied, images)))))
    return len(got) == len(want) and all(
        a.shape == b.shape and bool(torch.allclose(a, b, atol=1e-4, rtol=1e-3)) for a, b in zip(got, want, strict=True)
    )


def cut_by_zeroing(graph: ChannelGraph) -> Cut:
    """A cut that zeroes the unit's channels and repairs nothing."""
    return lambda unit, kept: zeroed(graph, {unit: kept})
