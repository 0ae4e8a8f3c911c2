"""Repair inside a run: which images, towards which network, and the same in every process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import distributed as dist
from torch import nn

from secateur.base.distributed import processes
from secateur.base.preserve_state import generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.channels.plan import Plan
from secateur.channels.surgery import prune
from secateur.measuring.accuracy import Accuracy
from secateur.measuring.quality_sums import unpack_for
from secateur.repairing.methods import REPAIRS
from secateur.repairing.unit_repair import UnitRepair, repair_each
from secateur.running.run_context import RunContext
from secateur.running.settings import DEFAULT_REPAIR
from secateur.scoring.sampling import sampled

UNIT_IMAGES = 500  # each unit is repaired separately: few images are enough to compare units


def repair_round(
    context: RunContext, number: int, graph: ChannelGraph, plan: Plan, so_far: Plan, errors: dict[str, list[float]]
) -> nn.Module:
    """The round's network, pruned by `plan` and repaired. `graph` is of the network that `so_far` leads to.

    errors: filled with the relative error of each layer before and after its repair, if the repair knows them.

    Without retraining, everything that the rounds have cut is repaired from the original network at once: its outputs
    are the target and its weights the start, so that errors of earlier repairs are not passed on. A retrained network
    no longer has the original's features; then the network at the start of the round is the target.
    """
    settings = context.settings
    method = REPAIRS.find(_how(context))
    if method.needs_images and not settings.retrains:
        graph, plan = context.graph, so_far.then(plan)
    options: dict[str, Any] = {"memory": settings.memory} if method.needs_images else {}
    if method.tells_errors:
        options["on_layer"] = lambda name, before, after: errors.update({name: [before, after]})
    return method.run(
        graph,
        plan,
        _images(context) if method.needs_images else None,
        **options,
        seed=settings.seed,
        progress=lambda done, total: context.say(f"round {number}: repair", done, total),
    )


def cut_accuracy(context: RunContext, graph: ChannelGraph, plan: Plan) -> Accuracy | None:
    """Held-out accuracy of the round's network as it is cut, without a repair; None if nothing is repaired."""
    if not REPAIRS.find(_how(context)).needs_images:
        return None
    return context.evaluate(prune(graph, plan, check=False), context.data.holdout)


def repair_units(context: RunContext, graph: ChannelGraph) -> UnitRepair:
    """Each unit of a round's network repaired separately: to score channels, and to rank units after their repair."""
    how = _how(context)
    if REPAIRS.find(how).reader_changes is None:  # this repair cannot be applied to one unit
        how = "solve"
    return repair_each(graph, _images(context, most=UNIT_IMAGES), how=how, seed=context.settings.seed)


def _how(context: RunContext) -> str:
    return context.settings.repair or DEFAULT_REPAIR


def _images(context: RunContext, most: int | None = None) -> Iterator[Any]:
    """Unlabelled images, a stratified sample (folders are sorted by class). All processes have all of them."""
    settings = context.settings
    count = min(n for n in (settings.num_repair_images, most) if n is not None)
    with generators_kept(settings.seed):
        some, task = sampled(context.data.score_on, count, settings.seed, context.task), context.task
        mine = ((unpack_for(task, batch, number, labelled=False)[0],) for number, batch in enumerate(some))
        if processes() == 1:
            yield from mine
            return
        everyone: list[Any] = [None] * processes()
        dist.all_gather_object(everyone, list(mine))
    for share in everyone:
        yield from share
