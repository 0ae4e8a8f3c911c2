"""Rules for operations that work position by position, for reductions, and for plain values such as sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from prunus.graph.labels import Call, Rule, constant, each_tensor, present, shapes_in, tensors_in
from prunus.graph.traced import call_with_lists


def takes_sizes(rule: Rule) -> Rule:
    """Mark a rule whose operation takes sizes as arguments, and whose labels show what it does with them.

    In any other operation, a size that depends on the number of channels is a value that pruning would change.
    """
    rule.takes_sizes = True  # type: ignore[attr-defined]
    return rule


# -- run the operation itself, on plain values or on labels


@takes_sizes
def execute(call: Call) -> Any:
    """The result of the operation on the call's arguments: sizes, shapes and other plain facts of a tensor."""
    node = call.node
    if node.op == "call_method":
        return getattr(call.args[0], str(node.target))(*call.args[1:], **call.kwargs)
    if node.op == "call_module":
        return call.module.forward(*call.args, **call.kwargs)  # not __call__, because hooks expect activations
    if callable(node.target):
        return call_with_lists(node.target, call.args, call.kwargs)
    raise TypeError(f"{call.what} cannot be computed on labels")


def compute(call: Call) -> Any:
    """Arithmetic on sizes and other plain values. A tensor that results is fixed."""
    result = execute(call)
    return constant(result.shape) if isinstance(result, Tensor) else result


def same(call: Call) -> Any:
    """The first argument in another type, layout or place."""
    return call.args[0]


def handed_on(call: Call) -> Any:
    """The first argument unchanged. What the operation does with the others is not known."""
    call.freeze((call.args[1:], call.kwargs), f"{call.what} has no rule")
    return call.args[0]


def nothing(call: Call) -> Any:
    """Assertions and other operations without a result."""
    return None


def unknown(call: Call) -> Any:
    """Nothing is known about this operation: its channels are kept. Without tensors it is simply computed."""
    return call.unknown() if tensors_in((call.args, call.kwargs)) else compute(call)


# -- position by position


def elementwise(call: Call) -> Any:
    """Positions keep their channels. Further tensor arguments meet the first one position by position."""
    return combine(call)


def combine(call: Call) -> Any:
    """Several tensors meet position by position: multiply, divide, maximum, where, gates."""
    return _meet(call, additive=False)


def add(call: Call) -> Any:
    """Sums: the channels go through an addition, so they become a stream. Adding a bias makes none."""
    values = call.record.values
    biases = [n for n in call.node.all_input_nodes if tensors_in(values[n.name]) and call.labels.is_parameter(n)]
    return _meet(call, additive=not any(len(present(values[n.name])) for n in biases))


def _meet(call: Call, *, additive: bool) -> Any:
    tensors = tensors_in((call.args, call.kwargs))
    if not tensors:
        return compute(call)
    if not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} returns more than one tensor")
    if len(tensors) > 1:  # the result has the labels of what layers write, not those of a scale or bias
        nodes: list[fx.Node] = []
        fx.node.map_arg((call.node.args, call.node.kwargs), nodes.append)
        nodes = [node for node in nodes if isinstance(call.record.values[node.name], Tensor)]
        if len(nodes) == len(tensors):
            order = sorted(range(len(nodes)), key=lambda i: call.labels.is_parameter(nodes[i]))
            tensors = [tensors[i] for i in order]
    united = tensors[0]
    for other in tensors[1:]:
        united = call.unite(united, other, additive=additive)
    return united


# -- over dimensions


def reduce(call: Call) -> Any:
    """Sums, means and maxima over dimensions: channels that are reduced together are pruned together."""
    dims = call.argument(1, "dim", call.kwargs.get("axis"))
    if dims == () or isinstance(dims, bool | Tensor):
        dims = None
    return _reduced(call, dims)


def mean(call: Call) -> Any:
    """As other reductions. With `norms="compensated"`, a mean over all channels that is a module may lose channels."""
    axes, dims = call.axes(call.x), call.argument(1, "dim", call.kwargs.get("axis"))
    over = {d % call.x.dim(): d for d in ([dims] if isinstance(dims, int) else dims or ()) if type(d) is int}
    if len(axes) == 1 and axes[0] in over:
        reason = f"{call.what} runs over all channels"
        if call.node.op == "call_module" and call.labels.find_rule.compensates:
            call.averages(over[axes[0]], "mean runs over all channels")
            return constant(call.shape)
        call.record.averaged.append((present(call.x), reason))
    return reduce(call)


def norm(call: Call) -> Any:
    """Norms of vectors along dimensions: as other reductions."""
    return _reduced(call, call.argument(2, "dim"))


def extreme(call: Call) -> Any:
    """max and min: of two tensors, or along one dimension with the indices."""
    second = call.argument(1, "dim", call.kwargs.get("other", call.kwargs.get("axis")))
    if isinstance(second, Tensor) or not tensors_in((call.args, call.kwargs)):
        return combine(call)
    return _reduced(call, second)


def _reduced(call: Call, dims: Any) -> Any:
    """The labels of every tensor that a reduction returns: max returns indices too, var_mean two moments."""
    shapes = shapes_in(call.shape)
    if dims is None or isinstance(dims, bool) or not shapes:
        return call.unknown(f"{call.what} over all dimensions has no rule")
    x = call.x
    dims = sorted({d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)})
    kept_dims = len(shapes[0]) == x.dim()
    axes = call.axes(x)
    crossed = [d for d in axes if d in dims]
    if crossed and not set(axes) - set(dims):
        return call.unknown(f"{call.what} runs over all channels")
    for d in crossed:
        call.unite_along(x, d)
    for d in reversed(dims):
        x = x.narrow(d, 0, 1) if kept_dims else x.select(d, 0)
    return each_tensor(call.shape, lambda shape: x)


def along_axis(position: int) -> Rule:
    """sort, topk, diff: each result depends on a line along one dimension, the argument at `position`."""

    def rule(call: Call) -> Any:
        x, dim = call.x, call.argument(position, "dim", -1)
        if not isinstance(dim, int):
            return call.unknown()
        dim %= x.dim()
        if dim in call.axes(x) or any(len(shape) != x.dim() for shape in shapes_in(call.shape)):
            return call.unknown(f"{call.what} runs along an axis that carries channels")
        sizes = [*x.shape]

        def line(shape: torch.Size) -> Tensor:
            return x.narrow(dim, 0, 1).expand(*sizes[:dim], shape[dim], *sizes[dim + 1 :])

        return each_tensor(call.shape, line)

    return rule


def softmax(call: Call) -> Any:
    """Each position depends on all others along one dimension: they are pruned together."""
    return _along(call, call.argument(1, "dim") if call.node.op != "call_module" else getattr(call.module, "dim", 1))


def normalize(call: Call) -> Any:
    """F.normalize: each position is divided by a norm over one dimension."""
    return _along(call, call.argument(2, "dim", 1))


def _along(call: Call, dim: Any) -> Any:
    x = call.x
    if not isinstance(dim, int):
        return call.unknown()
    axes = call.axes(x)
    if dim % x.dim() in axes:
        if len(axes) == 1:
            return call.unknown(f"{call.what} runs over all channels")
        call.unite_along(x, dim % x.dim())
    return x
