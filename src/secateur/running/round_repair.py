"""Repair inside a run: which images, towards which network, and the same for every process."""

from __future__ import annotations

from typing import Any

from torch import distributed as dist
from torch import nn

from secateur.base.batches import unpack
from secateur.base.distributed import processes
from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.repairing.repair import repair
from secateur.repairing.unit_repair import UnitRepair, repair_each
from secateur.running.run_context import Job
from secateur.scoring.sampling import sampled

UNIT_IMAGES = 250  # each unit is repaired by itself: a few images tell units apart


def repaired(job: Job, graph: ChannelGraph, plan: Plan, so_far: Plan) -> nn.Module:
    """The round's network, pruned by `plan` and repaired; `graph` is what `so_far` led to.

    Where nothing is retrained, all that the rounds have cut is repaired from the original network at once: its outputs
    are the target, its weights the start, and what earlier repairs could not mend is not handed on. A retrained network
    has left the original's features behind, so there the network that the round found is the target.
    """
    if not job.retrains:
        graph, plan = job.graph, so_far.then(plan)
    return repair(graph, plan, _images(job), how=job.settings.repair, seed=job.settings.seed)


def unit_repair(job: Job, graph: ChannelGraph) -> UnitRepair:
    """Each unit of a round's network repaired by itself: for channels' scores, and for units to be judged after it."""
    how = "bn" if job.settings.repair == "bn" else "solve"
    return repair_each(graph, _images(job, most=UNIT_IMAGES), how=how, seed=job.settings.seed)


def _images(job: Job, most: int | None = None) -> list[Any]:
    """Unlabelled images, a stratified sample (folders come sorted by class); all processes have all of them."""
    settings = job.settings
    count = min(n for n in (settings.repair_images, most) if n is not None)
    with generators_kept(settings.seed):
        some = sampled(job.tools.score_on, count, settings.seed)
        mine = [unpack(batch, number)[0] for number, batch in enumerate(some)]
    if processes() == 1:
        return mine
    everyone: list[Any] = [None] * processes()
    dist.all_gather_object(everyone, mine)
    return [batch for share in everyone for batch in share]
