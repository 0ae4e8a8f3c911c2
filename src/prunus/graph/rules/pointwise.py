"""Rules for operations that work position by position, and for reductions over dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from prunus.graph.labels import Call, tensors_in
from prunus.graph.rules.running import compute


def elementwise(call: Call) -> Any:
    """Positions keep their channels. Further tensor arguments meet the first one position by position."""
    return combine(call)


def combine(call: Call) -> Any:
    """Several tensors meet position by position: multiply, divide, maximum, where, gates."""
    return _meet(call, additive=False)


def add(call: Call) -> Any:
    """Sums: the channels go through an addition, so they become a stream."""
    return _meet(call, additive=True)


def _meet(call: Call, *, additive: bool) -> Any:
    tensors = tensors_in((call.args, call.kwargs))
    if not tensors:
        return compute(call)
    if not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} returns more than one tensor")
    united = tensors[0]
    for other in tensors[1:]:
        united = call.unite(united, other, additive=additive)
    return united


def reduce(call: Call) -> Any:
    """Sums, means and maxima over dimensions: channels that are reduced together are pruned together."""
    dims = call.argument(1, "dim", call.kwargs.get("axis"))
    if dims is None or dims == () or isinstance(dims, bool | Tensor) or not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} over all dimensions has no rule")
    return _reduced(call, [dims] if isinstance(dims, int) else dims, len(call.shape))


def extreme(call: Call) -> Any:
    """max and min: of two tensors, or along one dimension with the indices."""
    second = call.argument(1, "dim", call.kwargs.get("other", call.kwargs.get("axis")))
    if isinstance(second, Tensor) or not tensors_in((call.args, call.kwargs)):
        return combine(call)
    if not isinstance(second, int) or isinstance(second, bool):
        return call.unknown(f"{call.what} over all dimensions has no rule")
    reduced = _reduced(call, [second], len(call.shape[0]))
    return torch.return_types.max((reduced, reduced)) if isinstance(reduced, Tensor) else reduced


def _reduced(call: Call, dims: Any, ndim: int) -> Any:
    x = call.x
    dims = sorted({d % x.dim() for d in dims})
    kept_dims = ndim == x.dim()
    axes = call.axes(x)
    crossed = [d for d in axes if d in dims]
    if crossed and not set(axes) - set(dims):
        return call.unknown(f"{call.what} runs over all channels")
    for d in crossed:
        call.unite_along(x, d)
    for d in reversed(dims):
        x = x.narrow(d, 0, 1) if kept_dims else x.select(d, 0)
    return x


def norm(call: Call) -> Any:
    """Norms of vectors along dimensions: as other reductions."""
    dims = call.argument(2, "dim")
    if dims is None or not isinstance(call.shape, torch.Size):
        return call.unknown(f"{call.what} over all dimensions has no rule")
    return _reduced(call, [dims] if isinstance(dims, int) else dims, len(call.shape))


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
