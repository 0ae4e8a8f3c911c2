"""Prune only, repair nothing."""

from __future__ import annotations

from torch import nn

from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.repairing.methods import Repair
from secateur.scoring.unlabelled_images import Images


def run(
    graph: ChannelGraph, plan: Plan, images: Images | None = None, *, seed: int = 0, progress: Progress | None = None
) -> nn.Module:
    """The pruned model. Everything but the graph and the plan is ignored."""
    return prune(graph, plan)


ENTRY = Repair(run=run, needs_images=False)
