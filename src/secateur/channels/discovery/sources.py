"""The tensors that a plain value was computed from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from secateur.channels.labels.label_tensors import tensors_in


def tensors_behind(node: fx.Node, values: Mapping[str, Any]) -> list[Tensor]:
    """The value of a node and what it uses, if these are tensors; else the tensors whose sizes they come from.

    A comparison of two sizes has no tensors among its arguments. What it looked at are the tensors of these sizes.
    """
    found: list[Tensor] = []
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        tensors = tensors_in(values[each.name])
        found += tensors
        if not tensors or each is node:
            waiting += [used for used in each.all_input_nodes if used not in seen]
            seen.update(each.all_input_nodes)
    return found
