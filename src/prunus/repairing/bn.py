"""The repair `bn`: correct the statistics of the batch norms after a cut."""

from __future__ import annotations

import torch
from torch import fx, nn

from prunus.graph.channel_graph import ChannelGraph
from prunus.graph.plan import Plan
from prunus.repairing.lockstep import NetworkPair, lockstep
from prunus.repairing.repair import Repair
from prunus.scoring.moments import Triple, combine
from prunus.scoring.passes import Images
from prunus.scoring.rows import exact
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
        stops = [node for node in pair.nodes if node in pair.changed and _has_statistics(pair, node)]
        networks.start(pair.nodes, stops)
        for number, node in enumerate(stops, 1):
            zero = torch.zeros((), dtype=torch.float64)
            sides: list[Triple] = [(zero, zero, zero)] * 2  # of the original network, of the pruned one
            for chunk in networks.chunks_at(node):
                for side in (0, 1):
                    x = exact(chunk.entering(node, side)).transpose(0, 1).flatten(1)  # [C, N x positions]
                    count, mean = x.new_tensor(x.shape[1]), x.mean(1)
                    sides[side] = combine(sides[side], (count, mean, (x - mean[:, None]).square().sum(1)))
            norm, kept = pair.layer(node), pair.kept_channels(str(node.target))
            (count, mean, m2), (_, new_mean, new_m2) = sides
            ratio = torch.where(m2[kept] > 0, (new_m2 / count) / (m2[kept] / count), 1.0)
            norm.running_mean.add_((new_mean - mean[kept]).to(norm.running_mean))
            norm.running_var.mul_(ratio.to(norm.running_var))
            if progress is not None:
                progress(number, len(stops))
        return pair.models[1]


def _has_statistics(pair: NetworkPair, node: fx.Node) -> bool:
    """Whether a node calls a batch norm with statistics of which the kept channels are known."""
    if not pair.called_once(node):
        return False
    norm = pair.layer(node)
    known = pair.kept_channels(str(node.target)) is not None
    return isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.running_mean is not None and known


BN = Repair(name="bn", help="Correct the statistics of the batch norms after a cut", run=run)
