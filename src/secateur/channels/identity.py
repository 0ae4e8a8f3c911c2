"""Which network a plan belongs to: a fingerprint of the structure, and how two networks differ."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map

from secateur.channels.cost import Layer
from secateur.channels.plan import Plan
from secateur.channels.traced import Example
from secateur.channels.units import Streams, Unit


def fingerprint(streams: Streams, layers: Mapping[str, Layer], units: Mapping[str, Unit]) -> str:
    """A hash of the network's structure: layers, widths and units, without the weights."""
    rows = [[x.name, x.kind, x.inputs, x.outputs, x.groups, x.kernel] for x in layers.values()]
    columns = [[u.name, u.width, u.granule, u.kind] for u in units.values()]
    text = json.dumps([streams, rows, columns], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def example_shapes(example: Example) -> Any:
    """The example as JSON, with shapes and types instead of tensors."""

    def shape(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}

    return tree_map(shape, example)


def difference(plan: Plan, streams: Streams, units: Mapping[str, Unit], network: str) -> str:
    """Why a plan does not belong to a network, in words."""
    if plan.streams != streams:
        return f"it was made with streams={plan.streams!r}, this graph with {streams!r}"
    for name in {**plan.widths, **units}:
        if name not in units:
            return f"it has a unit {name!r} that {network} does not have"
        if name not in plan.widths:
            return f"it lacks the unit {name!r} of {network}"
        if units[name].width != plan.widths[name]:
            return f"unit {name!r} has {plan.widths[name]} channels in the plan and {units[name].width} here"
    return "the units are the same, but layers or groups differ"
