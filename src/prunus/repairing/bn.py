"""The repair `bn`: correct the statistics of the batch norms after a cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.repairing.lockstep import NetworkPair, lockstep
from prunus.repairing.repair import Repair
from prunus.scoring.passes import Images
from prunus.scoring.reader_inputs import LayerInputs
from prunus.scoring.rows import exact, rows_of_weight
from prunus.util.progress import Progress


def run(
    graph: ChannelGraph,
    plan: Plan,
    images: Images,
    *,
    memory: str | int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """Front to back, shift each norm's statistics by the difference between its inputs in the two networks:

        mean += mean in the pruned network - mean in the original,    var *= variance in the pruned / in the original

    over the same images. Sampling errors of a few images affect both networks alike and cancel. A norm before the
    first cut keeps its statistics. memory: see `prunus.repairing.lockstep`. `seed` is ignored.
    """
    with lockstep(graph, plan, images, memory) as networks:
        pair = networks.pair
        stops = [node for node in pair.nodes if pair.changed(node) and _has_statistics(pair, node)]
        networks.start(pair.nodes, stops)
        for number, node in enumerate(stops, 1):
            before, after = _Moments(), _Moments()
            for chunk in networks.chunks_at(node):
                before.add(chunk.entering(node, 0))
                after.add(chunk.entering(node, 1))
            norm, kept = pair.layer(node), pair.kept_channels(str(node.target))
            variance = before.variance()[kept]
            ratio = torch.where(variance > 0, after.variance() / variance, 1.0)
            norm.running_mean.add_((after.mean - before.mean[kept]).to(norm.running_mean))
            norm.running_var.mul_(ratio.to(norm.running_var))
            if progress is not None:
                progress(number, len(stops))
        return pair.models[1]


def reader_changes(seen: LayerInputs, norm: Any, columns: Tensor) -> list[tuple[Tensor, Tensor]]:
    """New statistics for the batch norm after a reader that keeps `columns`, as `run` would give them."""
    if norm is None:
        return []
    weight = rows_of_weight(seen.layer)
    index = columns[:, None].expand(-1, weight.shape[1], -1)
    cut = torch.zeros_like(weight).scatter_(2, index, weight.gather(2, index))
    every = torch.arange(weight.shape[2], device=weight.device).expand(len(weight), -1)
    zeros = torch.zeros_like(weight[:, :, 0])
    before, after = (seen.whole.narrowed(every, w, zeros) for w in (weight, cut))
    shift = (after.mean() - before.mean()).reshape(-1)
    ratio = torch.where(before.variance() > 0, after.variance() / before.variance(), 1.0).reshape(-1)
    return [
        (norm.running_mean, norm.running_mean + shift.to(norm.running_mean)),
        (norm.running_var, norm.running_var * ratio.to(norm.running_var)),
    ]


BN = Repair(
    name="bn", help="Correct the statistics of the batch norms after a cut", run=run, reader_changes=reader_changes
)


def _has_statistics(pair: NetworkPair, node: fx.Node) -> bool:
    """Whether a node calls a batch norm with statistics of which the kept channels are known."""
    if not pair.called_once(node):
        return False
    norm = pair.layer(node)
    known = pair.kept_channels(str(node.target)) is not None
    return isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None and known


class _Moments:
    """Mean and variance of each channel [C] over all images and positions, in float64, merged chunk by chunk."""

    def __init__(self) -> None:
        self._count, self.mean, self._squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, values: Tensor) -> None:
        """Add values [N, C, ...]."""
        x = exact(values).transpose(0, 1).flatten(1)  # [C, N x positions]
        n, here = x.shape[1], x.mean(1)
        gap = here - self.mean
        count = self._count + n
        self._squares = self._squares + ((x - here[:, None]) ** 2).sum(1) + gap**2 * self._count * n / count
        self.mean = self.mean + gap * n / count
        self._count = count

    def variance(self) -> Tensor:
        """Variance of each channel."""
        return self._squares / self._count
