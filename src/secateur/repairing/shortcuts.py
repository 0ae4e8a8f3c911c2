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

from secateur.channels.traced import only_user
from secateur.repairing.lockstep import Walk
from secateur.scoring.layer_rows import outputs_at

ADDITIONS = (operator.add, operator.iadd, torch.add)
METHODS = ("add", "add_")
FLAT = 1e-6  # a norm with a smaller scale hides the layer's output, so the layer cannot correct the stream
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, eq=False)
class Shortcut:
    """The other operand of the addition after a layer, and the scale of the batch norm in between."""

    walk: Walk
    other: fx.Node
    kept: Tensor  # the layer's outputs that are kept
    scale: Tensor  # [kept] factor of each output on its way into the stream

    def missing(self, chunk: int, layer: nn.Module, where: Tensor) -> Tensor:
        """What must be added to the layer's target at `where` [N, P] of a chunk: [N, P, kept]."""
        original, pruned = (self.walk.value(self.other, side, chunk) for side in (0, 1))
        error = outputs_at(layer, original, where)[..., self.kept] - outputs_at(layer, pruned, where)
        return torch.where(self.scale.abs() > FLAT, error / self.scale, 0.0)


def find_shortcut(walk: Walk, node: fx.Node, unsolved: list[fx.Node]) -> Shortcut | None:
    """The addition right after `node` (a batch norm may come between), if its other operand can be computed by now."""
    kept = walk.kept_outputs(str(node.target))
    branch, user = node, only_user(node)
    norm = walk.layer(user) if user is not None and user.op == "call_module" else None
    if isinstance(norm, BatchNorm):
        assert user is not None
        branch, user = user, only_user(user)
    other = None if user is None else _other_operand(walk, user, branch)
    if kept is None or other is None or walk.traced.shapes[other.name] != walk.traced.shapes[node.name]:
        return None
    if (isinstance(norm, BatchNorm) and norm.running_var is None) or not _bring_forward(walk, node, other, unsolved):
        return None
    pruned = walk.value(other, 1, 0)
    axis = pruned.dim() - 1 if isinstance(walk.layer(node), nn.Linear) else 1
    if pruned.shape[axis] != len(kept):
        return None
    return Shortcut(walk, other, kept, _scale(norm, torch.ones(len(kept), device=pruned.device)))


def _other_operand(walk: Walk, addition: fx.Node, branch: fx.Node) -> fx.Node | None:
    if not _is_addition(addition):
        return None
    return next((n for n in addition.args if isinstance(n, fx.Node) and n is not branch), None)


def _scale(norm: Any, ones: Tensor) -> Tensor:
    """Factor of each output between the layer and the stream: 1 unless there is a batch norm."""
    if not isinstance(norm, BatchNorm):
        return ones
    gain = ones if norm.weight is None else norm.weight.detach()
    assert norm.running_var is not None
    return gain / torch.sqrt(norm.running_var + norm.eps)


def _is_addition(node: fx.Node) -> bool:
    if node.kwargs or len(node.args) != 2:
        return False
    return node.target in (ADDITIONS if node.op == "call_function" else METHODS)


def _bring_forward(walk: Walk, node: fx.Node, other: fx.Node, unsolved: list[fx.Node]) -> bool:
    """Make the calls that lead to `other` early, if no call in between can notice; whether that was possible."""
    if walk.done(other):
        return True
    pending = _needed(walk, node, other, unsolved)
    if pending is None:
        return False
    order = {n: i for i, n in enumerate(walk.nodes)}
    after = {node}
    for between in walk.nodes[order[node] + 1 : order[other]]:
        if between in pending or walk.done(between):
            continue
        # A call in between might write into the inputs of `other`. One that sees only the layer's output cannot.
        if not all(n in after or n.op == "get_attr" for n in between.all_input_nodes):
            return False
        after.add(between)
    for one in sorted(pending, key=order.__getitem__):
        walk.run(one)
    return True


def _needed(walk: Walk, node: fx.Node, other: fx.Node, unsolved: list[fx.Node]) -> list[fx.Node] | None:
    """The calls that `other` still needs; None if it needs `node` or a layer that is not solved yet."""
    pending: list[fx.Node] = []
    wanted = [other]
    while wanted:
        one = wanted.pop()
        if walk.done(one) or one in pending:
            continue
        if one is node or one in unsolved:
            return None
        pending.append(one)
        wanted += one.all_input_nodes
    return pending
