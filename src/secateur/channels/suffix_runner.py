"""Run a recorded graph from a layer on, many times, without computing again what comes before the layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from secateur.channels.runner import GraphRunner, Values, last_uses


class SuffixRunner:
    """One batch in a graph. The values at one place are kept. The place moves on with the layers that are asked for;
    for a layer before it, the graph starts again. So asking for layers in the order of the network costs one pass in
    all, and what comes after each layer."""

    def __init__(self, runner: GraphRunner, images: Any) -> None:
        self._runner, self._images = runner, images
        self._free = last_uses(runner.nodes)
        self._values: Values = {}
        self._place = len(runner.nodes)  # the values are those before this node runs

    def from_layers(self, layers: Collection[str]) -> Any:
        """The graph's output. Only what runs before the first of the layers may be as it was at an earlier call."""
        nodes = self._runner.nodes
        start = nodes.index(self._runner.calls_of(layers)[0])
        if start < self._place:
            self._values, self._place = self._runner.bind(self._images), 0
        self._runner.run(self._values, nodes[self._place : start], self._free)
        self._place = start
        return self._runner.run(dict(self._values), nodes[start:], self._free)
