"""What suits a run where the user left it open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from secateur.channels.graph import ChannelGraph
from secateur.deciding.candidates import candidates
from secateur.deciding.ranked_plan import first_alpha
from secateur.deciding.reach import check_reach
from secateur.deciding.settings import ranking_settings
from secateur.deciding.splits import SPLITS
from secateur.errors import DecideError
from secateur.measuring.latency_table import LatencyTable
from secateur.running.settings import DEFAULT_REPAIR, Settings
from secateur.scoring.metrics import METRICS, suited_metric

SOME_IMAGES, MANY_IMAGES = 500, 2000  # for a repair
SMALL = 64 * 64  # pixels of an image


def fill_defaults(
    settings: Settings, graph: ChannelGraph, pixels: int = 0, table: LatencyTable | None = None
) -> Settings:
    """Settings with split, metric, trials and number of repair images filled in, after `recovery` (docs/repair.md).

    If accuracy is recovered by a solve alone, channels are removed by the error that it cannot repair, units are ranked
    after their repair, and the repair sees more images if they are small.

    A goal in time is split for the least error.

    pixels: of one image. table: times of the network's layers, if the run needs them.
    """
    settings = split_for_solve(settings, graph, table)
    split = settings.split or _usual_split(settings)
    metric = settings.metric or SPLITS.find("least_error" if settings.solve_only else split).metric
    if settings.metric is None and isinstance(metric, str):
        metric = suited_metric(metric, settings.task)
    settings = _with_alpha(replace(settings, split=split, metric=metric), graph, table)
    if settings.repair == "none":
        return settings
    trials = settings.trials or ("repaired" if settings.solve_only else "cut")
    count = settings.num_repair_images
    if count is None:  # large ones take long
        count = MANY_IMAGES if settings.solve_only and pixels <= SMALL else SOME_IMAGES
    return replace(settings, trials=trials, num_repair_images=count)


def recovery(settings: Settings, begun: Mapping[str, Any] | None = None) -> Settings:
    """Settings with repair, epochs and teacher filled in: a solve, and retraining only if something is said about it.

    begun: the settings of the run that already is in the folder. Older ones have no repair unless they were asked for
    one, and retrain unless they were asked not to; they continue as they began.
    """
    older = begun is not None and begun.get("repair") == "none"
    repair = settings.repair or ("none" if older else DEFAULT_REPAIR)
    settings = replace(settings, repair=repair)
    retrained = begun is not None and begun.get("epochs") is None
    if settings.distill is None and begun is not None and begun.get("distill") is False:
        settings = replace(settings, distill=False)  # an older version had no teacher unless it was asked for one
    if repair == DEFAULT_REPAIR and settings.leaves_training_open and not retrained:
        settings = replace(settings, epochs=0)
    trained = settings.retrains or bool(settings.last_epochs)
    return replace(settings, distill=settings.has_teacher and trained)


def _usual_split(settings: Settings) -> str:
    errors = not isinstance(settings.metric, str) or METRICS.find(settings.metric).adds_up
    if settings.speedup is not None and errors and not callable(settings.metric) and not ranking_settings(settings):
        return "least_error"
    return "algorithm1" if settings.ratio is None else "uniform"


def _with_alpha(settings: Settings, graph: ChannelGraph, table: LatencyTable | None) -> Settings:
    """If the number of rounds is given, the alpha that is solved for the first one takes the place of the default."""
    if settings.rounds is None or settings.split != "algorithm1" or settings.budget(graph, table).left is None:
        return settings
    return replace(settings, alpha=round(first_alpha(graph, settings.budget(graph, table), settings), 4))


def split_for_solve(settings: Settings, graph: ChannelGraph, table: LatencyTable | None = None) -> Settings:
    """If a solve alone recovers the accuracy, split the cut so that the total error after repair is smallest.

    Errors count by what they do to the network's outputs, so units inside blocks and readers of streams are comparable,
    and both are pruned. A metric whose scores are not errors cannot compare them. Then private units lose the same
    share, as long as they can meet the target: channels inside blocks can be rebuilt from their neighbours, channels
    that readers of a stream drop, much less. Explicit choices of the user are respected.
    """
    given = settings.only or settings.rounds or settings.ratio or settings.split
    if not settings.solve_only or given or ranking_settings(settings):
        return settings
    if settings.metric is None or (isinstance(settings.metric, str) and METRICS.find(settings.metric).adds_up):
        chosen = replace(settings, split="least_error")
    else:
        private = tuple(n for n in candidates(graph, settings.exclude) if graph.units[n].kind == "private")
        if not private:
            return settings
        chosen = replace(settings, only=private, split="uniform")
    try:
        check_reach(graph, chosen.budget(graph, table), chosen)
    except DecideError:  # no such units, too few of them, or a goal without a target
        return settings
    return chosen if chosen.budget(graph, table).left is not None else settings
