"""Run a recorded graph node by node: the one place that executes a `Traced`.

    runner = GraphRunner(traced)
    values = runner.bind(images)
    output = runner.run(values)

Values live in a dict that belongs to the caller. So values can be kept, dropped after their last use (`last_uses`),
changed between two calls, or used again to run only a part of the graph. The graph can run with the modules of another
model with the same names, such as a pruned copy.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from prunus.graph.proxies import Number, Scale, input_tensors, number_on
from prunus.graph.selection import InputMask, selection_of
from prunus.graph.traced import Traced, attribute_of, call_with_lists, submodules

Values = dict[fx.Node, Any]
LastUses = Mapping[fx.Node, Sequence[fx.Node]]
Compute = Callable[..., Any]  # called with the arguments of the node that it stands in for

_WITHOUT_WRITING: dict[Any, Any] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


class InPlaceError(Exception):
    """A call overwrites memory that a later call reads, so in-place calls cannot be run on copies."""


class GraphRunner(fx.Interpreter):
    """Runs the calls of `traced` with the modules, parameters and buffers of `model` (by default the traced model)."""

    def __init__(self, traced: Traced, model: nn.Module | None = None) -> None:
        model = traced.model if model is None else model
        super().__init__(model, garbage_collect_values=False, graph=traced.graph)
        self.traced = traced
        self.nodes: list[fx.Node] = list(traced.graph.nodes)
        self.submodules = submodules(model, traced.calls)
        self.on_copies: frozenset[fx.Node] = frozenset()  # calls that would overwrite their arguments
        # Another model may have other numbers in its attributes, such as fewer heads.
        numbered = [node for node in self.nodes if node.name in traced.with_numbers and model is not traced.model]
        self._numbered = {
            node: fx.node.map_aggregate(
                (node.args, node.kwargs), lambda arg: number_on(model, arg) if isinstance(arg, Number | Scale) else arg
            )
            for node in numbered
        }

    # -- inputs

    def bind(self, inputs: Any, *, copy: bool = False) -> Values:
        """The values of all placeholders. Arguments that are not tensors have the value they were traced with.

        Args:
            inputs: a tensor, a tuple of positional arguments or a dict of keyword arguments.
            copy: clone tensors, so that calls that work in place do not change the caller's.
        """
        tensors = input_tensors(self.traced.model, inputs)
        nodes = {node: tensors[str(node.target)] for node in self.nodes if node.op == "placeholder"}
        return {node: copied(tensor) for node, tensor in nodes.items()} if copy else nodes

    # -- calls

    def call(self, node: fx.Node, values: Values) -> Any:
        """The value of one node, computed from the values of the nodes that it uses."""
        if node.op == "placeholder":
            return values[node]
        self.env = values
        return self.run_node(node)

    def arguments(self, node: fx.Node, values: Values) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments of a call."""
        given = self._numbered.get(node) or (node.args, node.kwargs)
        args, kwargs = fx.node.map_arg(given, values.__getitem__)
        return tuple(args), dict(kwargs)

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node, without torch.fx's record of which node runs, which takes time."""
        if "autocast" not in n.meta:
            return self._run_node(n)
        with ExitStack() as stack:
            for kind, enabled, dtype in n.meta["autocast"]:  # the code was inside torch.autocast
                stack.enter_context(torch.autocast(kind, dtype, enabled))
            return self._run_node(n)

    def _run_node(self, n: fx.Node) -> Any:
        if self.traced.is_layer_function(n):
            return self._functional(n)
        args, kwargs = self.arguments(n, self.env)
        if n not in self.on_copies:
            return getattr(self, n.op)(n.target, args, kwargs)
        if n.target in _WITHOUT_WRITING:
            return _WITHOUT_WRITING[n.target](*args, **kwargs)
        args, kwargs = tree_map(copied, (args, kwargs))
        return getattr(self, n.op)(n.target, args, kwargs)

    def _functional(self, n: fx.Node) -> Any:
        """A function on the weight of a module: its selection and masks of its input apply, though it is not called."""
        layer = self.submodules[self.traced.functional[n.name]]
        (x, *rest), kwargs = self.arguments(n, self.env)
        selection = selection_of(layer)
        x = x if selection is None else selection.of(x)
        for mask in layer._forward_pre_hooks.values():
            x = mask.of(layer, x) if isinstance(mask, InputMask) else x
        return self.call_function(n.target, (x, *rest), kwargs)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call of a layer, without torch.fx's search for it, which takes time."""
        return self.submodules[target](*args, **kwargs)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call of a function."""
        return call_with_lists(target, args, kwargs)

    def get_attr(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A parameter or buffer of the model, or a constant of the traced code, which no model holds."""
        if target in self.traced.literals:
            return copied(self.traced.attributes[target])  # forward creates a new one each time
        return attribute_of(self.module, target)

    def output(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model returns."""
        return args[0]

    # -- many calls

    def steps(
        self,
        values: Values,
        nodes: Iterable[fx.Node] | None = None,
        free: LastUses | None = None,
        replaced: Mapping[fx.Node, Compute] | None = None,
    ) -> Iterator[fx.Node]:
        """Run `nodes` (all by default) in order, yielding each one just before it runs.

        Args:
            values: what earlier nodes have computed; each result is added.
            nodes: the part of the graph to run.
            free: values to drop after each node, see `last_uses`.
            replaced: functions to call in place of some nodes, with the arguments of the node.
        """
        replaced = replaced or {}
        for node in self.nodes if nodes is None else nodes:
            yield node
            if node in replaced:
                args, kwargs = self.arguments(node, values)
                values[node] = replaced[node](*args, **kwargs)
                del args, kwargs
            else:
                values[node] = self.call(node, values)
            for spent in () if free is None else free.get(node, ()):
                values.pop(spent, None)

    def run(  # type: ignore[override]  # by values instead of positional arguments
        self,
        values: Values,
        nodes: Iterable[fx.Node] | None = None,
        free: LastUses | None = None,
        replaced: Mapping[fx.Node, Compute] | None = None,
    ) -> Any:
        """Run `nodes` (all by default) as `steps` does. Returns the output of the graph; None if it is not reached."""
        for _ in self.steps(values, nodes, free, replaced):
            pass
        return values.pop(self.nodes[-1], None)

    # -- parts of the graph

    def dependents(self, starts: Collection[fx.Node]) -> list[fx.Node]:
        """These nodes and all that depend on them, in order."""
        reached: set[fx.Node] = set()
        waiting = list(starts)
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += list(node.users)
        return [node for node in self.nodes if node in reached]

    def calls_of(self, modules: Collection[str]) -> list[fx.Node]:
        """The nodes that call one of these layers."""
        return [node for node in self.nodes if self.traced.layer_of(node) in modules]

    # -- calls that work in place

    def run_in_place_calls_on_copies(self, inputs: Any) -> None:
        """From now on, calls that overwrite an argument work on a copy, so that kept values stay what they were.

        Such calls are found by running the graph once on a copy of `inputs`. Raises InPlaceError where that would
        change the result, because a later call reads what was overwritten.
        """
        self.on_copies = frozenset()
        values = self.bind(inputs, copy=True)
        order = {node: i for i, node in enumerate(self.nodes)}
        written: dict[fx.Node, set[int]] = {}  # call -> memory that it writes to
        for node in self.nodes:
            before = [(x, x._version) for x in tree_leaves(self.arguments(node, values)) if isinstance(x, Tensor)]
            values[node] = self.call(node, values)
            memory = {x.untyped_storage().data_ptr() for x, version in before if x._version != version}
            if memory:
                written[node] = memory
            for used in node.all_input_nodes:
                tensors = [x for x in tree_leaves(values[used]) if isinstance(x, Tensor)]
                read = {x.untyped_storage().data_ptr() for x in tensors}
                if any(order[used] < order[w] < order[node] and read & memory for w, memory in written.items()):
                    raise InPlaceError(f"{node.name} reads {used.name}, which was overwritten before")
        self.on_copies = frozenset(written)


def last_uses(nodes: Sequence[fx.Node], kept: Collection[fx.Node] = ()) -> dict[fx.Node, list[fx.Node]]:
    """node -> values computed by `nodes` that no later one of them uses; not those of `kept`, and not the output."""
    last: dict[fx.Node, fx.Node] = {}
    inside = {node for node in nodes if node.op != "output"} - set(kept)
    for node in nodes:
        for used in (node, *node.all_input_nodes):  # a value that no node uses is dropped at once
            if used in inside:
                last[used] = node
    spent: dict[fx.Node, list[fx.Node]] = {}
    for used, node in last.items():
        spent.setdefault(node, []).append(used)
    return spent


def copied(value: Any) -> Any:
    """A clone of a tensor; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) else value


class SuffixRunner:
    """Runs one batch from a layer on, many times, without computing again what comes before the layer.

    The values at one place are kept. The place moves on with the layers that are asked for; for a layer before it, the
    graph starts again. So asking for layers in the order of the network costs one pass in all, and what comes after
    each layer.
    """

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
