"""Find the tensor in front of an activation, however the network calls it.

A network may call nn.ReLU, F.relu, x.relu_() or relu of a sum: hooks on modules would miss most of them. So the calls
are counted where torch dispatches its operators. A first forward pass of the example follows each activation's output
through operators that keep channels apart (pooling, flattening, concatenation, selection of channels) to the layers
that read it. The pass over the data then looks at the inputs of those calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.channels.units import Indices

_ACTIVATIONS = """
relu leaky_relu elu celu selu hardtanh silu gelu hardswish hardsigmoid sigmoid tanh softplus mish clamp_min
rrelu_with_noise prelu _prelu_kernel log_sigmoid_forward
"""
_PASSING = """
max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_max_pool2d mean amax view _unsafe_view reshape
squeeze unsqueeze clone detach alias _to_copy contiguous native_dropout dropout
"""
ACTIVATIONS = frozenset(f"aten::{name}{in_place}" for name in _ACTIVATIONS.split() for in_place in ("", "_"))
PASSING = frozenset(f"aten::{name}" for name in _PASSING.split())


@dataclass(frozen=True, eq=False)
class Origin:
    """For each position on axis 1 of a tensor: the activation call it comes from, and the channel there; -1: none.

    `direct` is the call whose output the tensor itself is; then its channels may also be at the last axis.
    """

    call: Indices
    channel: Indices
    direct: int | None = None


class ActivationTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts activation calls and follows their outputs. It keeps all followed tensors: for an example only."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0
        self._origins: dict[int, tuple[Tensor, Origin]] = {}

    def origin(self, x: Tensor) -> Origin | None:
        """Where the channels of x come from, if known."""
        found = self._origins.get(id(x))
        return found[1] if found is not None and found[0] is x else None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple | list) and out else out
        if isinstance(first, Tensor) and first.ndim > 1:
            found = self._followed(func._schema.name, args, first)
            self._origins.pop(id(first), None)
            if found is not None:
                self._origins[id(first)] = (first, found)
        return out

    def _followed(self, name: str, args: tuple[Any, ...], out: Tensor) -> Origin | None:
        if name in ACTIVATIONS:
            self.calls += 1
            width = out.shape[1]
            return Origin(np.full(width, self.calls - 1), np.arange(width), self.calls - 1)
        if name == "aten::cat":
            return self._joined(args)
        before = self.origin(args[0]) if args and isinstance(args[0], Tensor) else None
        if before is None:
            return None
        if name == "aten::index_select" and args[1] == 1:
            index = args[2].cpu().numpy()
            return Origin(before.call[index], before.channel[index])
        return _passed(before, args[0], out) if name in PASSING else None

    def _joined(self, args: tuple[Any, ...]) -> Origin | None:
        dim = args[1] if len(args) > 1 else 0
        parts = [self.origin(x) for x in args[0]]
        if dim not in (1, 1 - args[0][0].ndim) or all(part is None for part in parts):
            return None
        unknown = [np.full(x.shape[1], -1) for x in args[0]]
        return Origin(
            np.concatenate([u if p is None else p.call for p, u in zip(parts, unknown, strict=True)]),
            np.concatenate([u if p is None else p.channel for p, u in zip(parts, unknown, strict=True)]),
        )


def _passed(before: Origin, x: Tensor, out: Tensor) -> Origin | None:
    """After pooling or a change of shape: channels stay at axis 1, or are flattened together with their pixels."""
    if out.shape[:2] == x.shape[:2]:
        return before if out.shape == x.shape else Origin(before.call, before.channel)
    pixels = x.shape[2:].numel()
    if out.ndim == 2 and out.shape == (x.shape[0], x.shape[1] * pixels):
        return Origin(before.call.repeat(pixels), before.channel.repeat(pixels))
    return None


class ActivationTaps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts activation calls, and shows the inputs of the wanted calls before an in-place call overwrites them."""

    def __init__(self, wanted: Mapping[int, Callable[[Tensor], None]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wanted = wanted
        self._calls = 0

    def restart(self) -> None:
        """Start counting again, for a new forward pass."""
        self._calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._schema.name in ACTIVATIONS:
            x = args[0]
            if isinstance(x, Tensor) and x.ndim > 1:
                see = self._wanted.get(self._calls)
                self._calls += 1
                if see is not None:
                    see(x)
        return func(*args, **(kwargs or {}))
