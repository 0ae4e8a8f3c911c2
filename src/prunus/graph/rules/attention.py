"""Rules for products of tensors: matmul, bmm, einsum and scaled_dot_product_attention.

In attention, the channels of queries, keys and values lie on two axes: heads, and positions inside a head. Each product
runs within a head. So the channels of a head, of queries, keys and values, are removed together.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from prunus.graph.labels import Call, CannotFollow, broadcast_shape, compact, constant, fixed_like, present
from prunus.graph.proxies import Scale
from prunus.graph.traced import MIXING, argument_of

_FUNCTIONS = (torch.matmul, torch.bmm, torch.einsum, operator.matmul, F.scaled_dot_product_attention)
PRODUCTS = frozenset((*_FUNCTIONS, "matmul", "bmm", "__matmul__"))  # targets of nodes
WEIGHTS, VALUES = " weights", " values"  # the two products of an attention


def matmul(call: Call) -> Any:
    """matmul and bmm of tensors that have at least two dimensions."""
    a, b = call.args[0], call.argument(1, "other", call.kwargs.get("mat2"))
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and min(a.dim(), b.dim()) > 1):
        return call.unknown()
    return _matmul(call, a, b, "")


def _matmul(call: Call, a: Tensor, b: Tensor, step: str) -> Tensor:
    """[..., n, k] @ [..., k, m], as a sum over k of products [..., n, 1, k] * [..., 1, m, k]."""
    dims = max(a.dim(), b.dim())
    a = a.reshape((1,) * (dims - a.dim()) + a.shape).unsqueeze(-2)
    b = b.reshape((1,) * (dims - b.dim()) + b.shape).transpose(-2, -1).unsqueeze(-3)
    return _contracted(call, a, b, [dims], step).squeeze(-1)


def einsum(call: Call) -> Any:
    """einsum of two tensors, each letter at most once in each of them."""
    equation, operands = call.args[0], call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], tuple | list):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
        return call.unknown()
    inputs, output = equation.replace(" ", "").split("->")
    names = inputs.split(",")
    if any(len(set(each)) < len(each) for each in (*names, output)):
        return call.unknown()
    summed = [letter for letter in dict.fromkeys("".join(names)) if letter not in output]
    order = [*output, *summed]
    a, b = (
        tensor.permute([own.index(letter) for letter in order if letter in own])[
            tuple(slice(None) if letter in own else None for letter in order)
        ]
        for tensor, own in zip(operands, names, strict=True)
    )
    out = _contracted(call, a, b, list(range(len(output), len(order))), "")
    return out.reshape(out.shape[: len(output)])


def scaled_dot_product_attention(call: Call) -> Any:
    """softmax(q k' + mask) v, head by head."""
    q, k, v = (call.argument(i, name) for i, name in enumerate(("query", "key", "value")))
    mask = call.argument(3, "attn_mask")
    if call.argument(7, "enable_gqa", False) or min(q.dim(), k.dim(), v.dim()) < 3:
        return call.unknown()
    if call.labels.find_rule.dims:
        _keep_scale(call, q)
        if q.size(-1) == v.size(-1) and q.shape[:-2] == v.shape[:-2]:
            call.unite_everywhere(q.narrow(-2, 0, 1), v.narrow(-2, 0, 1))
    weights = _matmul(call, q, k.transpose(-2, -1), WEIGHTS)
    if isinstance(mask, Tensor):
        weights = call.unite(weights, mask, additive=False)
    return _matmul(call, weights, v, VALUES)


def _keep_scale(call: Call, queries: Tensor) -> None:
    """With fewer dimensions, the scale stays that of the original."""
    scale = call.literal(6, "scale")
    labels = present(queries)
    if isinstance(scale, Scale):
        call.record.scales[scale.origin] = labels, float(scale)
    elif scale is None and len(labels):
        call.freeze(queries, f"{call.what} computes its scale from the number of channels")


def average_of_heads(call: Call) -> Any:
    """The attention weights that nn.MultiheadAttention returns. They are other ones with fewer heads, which matters if
    anything uses them."""
    return call.unknown(f"{call.what} is the mean of all heads") if call.node.users else fixed_like(call.shape)


def _contracted(call: Call, a: Tensor, b: Tensor, summed: list[int], step: str) -> Tensor:
    """The labels of the sum over some axes of a product of two tensors that broadcast. The axes stay, with size 1."""
    if call.labels.find_rule.dims:
        a, b = (_without_parameters(call, tensor) for tensor in (a, b))
        found = [[d for d in call.axes(tensor, step + side) if d in summed] for side, tensor in (("a", a), ("b", b))]
        if found[0] and found[0] == found[1]:
            return _summed_over(call, a, b, summed, step)
    parts, axes = [], []
    for side, tensor in (("a", a), ("b", b)):
        varies = call.axes(tensor, step + side)
        if varies and set(varies) <= set(summed):  # one head: its channels have no other layer that reads them
            call.freeze(tensor, f"{call.what} runs over all channels")
            tensor, varies = constant(tensor.shape), []
        for d in summed:
            if d in varies:
                call.unite_along(tensor, d)
            tensor = tensor.narrow(d, 0, 1)
        parts.append(tensor)
        axes.append({d for d in varies if d not in summed})
    a, b = parts
    if len(present(a)) and len(present(b)):
        if not axes[0] & axes[1]:
            raise CannotFollow(f"{call.what} joins channels of different axes")
        out = call.unite_everywhere(a, b)
    else:
        out = (a if len(present(a)) else b).expand(broadcast_shape(a.shape, b.shape))
    if len(present(out)):  # its work is the same for each of them
        call.record.filters[call.node.name + step] = compact(out).reshape(-1).numpy()
    return out


def _without_parameters(call: Call, tensor: Tensor) -> Tensor:
    """What comes from parameters alone, such as position biases of each head, keeps all that it has."""
    if not call.only_parameters(tensor):
        return tensor
    call.freeze(tensor, f"{call.what} multiplies it with whole heads")
    return constant(tensor.shape)


def _summed_over(call: Call, a: Tensor, b: Tensor, summed: list[int], step: str) -> Tensor:
    """A sum over dimensions of heads: those of queries and of keys that meet are pruned together, and the result has
    none of them."""
    axes = {*call.axes(a, step + "a")} & {*call.axes(b, step + "b")}
    out = broadcast_shape(a.shape, b.shape)
    met = call.unite_everywhere(*(tensor[tuple(_all_or_first(tensor, axes))] for tensor in (a, b)))
    call.record.products += [present(a), present(b)]
    call.record.filters[call.node.name + step] = compact(met).reshape(-1).numpy()
    for tensor, side in ((a, "a"), (b, "b")):
        if set(call.axes(tensor, step + side)) - axes:
            raise CannotFollow(f"{call.what} joins channels of different axes")
    return constant(tuple(1 if d in summed else n for d, n in enumerate(out)))


def _all_or_first(tensor: Tensor, axes: set[int]) -> list[slice]:
    return [slice(None) if d in axes else slice(0, 1) for d in range(tensor.dim())]


def products_of(node: fx.Node, shapes: Mapping[str, Any]) -> dict[str, int]:
    """The multiply-adds of a call that multiplies tensors, for the whole batch: one product, or two of attention."""
    if node.target not in PRODUCTS:
        return {}

    def shape(index: int, name: str) -> list[int]:
        tensor = argument_of(node, index, name)
        found = shapes.get(tensor.name) if isinstance(tensor, fx.Node) else None
        return list(found) if isinstance(found, torch.Size) else []

    result = shapes.get(node.name)
    if not isinstance(result, torch.Size):
        return {}
    if node.target is F.scaled_dot_product_attention:
        q, k, v = shape(0, "query"), shape(1, "key"), shape(2, "value")
        pairs = math.prod(result[:-1]) * (k[-2] if len(k) > 1 else 0)
        return {WEIGHTS: pairs * q[-1], VALUES: pairs * v[-1]} if q and v else {}
    if node.target is not torch.einsum:
        first = shape(0, "input")
        return {"": math.prod(result) * first[-1]} if first else {}
    operands = node.args[1:] if len(node.args) > 2 else node.args[1]
    equation = node.args[0]
    if not isinstance(equation, str) or not isinstance(operands, tuple | list) or len(operands) != 2:
        return {}
    sizes: dict[str, int] = {}
    for names, tensor in zip(equation.replace(" ", "").split("->")[0].split(","), operands, strict=True):
        found = shapes.get(tensor.name) if isinstance(tensor, fx.Node) else None
        if "." in names or not isinstance(found, torch.Size):
            return {}
        sizes |= dict(zip(names, found, strict=True))
    return {"": math.prod(sizes.values())}


_NEAR = 24  # operations between a reshape into heads and the product that they are for


def is_for_products(call: Call) -> bool:
    """Whether the result goes into a product with another tensor before a layer reads it."""
    traced = call.labels.traced
    if not call.labels.with_products:
        return False
    level, seen = [call.node], {call.node}
    for _ in range(_NEAR):
        users = list(dict.fromkeys(user for each in level for user in each.users if user not in seen))
        if any(user.target in PRODUCTS for user in users):
            return True
        seen.update(users)
        level = [u for u in users if u.op != "call_module" or not isinstance(traced.module(u), MIXING)]
    return False
