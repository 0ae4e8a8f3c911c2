"""What a residual addition has already got wrong, so that the branch that is being solved can make up for it.

    stream = other + norm(layer(x))

The stream that enters a block of the pruned network is not quite the original's. A branch solved for its own output
alone hands that error on; solved for  norm(layer(x)) = (other + branch) of the original - other of the pruned  it takes
the error back as far as it can.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from secateur.channels.traced import only_user
from secateur.repairing.lockstep import Walk
from secateur.scoring.layer_rows import outputs_at

ADDITIONS = (operator.add, operator.iadd, torch.add)
METHODS = ("add", "add_")
FLAT = 1e-6  # a norm that scales by less hides the layer's output: there is nothing to make up for the stream with
BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True, eq=False)
class Shortcut:
    """The other operand of the addition behind a layer, and the scale of the batch norm in between."""

    walk: Walk
    other: fx.Node
    kept: Tensor  # the layer's outputs that are left
    scale: Tensor  # [kept] what a unit of the layer's output becomes in the stream

    def missing(self, chunk: int, layer: nn.Module, where: Tensor) -> Tensor:
        """What must be added to the layer's target at `where` [N, P] of a chunk: [N, P, kept]."""
        original, pruned = (self.walk.value(self.other, side, chunk) for side in (0, 1))
        error = outputs_at(layer, original, where)[..., self.kept] - outputs_at(layer, pruned, where)
        return torch.where(self.scale.abs() > FLAT, error / self.scale, 0.0)


def find_shortcut(walk: Walk, node: fx.Node, unsolved: list[fx.Node]) -> Shortcut | None:
    """The addition right behind `node` (a batch norm may lie between), if its other operand can be had by now."""
    kept = walk.kept_outputs(str(node.target))
    branch, norm = node, None
    user = only_user(node)
    if user is not None and user.op == "call_module" and isinstance(walk.layer(user), BatchNorm):
        branch, norm = user, walk.layer(user)
        user = only_user(user)
    if kept is None or user is None or not _is_addition(user) or (norm is not None and norm.running_var is None):
        return None
    other = next((n for n in user.args if isinstance(n, fx.Node) and n is not branch), None)
    if other is None or walk.traced.shapes[other.name] != walk.traced.shapes[node.name]:
        return None
    if not _bring_forward(walk, node, other, unsolved):
        return None
    pruned = walk.value(other, 1, 0)
    axis = pruned.dim() - 1 if isinstance(walk.layer(node), nn.Linear) else 1
    if pruned.shape[axis] != len(kept):
        return None
    scale = torch.ones(len(kept), device=pruned.device)
    if norm is not None:
        gain = torch.ones_like(scale) if norm.weight is None else norm.weight.detach()
        scale = gain / torch.sqrt(norm.running_var + norm.eps)
    return Shortcut(walk, other, kept, scale)


def _is_addition(node: fx.Node) -> bool:
    if node.kwargs or len(node.args) != 2:
        return False
    return node.target in (ADDITIONS if node.op == "call_function" else METHODS)


def _bring_forward(walk: Walk, node: fx.Node, other: fx.Node, unsolved: list[fx.Node]) -> bool:
    """Make the calls that lead to `other` before their turn, if nothing that lies between can tell the difference."""
    if walk.done(other):
        return True
    pending: list[fx.Node] = []
    wanted = [other]
    while wanted:
        one = wanted.pop()
        if walk.done(one) or one in pending:
            continue
        if one is node or one in unsolved:
            return False
        pending.append(one)
        wanted += one.all_input_nodes
    order = {n: i for i, n in enumerate(walk.nodes)}
    behind = {node}
    for between in walk.nodes[order[node] + 1 : order[other]]:
        if between in pending or walk.done(between):
            continue
        # A call in between might write into what `other` is made of; one that sees only the layer's output cannot.
        if not all(n in behind or n.op == "get_attr" for n in between.all_input_nodes):
            return False
        behind.add(between)
    for one in sorted(pending, key=order.__getitem__):
        walk.run(one)
    return True
