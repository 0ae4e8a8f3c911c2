"""Correct the statistics of the batch norms after a cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.repairing.lockstep import Walk, walked
from secateur.repairing.methods import Repair
from secateur.repairing.shortcuts import BatchNorm
from secateur.scoring.layer_rows import exact, rows_of_weight
from secateur.scoring.reader_inputs import LayerInputs
from secateur.scoring.unlabelled_images import Images


def run(
    graph: ChannelGraph, plan: Plan, images: Images, *, seed: int = 0, progress: Progress | None = None
) -> nn.Module:
    """Front to back, shift each norm's statistics by the difference between its inputs in the two networks:

        mean += mean in the pruned network - mean in the original,    var *= variance in the pruned / in the original

    over the same images. Sampling errors of a few images affect both networks alike and cancel. A norm before the
    first cut keeps its statistics. `seed` is ignored.
    """
    with walked(graph, plan, images) as walk:
        todo = [node for node in walk.nodes if _has_statistics(walk, node) and walk.changed(node)]
        for node in walk.nodes:
            walk.run(node, sides=(0,))
            if node in todo:
                _correct(walk, node)
                if progress is not None:
                    progress(todo.index(node) + 1, len(todo))
            walk.run(node, sides=(1,))
            walk.free(node)
        return walk.models[1]


def reader_changes(seen: LayerInputs, norm: Any, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """New statistics for the batch norm after a reader that keeps `columns`, as `run` would give them."""
    if norm is None:
        return []
    weight = rows_of_weight(seen.layer)
    none = torch.zeros_like(weight[:, :, 0])
    cut = torch.zeros_like(weight)
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    cut.scatter_(2, index, weight.gather(2, index))
    every = torch.arange(weight.shape[2], device=weight.device).expand(len(weight), -1)
    before, after = (seen.whole.narrowed(every, w, none) for w in (weight, cut))
    shift = (after.mean() - before.mean()).reshape(-1)
    ratio = torch.where(before.variance() > 0, after.variance() / before.variance(), 1.0).reshape(-1)
    return [
        (norm.running_mean, norm.running_mean + shift.to(norm.running_mean)),
        (norm.running_var, norm.running_var * ratio.to(norm.running_var)),
    ]


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


ENTRY = Repair(run=run, reader_changes=reader_changes)
