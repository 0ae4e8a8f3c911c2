"""FLOP-normalised sensitivity analysis (Algorithm 1 of the paper), and the ratio-based one of Li et al.

Each unit loses its n_l weakest channels, which save the same cost in every unit. The held-out accuracy without
retraining shows how much that hurts. Layers in front of the change are not computed again (`partial_forward.py`), and
by default units race (`racing.py`): the most informative images come first, until the k best units are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from prunus.decide.amounts import Cutter, amounts
from prunus.decide.candidates import WidthLimits, candidates, check_patterns, scored
from prunus.decide.costs import CostOf, cost_function, name_of, widths_of
from prunus.decide.settings import RankSettings
from prunus.decide.trials import (
    RaceRules,
    Trial,
    TrialResult,
    by_own_measure,
    evaluate_task_trials,
    evaluate_trials,
    race_trials,
)
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.score.scores import Scores
from prunus.tasks import is_classification, task_of
from prunus.tasks.partial_forward import Cut, cut_by_zeroing
from prunus.util.batches import Batches
from prunus.util.options import check, replaced
from prunus.util.progress import Progress, shown, steps
from prunus.util.state import evaluating, generators_kept
from prunus.util.text import short_table

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class NothingToLoseError(DecideError):
    """Every unit is at its floor, or alpha asks for less than a granule of each."""


@dataclass(frozen=True)
class Tried:
    """One unit without some of its channels, not retrained. Accuracy is a fraction of 1; a higher value is better."""

    unit: str
    channels: int  # number of channels removed
    width: int
    accuracy: float | None  # None for a measure of the user's own
    loss: float | None
    value: float  # units are ranked by it: accuracy, minus the loss, or the user's own measure
    saved: float  # cost saved, in the unit of `cost`
    floss: float  # cost saved per channel
    num_images: int  # held-out images that it was tried on
    stopped: bool = False  # the floor kept it from saving as much as the others


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """How much the network suffers when each unit loses channels."""

    split: str  # "algorithm1" or "ratio"
    measure: str
    cost: str
    alpha: float | None
    base_accuracy: float | None
    base_loss: float | None
    base_value: float
    num_images: int
    tried: Mapping[str, Tried]  # unit -> result with n_l channels removed, or at the ratio that units are ranked by
    curves: Mapping[str, tuple[Tried, ...]] = field(default_factory=dict)  # split "ratio": over all ratios
    repair: str = "none"  # how each unit was repaired before it was evaluated
    unit: str = ""  # of the measure; "%": values are fractions of 1

    def ranked(self) -> list[str]:
        """Units, the least sensitive first; ties go to the lower loss, then to the larger saving."""
        return sorted(
            self.tried,
            key=lambda n: (-self.tried[n].value, self.tried[n].loss or 0.0, -self.tried[n].saved, n),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, words: Mapping[str, Any]) -> Sensitivity:
        """The inverse of `to_dict`."""
        tried = {name: Tried(**row) for name, row in words["tried"].items()}
        curves = {name: tuple(Tried(**row) for row in rows) for name, rows in words["curves"].items()}
        return cls(**{**words, "tried": tried, "curves": curves})

    def __repr__(self) -> str:
        """A short table, the least sensitive units first."""
        title = f"Sensitivity of {len(self.tried)} units ({self.split}, {self.measure} {self.base_value:.4f} before)"
        rows = [
            (name, f"{self.tried[name].channels} of {self.tried[name].width}", f"{self.tried[name].value:.4f}")
            for name in self.ranked()
        ]
        return short_table(title, ("unit", "removed", self.measure), rows)


def sensitivity(
    graph: ChannelGraph,
    scores: Scores,
    holdout: Batches,
    settings: RankSettings | None = None,
    *,
    ratios: Sequence[float] = RATIOS,
    repair: Cut | None = None,
    widths: Mapping[str, int] | None = None,
    progress: Progress | bool | None = None,
    **changes: Any,
) -> Sensitivity:
    """Measure on held-out images how sensitive the network is to each unit's loss of channels.

    settings, changes: a `RankSettings`, or its fields by name: split, alpha, k, measure, cost, exact, only, exclude,
        round_to, task, seed.
    split "algorithm1" (default): unit l loses n_l = round(alpha * FLOSS_max / FLOSS_l) channels (Eqn. 3), so that all
        units save the same cost. "ratio": Li et al.; every unit loses each fraction in `ratios`, and units are ranked
        at `trial_ratio`.
    measure: "accuracy" (or what the task's quality is), "loss" (which still differs where accuracy is saturated), or a
        function of (model, holdout); higher is better.
    cost: what is saved: "macs", "params", "latency" (measured here, layer by layer) or a function of kept channels.
    repair: evaluate each unit after its own repair: `prunus.repair_each(graph, images)`, or your own function of
        (unit, kept channels) that returns a context in which graph.model is cut that way. By default units are
        evaluated as they are cut.
    widths: unit -> width in the original network, if this network has been pruned before. A unit keeps at least 2
        channels and 10% of its original ones.
    exact: read all held-out images for all units. Otherwise units race, if the quality is a mean over images: with
        probability 0.95 (`confidence`) the k best found (a third of the units) are within 0.0005 (`tolerance`) of them.
    Under torchrun the units are shared among the processes, which must all hold the same held-out images.
    """
    chosen: RankSettings = replaced(settings or RankSettings(), changes, DecideError)
    check(chosen, DecideError)
    split = chosen.split or "algorithm1"
    cost_of = cost_function(graph, chosen.cost)
    cutter = Cutter(graph, scores, WidthLimits(chosen.round_to, widths or {}, widths_of(cost_of)))
    names = _names(graph, scores, chosen, widths or {})
    if split == "ratio":
        trials, details = _by_ratio(cutter, names, ratios, cost_of)
    elif split == "algorithm1":
        trials, details = _by_amount(cutter, names, chosen.alpha, cost_of)
    else:
        raise DecideError(f'sensitivity ranks units for the splits "algorithm1" and "ratio", not for {split!r}')
    if not trials:
        raise NothingToLoseError("no unit can lose a whole granule within its floor; lower round_to or raise alpha")
    base, results = _evaluate(graph, trials, holdout, chosen, repair or cut_by_zeroing(graph), progress)
    rows = [_row(t, r, details[t.key], graph) for t, r in zip(trials, results, strict=True)]
    return Sensitivity(
        split=split,
        **_measure_words(chosen),
        cost=name_of(chosen.cost),
        alpha=chosen.alpha if split == "algorithm1" else None,
        base_accuracy=base.accuracy,
        base_loss=base.loss,
        base_value=base.value,
        num_images=base.num_images,
        tried=_chosen(rows, chosen.trial_ratio),
        curves=_curves(rows) if split == "ratio" else {},
        repair="none" if repair is None else str(getattr(repair, "how", "own")),
    )


def _names(graph: ChannelGraph, scores: Scores, settings: RankSettings, widths: Mapping[str, int]) -> list[str]:
    check_patterns(graph, settings.exclude, settings.only, widths)
    return scored(graph, scores, candidates(graph, settings.exclude, settings.only))


def _measure_words(settings: RankSettings) -> dict[str, str]:
    """Name and unit of what units are ranked by."""
    if callable(settings.measure):
        return {"measure": str(getattr(settings.measure, "__name__", "own"))}
    quality = task_of(settings.task).measured
    return {"measure": quality.name, "unit": quality.unit} if settings.measure == "accuracy" else {"measure": "loss"}


def check_k(k: int | None, units: int) -> int:
    """k, by default a third of the units as in the paper."""
    if k is None:
        return max(1, round(units / 3))
    if not 1 <= k <= units:
        raise DecideError(f"k must lie between 1 and the number of units that can lose channels, {units}; got {k}")
    return k


def _evaluate(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    settings: RankSettings,
    cut: Cut,
    progress: Progress | bool | None,
) -> tuple[TrialResult, list[TrialResult]]:
    """Results of the whole network and of each trial."""
    measure = settings.measure
    k = check_k(settings.k, len({trial.unit for trial in trials}))
    display = shown(progress, steps("sensitivity"))
    with evaluating(graph.model), generators_kept(), torch.no_grad(), display as report:
        if callable(measure):
            return by_own_measure(graph, trials, holdout, measure, cut, report)
        exact, task = settings.exact or settings.split == "ratio", task_of(settings.task)
        rules = RaceRules(k, settings.confidence, settings.tolerance, settings.seed)
        if not is_classification(task):
            return evaluate_task_trials(graph, trials, holdout, task, measure, cut, None if exact else rules, report)
        if exact:
            return evaluate_trials(graph, trials, holdout, measure, cut, report)
        return race_trials(graph, trials, holdout, measure, cut, rules, report)


@dataclass(frozen=True)
class _Detail:
    channels: int
    saved: float
    floss: float
    stopped: bool


Details = dict[tuple[str, int], _Detail]


def _by_amount(cutter: Cutter, names: Sequence[str], alpha: float, cost: CostOf) -> tuple[list[Trial], Details]:
    trials, details, whole = [], {}, cost({})
    for name, amount in amounts(cutter, names, alpha=alpha, cost=cost).items():
        if amount.channels == 0:
            continue
        kept = cutter.keep(name, amount.channels)
        trials.append(Trial(name, amount.channels, kept))
        saved = whole - cost({name: kept})
        details[name, amount.channels] = _Detail(amount.channels, saved, amount.floss, amount.stopped)
    return trials, details


def _by_ratio(
    cutter: Cutter, names: Sequence[str], ratios: Sequence[float], cost: CostOf
) -> tuple[list[Trial], Details]:
    trials, details, whole = [], {}, cost({})
    wrong = [ratio for ratio in ratios if not 0 < ratio < 1]
    if wrong:
        raise DecideError(f"ratios are fractions removed, above 0 and below 1; got {wrong[0]}")
    for name in names:
        unit = cutter.graph.units[name]
        for ratio in ratios:
            removed = min(unit.width - unit.granule, unit.granule * round(ratio * unit.width / unit.granule))
            if removed <= 0 or (name, removed) in details:
                continue
            kept = cutter.keep(name, removed)
            saved = whole - cost({name: kept})
            trials.append(Trial(name, removed, kept))
            details[name, removed] = _Detail(removed, saved, saved / removed, False)
    return trials, details


def _row(trial: Trial, result: TrialResult, detail: _Detail, graph: ChannelGraph) -> Tried:
    return Tried(
        trial.unit,
        detail.channels,
        graph.units[trial.unit].width,
        result.accuracy,
        result.loss,
        result.value,
        detail.saved,
        detail.floss,
        result.num_images,
        detail.stopped,
    )


def _curves(rows: Sequence[Tried]) -> dict[str, tuple[Tried, ...]]:
    curves: dict[str, tuple[Tried, ...]] = {}
    for row in rows:
        curves[row.unit] = (*curves.get(row.unit, ()), row)
    return curves


def _chosen(rows: Sequence[Tried], ratio: float) -> dict[str, Tried]:
    """unit -> the row that it is ranked by: its only one, or the one nearest to the ratio."""
    return {unit: min(rows, key=lambda r: abs(r.channels / r.width - ratio)) for unit, rows in _curves(rows).items()}
