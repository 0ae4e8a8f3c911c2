"""FLOP-normalised sensitivity analysis (Algorithm 1 of the paper), and Li et al.'s by ratios.

Each unit loses its n_l weakest channels, all of which save the same cost; the held-out accuracy without retraining
says how much it hurts. Nothing in front of the change is computed again (`staged.py`), and by default units race
(`racing.py`): the images that tell most come first, until the k best units are known well enough.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from secateur.base.batches import Batches
from secateur.base.preserve_state import evaluating, generators_kept
from secateur.channels.graph import ChannelGraph
from secateur.deciding.amounts import Amount, CostOf, Room, amounts, candidates, cost_by, kept_after, scored
from secateur.deciding.partial_forward import Cut, cut_by_zeroing
from secateur.deciding.trial_evaluation import Judged, Trial, judge_all, judge_by_race
from secateur.errors import DecideError
from secateur.scoring.scores import Scores

logger = logging.getLogger(__name__)

Measure = Literal["accuracy", "loss"] | Callable[[nn.Module, Batches], float]
Progress = Callable[[int, int], None]
DECIDING_RATIO = 0.5  # the share at which Li et al.'s curves are compared
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class NothingToLoseError(DecideError):
    """Every unit is at its floor, or alpha asks for less than a granule of each."""


@dataclass(frozen=True)
class Tried:
    """One unit with some of its channels gone, no retraining. Accuracy is a fraction of 1; higher value is better."""

    unit: str
    channels: int  # how many it lost
    width: int
    accuracy: float | None  # None where a user's own measure was asked
    loss: float | None
    value: float  # what units are ranked by: accuracy, minus the loss, or the user's measure
    saved: float  # cost that it saves, in the units of `cost`
    floss: float  # cost that one channel saves
    images: int  # held-out images that it was tried on
    stopped: bool = False  # a floor kept it from losing as much as the others


@dataclass(frozen=True)
class Sensitivity:
    """What each unit's loss does to the network."""

    method: str
    measure: str
    cost: str
    alpha: float | None
    base_accuracy: float | None
    base_loss: float | None
    base_value: float
    images: int
    tried: Mapping[str, Tried]  # unit -> at its n_l (method "flops"), or at the ratio that decides (method "ratio")
    curves: Mapping[str, tuple[Tried, ...]] = field(default_factory=dict)  # method "ratio": over the ratios
    repair: str = "none"  # how each unit was repaired before it was judged

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
        """What `to_dict` gave."""
        tried = {name: Tried(**row) for name, row in words["tried"].items()}
        curves = {name: tuple(Tried(**row) for row in rows) for name, rows in words["curves"].items()}
        return cls(**{**words, "tried": tried, "curves": curves})


def sensitivity(
    graph: ChannelGraph,
    scores: Scores,
    holdout: Batches,
    method: Literal["flops", "ratio"] = "flops",
    *,
    alpha: float = 3.0,
    k: int | None = None,
    measure: Measure = "accuracy",
    cost: Literal["macs", "params", "latency"] | CostOf = "macs",
    repair: Cut | None = None,
    exact: bool = False,
    confidence: float = 0.95,
    tolerance: float = 0.0005,
    ratios: Sequence[float] = RATIOS,
    ratio: float = DECIDING_RATIO,
    exclude: Sequence[str] = (),
    only: Sequence[str] = (),
    round_to: int = 1,
    widths: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Sensitivity:
    """How sensitive the network is to each unit's loss of channels, on held-out images.

    method "flops": unit l loses n_l = round(alpha * FLOSS_max / FLOSS_l) channels (Eqn. 3), so that all save the same.
    method "ratio": Li et al.: every unit loses each share in `ratios`; `ratio` is the one that units are ranked by.
    measure: "accuracy", "loss" (which still tells units apart where accuracy is saturated) or a function of
        (model, holdout) of which more is better.
    cost: what is saved: "macs", "params", "latency" (measured here, layer by layer) or a function of kept channels.
    repair: judge each unit after a repair of that unit: `secateur.repair_each(graph, images)`, or your own function of
        (unit, kept channels) that gives a block in which graph.model is cut so. By default units are judged as cut.
    round_to: what is left of a unit is a multiple of it. widths: of the original network's units, where this one is
        pruned already; a unit keeps 2 channels and 10% of its original ones at the least.
    exact: read all held-out images for all units. Else units race: with probability `confidence`, the mean value of
        the k best units found is within `tolerance` of the true k best (k: a third of the units).
    Under torchrun the units are shared among the processes, which must all hold the same held-out images.
    """
    if not callable(measure) and measure not in ("accuracy", "loss"):
        raise DecideError(f'measure must be "accuracy", "loss" or a function of (model, holdout), got {measure!r}')
    names = scored(graph, scores, candidates(graph, exclude, only))
    cost_of, cost_name = _cost(graph, cost)
    if method == "ratio":
        trials, details = _by_ratio(graph, scores, names, ratios, cost_of)
        exact = True
    elif method == "flops":
        found = amounts(graph, scores, names, alpha=alpha, cost=cost_of, room=Room(round_to, widths or {}))
        trials, details = _by_amount(graph, scores, found, cost_of)
    else:
        raise DecideError(f'method must be "flops" or "ratio", got {method!r}')
    if not trials:
        raise NothingToLoseError("no unit can lose a whole granule within its floor; lower round_to or raise alpha")
    k = check_k(k, len({t.unit for t in trials}))
    cut = repair or cut_by_zeroing(graph)
    with evaluating(graph.model), generators_kept(), torch.no_grad():
        if callable(measure):
            base, judged = _ask(graph, trials, holdout, measure, cut, progress)
        elif exact:
            base, judged = judge_all(graph, trials, holdout, measure, cut, progress)
        else:
            base, judged = judge_by_race(
                graph,
                trials,
                holdout,
                measure,
                k,
                cut,
                confidence=confidence,
                tolerance=tolerance,
                seed=seed,
                progress=progress,
            )
    rows = [_row(t, j, details[t.key], graph) for t, j in zip(trials, judged, strict=True)]
    chosen, curves = _arrange(rows, method, ratio)
    name = measure if isinstance(measure, str) else getattr(measure, "__name__", "own")
    used = alpha if method == "flops" else None
    how = "none" if repair is None else str(getattr(repair, "how", "own"))
    whole = base.accuracy, base.loss, base.value, base.images
    return Sensitivity(method, name, cost_name, used, *whole, chosen, curves, how)


def check_k(k: int | None, units: int) -> int:
    """k, by default about a third of the units as in the paper."""
    if k is None:
        return max(1, round(units / 3))
    if not 1 <= k <= units:
        raise DecideError(f"k must lie between 1 and the number of units that can lose channels, {units}; got {k}")
    return k


def _cost(graph: ChannelGraph, cost: Any) -> tuple[CostOf, str]:
    if callable(cost):
        return cost, getattr(cost, "__name__", "own")
    if cost == "latency":
        from secateur.deciding.latency import measured_cost

        return measured_cost(graph), "latency"
    return cost_by(graph, cost), str(cost)


@dataclass(frozen=True)
class _Detail:
    channels: int
    saved: float
    floss: float
    stopped: bool


Details = dict[tuple[str, int], _Detail]


def _by_amount(
    graph: ChannelGraph, scores: Scores, found: Mapping[str, Amount], cost: CostOf
) -> tuple[list[Trial], Details]:
    trials, details, whole = [], {}, cost({})
    for name, amount in found.items():
        if amount.channels == 0:
            continue
        kept = kept_after(graph.units[name], scores.values[name], amount.channels)
        trials.append(Trial(name, amount.channels, kept))
        saved = whole - cost({name: kept})
        details[name, amount.channels] = _Detail(amount.channels, saved, amount.floss, amount.stopped)
    return trials, details


def _by_ratio(
    graph: ChannelGraph, scores: Scores, names: Sequence[str], ratios: Sequence[float], cost: CostOf
) -> tuple[list[Trial], Details]:
    trials, details, whole = [], {}, cost({})
    for name in names:
        unit = graph.units[name]
        for share in ratios:
            if not 0 < share < 1:
                raise DecideError(f"ratios are fractions removed, above 0 and below 1; got {share}")
            removed = min(unit.width - unit.granule, unit.granule * round(share * unit.width / unit.granule))
            if removed <= 0 or (name, removed) in details:
                continue
            kept = kept_after(unit, scores.values[name], removed)
            saved = whole - cost({name: kept})
            trials.append(Trial(name, removed, kept))
            details[name, removed] = _Detail(removed, saved, saved / removed, False)
    return trials, details


def _ask(
    graph: ChannelGraph,
    trials: Sequence[Trial],
    holdout: Batches,
    measure: Callable[[nn.Module, Batches], float],
    cut: Cut,
    progress: Progress | None,
) -> tuple[Judged, list[Judged]]:
    """A user's own measure of the network with each unit's channels gone."""
    holdout = list(holdout) if iter(holdout) is holdout else holdout  # it is read once for each trial
    base = Judged(None, None, float(measure(graph.model, holdout)), 0)
    judged = []
    for i, trial in enumerate(trials):
        with cut(trial.unit, trial.kept):
            judged.append(Judged(None, None, float(measure(graph.model, holdout)), 0))
        if progress is not None:
            progress(i + 1, len(trials))
    return base, judged


def _row(trial: Trial, judged: Judged, detail: _Detail, graph: ChannelGraph) -> Tried:
    width = graph.units[trial.unit].width
    return Tried(
        trial.unit,
        detail.channels,
        width,
        judged.accuracy,
        judged.loss,
        judged.value,
        detail.saved,
        detail.floss,
        judged.images,
        detail.stopped,
    )


def _arrange(rows: Sequence[Tried], method: str, ratio: float) -> tuple[dict[str, Tried], dict[str, tuple[Tried, ...]]]:
    if method == "flops":
        return {row.unit: row for row in rows}, {}
    curves: dict[str, tuple[Tried, ...]] = {}
    for row in rows:
        curves[row.unit] = (*curves.get(row.unit, ()), row)
    chosen = {unit: min(curve, key=lambda row: abs(row.channels / row.width - ratio)) for unit, curve in curves.items()}
    return chosen, curves
