"""Batch-norm statistics corrected for what a cut has changed in front of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx

from secateur.repairing.lockstep import Walk
from secateur.repairing.shortcuts import BatchNorm
from secateur.scoring.layer_rows import exact


def reestimate_norms(walk: Walk, progress: Callable[[int, int], None] | None) -> None:
    """Front to back, move each norm's statistics by what the pruned network's input to it differs from the original's:

        mean += mean of the pruned input - mean of the original's,    var *= variance of the one / of the other

    over the same images. What the few images say wrongly of the data, they say of both networks, and it cancels; a
    norm before the first cut keeps its statistics.
    """
    todo = [node for node in walk.nodes if _has_statistics(walk, node) and walk.changed(node)]
    for node in walk.nodes:
        walk.run(node, sides=(0,))
        if node in todo:
            _correct(walk, node)
            if progress is not None:
                progress(todo.index(node) + 1, len(todo))
        walk.run(node, sides=(1,))
        walk.free(node)


def _has_statistics(walk: Walk, node: fx.Node) -> bool:
    if node.op != "call_module" or walk.traced.calls[str(node.target)] != 1:
        return False
    norm = walk.layer(node)
    known = walk.kept_channels(str(node.target)) is not None
    return isinstance(norm, BatchNorm) and norm.running_mean is not None and known


def _correct(walk: Walk, node: fx.Node) -> None:
    norm = walk.layer(node)
    kept = walk.kept_channels(str(node.target))
    mean_before, var_before = (t[kept] for t in _moments(walk, node, 0))
    mean_after, var_after = _moments(walk, node, 1)
    ratio = torch.where(var_before > 0, var_after / var_before, 1.0)
    norm.running_mean.add_((mean_after - mean_before).to(norm.running_mean))
    norm.running_var.mul_(ratio.to(norm.running_var))


def _moments(walk: Walk, node: fx.Node, side: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel [C] over all images and positions, in float64, merged chunk by chunk."""
    count, mean, squares = 0, torch.zeros(()), torch.zeros(())
    for chunk in range(len(walk.sizes)):
        x = exact(walk.entering(node, side, chunk)).transpose(0, 1).flatten(1)  # [C, N x positions]
        n, here = x.shape[1], x.mean(1)
        gap = here - mean
        squares = squares + ((x - here[:, None]) ** 2).sum(1) + gap**2 * count * n / (count + n)
        mean = mean + gap * n / (count + n)
        count += n
    return mean, squares / count
