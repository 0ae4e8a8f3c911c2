"""The error of a residual addition, so that the branch that is being solved can correct it.

    stream = other + norm(layer(x))

The stream that enters a block of the pruned network differs from the original's. A branch that is solved for its own
output keeps that error. Solved for

    norm(layer(x)) = (other + branch) of the original - other of the pruned network

it corrects the error as far as it can.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from prunus.graph.traced import only_user
from prunus.repairing.lockstep import Chunk, NetworkPair
from prunus.scoring.rows import outputs_at

ADDITIONS = (operator.add, operator.iadd, torch.add)
METHODS = ("add", "add_")
FLAT = 1e-6  # a norm with a smaller scale hides the layer's output, so the layer cannot correct the stream
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, eq=False)
class Shortcut:
    """The other operand of the addition after a layer, and the batch norm in between, if there is one."""

    other: fx.Node
    kept: Tensor  # the layer's outputs that are kept
    norm: Any

    def missing(self, chunk: Chunk, layer: nn.Module, where: Tensor, images: Tensor) -> Tensor | None:
        """What must be added to the target at `where` [N, P] of `images`: [N, P, kept]; None if unknown."""
        original, pruned = (chunk.value(self.other, side) for side in (0, 1))
        axis = pruned.dim() - 1 if isinstance(layer, nn.Linear) else 1
        if pruned.shape[axis] != len(self.kept):
            return None
        error = outputs_at(layer, original, where, images)[..., self.kept] - outputs_at(layer, pruned, where, images)
        scale = torch.ones(len(self.kept), device=pruned.device)  # of each output between the layer and the stream
        if self.norm is not None:
            gain = scale if self.norm.weight is None else self.norm.weight.detach()
            scale = gain / torch.sqrt(self.norm.running_var + self.norm.eps)
        return torch.where(scale.abs() > FLAT, error / scale, 0.0)


def order_with_shortcuts(pair: NetworkPair, unsolved: list[fx.Node]) -> tuple[list[fx.Node], dict[fx.Node, Shortcut]]:
    """The calls in an order in which the other operand of an addition comes before the layer that is solved for the
    sum, where that is possible; and the shortcuts of these layers.
    """
    order: list[fx.Node] = []
    shortcuts: dict[fx.Node, Shortcut] = {}
    for node in pair.nodes:
        if node in order:
            continue
        shortcut = _shortcut(pair, node) if node in unsolved else None
        early = None if shortcut is None else _early(pair, node, shortcut.other, order, unsolved)
        if shortcut is not None and early is not None:
            order += early
            shortcuts[node] = shortcut
        order.append(node)
    return order, shortcuts


def _shortcut(pair: NetworkPair, node: fx.Node) -> Shortcut | None:
    """The addition right after `node`; a batch norm may come between."""
    kept = pair.kept_outputs(str(node.target))
    branch, user, norm = node, only_user(node), None
    if user is not None and user.op == "call_module" and isinstance(pair.layer(user), BatchNorm):
        norm = pair.layer(user)
        branch, user = user, only_user(user)
    if kept is None or user is None or (norm is not None and norm.running_var is None):
        return None
    additions = ADDITIONS if user.op == "call_function" else METHODS
    if user.kwargs or len(user.args) != 2 or user.target not in additions:
        return None
    other = next((n for n in user.args if isinstance(n, fx.Node) and n is not branch), None)
    if other is None or pair.traced.shapes[other.name] != pair.traced.shapes[node.name]:
        return None
    return Shortcut(other, kept, norm)


def _early(
    pair: NetworkPair, node: fx.Node, other: fx.Node, done: list[fx.Node], unsolved: list[fx.Node]
) -> list[fx.Node] | None:
    """The calls that `other` still needs, if they can be made before `node` and no call notices; otherwise None."""
    if other in done:
        return []
    pending: list[fx.Node] = []
    wanted = [other]
    while wanted:
        one = wanted.pop()
        if one in done or one in pending:
            continue
        if one is node or one in unsolved:
            return None
        pending.append(one)
        wanted += one.all_input_nodes
    order = {n: i for i, n in enumerate(pair.nodes)}
    after = {node}
    for between in pair.nodes[order[node] + 1 : order[other]]:
        if between in pending or between in done:
            continue
        # A call in between might write into the inputs of `other`. One that sees only the layer's output cannot.
        if not all(n in after or n.op == "get_attr" for n in between.all_input_nodes):
            return None
        after.add(between)
    return sorted(pending, key=order.__getitem__)
