"""Prune only, repair nothing."""

from __future__ import annotations

from torch import nn

from prunus.graph.channel_graph import ChannelGraph, prune
from prunus.graph.plan import Plan
from prunus.repair.methods import Repair
from prunus.score.passes import Images
from prunus.util.progress import Progress


def run(
    graph: ChannelGraph, plan: Plan, images: Images | None = None, *, seed: int = 0, progress: Progress | None = None
) -> nn.Module:
    """The pruned model. Everything but the graph and the plan is ignored."""
    return prune(graph, plan)


ENTRY = Repair(name="none", help="Prune only, repair nothing", run=run, needs_images=False)
