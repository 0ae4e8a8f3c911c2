"""Trials by a measure of the user's own, which takes the network and the held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from secateur.base.batches import Batches
from secateur.base.progress import Progress
from secateur.channels.graph import ChannelGraph
from secateur.deciding.trial_evaluation import Trial, TrialResult
from secateur.errors import DecideError
from secateur.measuring.partial_forward import Cut


def by_own_measure(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: Callable[[nn.Module, Batches], float],
    cut: Cut,
    progress: Progress | None,
) -> tuple[TrialResult, list[TrialResult]]:
    """The user's own measure of the network, whole and for each trial."""
    holdout = list(holdout) if iter(holdout) is holdout else holdout  # it is read once for each trial
    base = _own_result(measure, graph, holdout, "the whole network")
    results = []
    for i, trial in enumerate(trials):
        with cut(trial.unit, trial.kept):
            results.append(_own_result(measure, graph, holdout, f"unit {trial.unit} cut to {len(trial.kept)} channels"))
        if progress is not None:
            progress(i + 1, len(trials))
    return base, results


def _own_result(
    measure: Callable[[nn.Module, Batches], float], graph: ChannelGraph, holdout: Batches, what: str
) -> TrialResult:
    found = measure(graph.model, holdout)
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise DecideError(f"your measure must return a number, but returned {type(found).__name__}") from error
    if math.isnan(value):
        raise DecideError(f"your measure returned NaN for {what}, and units cannot be ranked by it")
    return TrialResult(None, None, value, 0)
