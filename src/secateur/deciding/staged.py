"""Many small changes to one network, each evaluated without computing again what stands in front of it.

A batch runs once through the whole traced graph, and every value is kept. To see what the network says when one unit
has lost channels, only the calls that depend on the unit's readers run again.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur.channels.graph import ChannelGraph, Keep
from secateur.channels.zero import zeroed
from secateur.measuring.batches import call, logits_of

_IN_PLACE: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


class Staged:
    """Evaluates a network batch by batch: whole, and with channels of single units zeroed."""

    def __init__(self, graph: ChannelGraph) -> None:
        self.graph = graph
        self._nodes: list[fx.Node] = list(graph.found.traced.graph.nodes)
        self._modules = {n: graph.found.traced.module(n) for n in self._nodes if n.op == "call_module"}
        self._again = self._dependents()
        self._done_with = {unit: _last_uses(nodes) for unit, nodes in self._again.items()}
        self._values: dict[fx.Node, Any] = {}
        self._inputs: Any = None
        self._plain = False

    def whole(self, images: Any) -> Tensor:
        """Logits of the whole network; what it computed on the way is kept for `without`."""
        self._inputs, self._values = images, {}
        if not self._plain:
            self._values = self._start(images)
            try:
                return self._run(self._nodes, self._values)
            except (RuntimeError, TypeError, ValueError, KeyError):
                self._plain = True  # the trace has the example's batch size in it: run the model itself instead
        self._values = {}
        return logits_of(call(self.graph.model, images))

    def without(self, unit: str, kept: list[int]) -> Tensor:
        """Logits on the same images when `unit` keeps only these channels."""
        keep: Keep = {unit: kept}
        with zeroed(self.graph, keep):
            if self._plain:
                return logits_of(call(self.graph.model, self._inputs))
            return self._run(self._again[unit], dict(self._values), self._done_with[unit])

    def agrees(self, images: Any) -> bool:
        """Whether the kept trace gives what the model itself gives; where not, the model itself runs from then on."""
        same = bool(torch.allclose(self.whole(images), logits_of(call(self.graph.model, images)), atol=1e-4, rtol=1e-3))
        self._plain = self._plain or not same
        return same

    def _dependents(self) -> dict[str, list[fx.Node]]:
        """unit -> the calls that depend on what its readers say, in order."""
        order = {node: i for i, node in enumerate(self._nodes)}
        called = {str(n.target): n for n in self._nodes if n.op == "call_module"}
        again = {}
        for name, unit in self.graph.units.items():
            reached: set[fx.Node] = set()
            waiting = [called[reader.module] for reader in unit.readers]
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
        if node.op == "call_module":
            return self._modules[node](*args, **kwargs)
        if node.op == "get_attr":
            owner, _, attribute = str(node.target).rpartition(".")
            return getattr(self.graph.model.get_submodule(owner), attribute)
        if node.op == "call_method":
            name = str(node.target)
            if name.endswith("_") and not name.startswith("_"):  # a kept value must stay what it was
                args = (args[0].clone(), *args[1:])
            return getattr(args[0], name)(*args[1:], **kwargs)
        target: Any = node.target
        if kwargs.get("inplace"):
            kwargs = {**kwargs, "inplace": False}
        return _IN_PLACE.get(target, target)(*args, **kwargs)


def _last_uses(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """call -> values computed in `nodes` that no later one of them needs."""
    last: dict[fx.Node, fx.Node] = {}
    inside = set(nodes)
    for node in nodes:
        for used in node.all_input_nodes:
            if used in inside:
                last[used] = node
    spent: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        spent.setdefault(node, []).append(used)
    return spent


@contextmanager
def never_in_place(model: nn.Module) -> Iterator[None]:
    """Activations that overwrite their input leave it alone for a while."""
    changed = [module for module in model.modules() if getattr(module, "inplace", False) is True]
    try:
        for module in changed:
            module.inplace = False  # type: ignore[assignment]
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]
