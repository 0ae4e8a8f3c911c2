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
from secateur.scoring.metrics import metric_of, suited_metric

SOME_IMAGES, MANY_IMAGES = 500, 2000  # for a repair
SMALL = 64 * 64  # pixels of an image


def fill_defaults(
    settings: Settings, graph: ChannelGraph, pixels: int = 0, table: LatencyTable | None = None
) -> Settings:
    """Settings with split, metric, trials and number of repair images filled in, after `recovery` (docs/repair.md).

    If a solve repairs, the cut is split by the errors that it cannot undo. If nothing follows it, units that are ranked
    are ranked after their repair, and the repair sees more images if they are small.

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

    begun: the settings of the run that already is in the folder. Runs of other versions continue as they began.
    """
    begun = begun or {}
    open_before = settings.leaves_training_open
    settings = _as_begun(settings, begun)
    settings = replace(settings, repair=settings.repair or DEFAULT_REPAIR)
    retrained = "epochs" in begun and begun["epochs"] is None
    if settings.repair == DEFAULT_REPAIR and open_before and not retrained:
        settings = replace(settings, epochs=0)
    trained = settings.retrains or bool(settings.last_epochs)
    return replace(settings, distill=settings.has_teacher and trained)


def _as_begun(settings: Settings, begun: Mapping[str, Any]) -> Settings:
    """What is left open stays as an older version filled it in: no repair, no teacher, Algorithm 1 if it retrains."""
    older: dict[str, Any] = {"repair": "none", "distill": False}
    ranked = {"split": "algorithm1", "metric": suited_metric(SPLITS["algorithm1"].metric, settings.task)}
    if all(begun.get(name) == value for name, value in ranked.items()):
        older |= ranked
    return replace(
        settings, **{n: v for n, v in older.items() if getattr(settings, n) is None and begun.get(n, "") == v}
    )


def _usual_split(settings: Settings) -> str:
    errors = not isinstance(settings.metric, str) or metric_of(settings.metric).adds_up
    if settings.speedup is not None and errors and not callable(settings.metric) and not ranking_settings(settings):
        return "least_error"
    return "algorithm1" if settings.ratio is None else "uniform"


def _with_alpha(settings: Settings, graph: ChannelGraph, table: LatencyTable | None) -> Settings:
    """If the number of rounds is given, the alpha that is solved for the first one takes the place of the default."""
    if settings.rounds is None or settings.split != "algorithm1" or settings.budget(graph, table).left is None:
        return settings
    return replace(settings, alpha=round(first_alpha(graph, settings.budget(graph, table), settings), 4))


def split_for_solve(settings: Settings, graph: ChannelGraph, table: LatencyTable | None = None) -> Settings:
    """If a solve repairs, split the cut so that the total error after it is smallest, with and without retraining.

    Errors count by what they do to the network's outputs, so units inside blocks and readers of streams are comparable,
    and both are pruned. A metric whose scores are not errors cannot compare them. Then, if the solve is all that
    follows, private units lose the same share, as long as they can meet the target: channels inside blocks can be
    rebuilt from their neighbours, channels that readers of a stream drop, much less. Explicit choices of the user are
    respected.
    """
    given = settings.only or settings.rounds or settings.ratio or settings.split
    if settings.repair != DEFAULT_REPAIR or given or ranking_settings(settings):
        return settings
    if settings.metric is None or (isinstance(settings.metric, str) and metric_of(settings.metric).adds_up):
        chosen = replace(settings, split="least_error")
    elif settings.solve_only:
        private = tuple(n for n in candidates(graph, settings.exclude) if graph.units[n].kind == "private")
        if not private:
            return settings
        chosen = replace(settings, only=private, split="uniform")
    else:
        return settings
    try:
        check_reach(graph, chosen.budget(graph, table), chosen)
    except DecideError:  # no such units, too few of them, or a goal without a target
        return settings
    return chosen if chosen.budget(graph, table).left is not None else settings
