"""The tensors that a value was computed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, fx

from secateur.channels.labels.label_tensors import tensors_in


def tensors_behind(node: fx.Node, values: Mapping[str, Any]) -> Iterator[list[Tensor]]:
    """The tensors at a node and among its arguments, then those that these were computed from, and so on.

    A comparison of two sizes has no tensors among its arguments; what it looked at are the tensors of these sizes.
    """
    level, seen = [node, *node.all_input_nodes], {node, *node.all_input_nodes}
    while level:
        yield [tensor for each in level for tensor in tensors_in(values[each.name])]
        level = list(dict.fromkeys(used for each in level for used in each.all_input_nodes if used not in seen))
        seen.update(level)
