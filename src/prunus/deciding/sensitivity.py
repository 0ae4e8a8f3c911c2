"""FLOP-normalised sensitivity analysis (Algorithm 1 of the paper), and the ratio-based one of Li et al.

Each unit loses its n_l weakest channels, which save the same cost in every unit. The held-out accuracy without
retraining shows how much that hurts. By default units race (`prunus.deciding.trials`): the most informative images come
first, until the k best units are known.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prunus.deciding.costs import cost_function, name_of, widths_of
from prunus.deciding.settings import RankSettings
from prunus.deciding.trials import run_trials
from prunus.deciding.widths import Cutter, WidthLimits, amounts, candidates, check_patterns, scored
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.scoring.scores import Scores
from prunus.tasks import task_of
from prunus.tasks.partial_forward import Cut, cut_by_zeroing
from prunus.util.batches import Batches, check_batches
from prunus.util.options import check, replaced
from prunus.util.progress import Progress, shown, steps
from prunus.util.text import short_table

logger = logging.getLogger(__name__)

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


class NothingToLoseError(DecideError):
    """Every unit is at its floor, or alpha asks for less than a granule of each."""


@dataclass(frozen=True)
class TrialRow:
    """One unit without some of its channels, not retrained. Accuracy is a fraction of 1; a higher value is better."""

    unit: str
    channels: int  # number of channels removed
    width: int
    accuracy: float | None  # the quality of the task; None for a user-provided measure
    loss: float | None
    value: float  # units are ranked by it: accuracy, minus the loss, or a user-provided measure
    saved: float  # cost saved, in the unit of `cost`
    floss: float  # cost saved per channel
    num_images: int  # held-out images that it was tried on
    stopped: bool = False  # the floor kept it from saving as much as the others


@dataclass(frozen=True, repr=False)
class Sensitivity:
    """How much the network suffers when each unit loses channels.

    Attributes:
        split: "algorithm1" or "ratio".
        tried: Unit -> the result with n_l channels removed, or at the ratio that units are ranked by.
        curves: Of the split "ratio": the results at all ratios.
        repair: How each unit was repaired before it was evaluated.
        unit: Of the measure; "%": values are fractions of 1.
        left_out: Units that were not tried, because n_l channels of them are none: they are at their floor, or n_l
            rounds to 0.
    """

    split: str
    measure: str
    cost: str
    alpha: float | None
    base_accuracy: float | None
    base_loss: float | None
    base_value: float
    num_images: int
    tried: Mapping[str, TrialRow]
    curves: Mapping[str, tuple[TrialRow, ...]] = field(default_factory=dict)
    repair: str = "none"
    unit: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences on units that cannot lose n_l channels: their values are those of smaller cuts."""
        stopped = [f"{row.unit} ({row.channels} of {row.width})" for row in self.tried.values() if row.stopped]
        notes = []
        if stopped:
            notes.append(
                "tried with fewer than n_l channels, which save less than those of other units, because of the floor "
                f"(2 channels, 10%): {', '.join(stopped)}"
            )
        if self.left_out:
            notes.append(f"not tried, because they can lose no channel: {', '.join(self.left_out)}")
        return notes

    def ranked(self) -> list[str]:
        """Units, the least sensitive first; ties go to the lower loss, then to the larger saving."""
        rows = self.tried
        return sorted(rows, key=lambda n: (-rows[n].value, rows[n].loss or 0.0, -rows[n].saved, n))

    def __repr__(self) -> str:
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

    Under torchrun the units are shared among the processes, which must all hold the same held-out images.

    Args:
        graph: The graph of the network.
        scores: Scores of its channels; the lowest go first.
        holdout: Batches of held-out images with labels.
        settings: A `RankSettings`, or its fields by name (`changes`): split, alpha, k, measure, cost, exact, only,
            exclude, round_to, task, seed.

            split: "algorithm1" (default): unit l loses n_l = round(alpha * FLOSS_max / FLOSS_l) channels (Eqn. 3), so
            that all units save the same cost. "ratio": Li et al.; every unit loses each fraction in `ratios`, and units
            are ranked at `trial_ratio`.

            measure: "accuracy" (or what the task's quality is), "loss" (which still differs where accuracy is
            saturated), or a function of (model, holdout); higher is better.

            cost: what is saved: "macs", "params", "latency" (measured here, layer by layer) or a function of kept
            channels.

            exact: read all held-out images for all units. Otherwise units race, if the quality is a mean over images:
            with probability 0.95 (`confidence`) the k best found (a third of the units) are within 0.0005 (`tolerance`)
            of them.
        ratios: Fractions removed, for the split "ratio".
        repair: Evaluate each unit after its own repair: `prunus.repair_each(graph, images)`, or a function of
            (unit, kept channels) that returns a context in which graph.model is cut that way. By default units are
            evaluated before repair.
        widths: Unit -> width in the original network, if this network has been pruned before. A unit keeps at least 2
            channels and 10% of its original ones.
        progress: False shows nothing; a function is called with the steps done and their number.
        changes: Settings by name.
    """
    chosen: RankSettings = replaced(settings or RankSettings(), changes, DecideError)
    check(chosen, DecideError)
    split = chosen.split or "algorithm1"
    if split not in ("algorithm1", "ratio"):
        raise DecideError(f'sensitivity ranks units for the splits "algorithm1" and "ratio", not for {split!r}')
    cost = cost_function(graph, chosen.cost)
    cutter = Cutter(graph, scores, WidthLimits(chosen.round_to, widths or {}, widths_of(cost)))
    check_patterns(graph, chosen.exclude, chosen.only, widths or {})
    names = scored(graph, scores, candidates(graph, chosen.exclude, chosen.only))
    check_batches(holdout, "holdout")
    whole = cost({})  # a wrong cost is an error before the trials, which take long
    if split == "ratio":
        wrong = [ratio for ratio in ratios if not 0 < ratio < 1]
        if wrong:
            raise DecideError(f"ratios are fractions removed, above 0 and below 1; got {wrong[0]}")
        able = {}
        trials = []
        for name in names:
            width, step = graph.units[name].width, graph.units[name].granule
            counts = [min(width - step, step * round(ratio * width / step)) for ratio in ratios]
            trials += [(name, cutter.keep(name, count)) for count in dict.fromkeys(counts) if count > 0]
    else:
        able = amounts(cutter, names, alpha=chosen.alpha, cost=cost)
        trials = [(name, cutter.keep(name, one.channels)) for name, one in able.items() if one.channels]
    left_out = tuple(name for name in names if name not in dict(trials))
    if not trials:
        raise NothingToLoseError("no unit can lose a whole granule within its floor; lower round_to or raise alpha")
    with shown(progress, steps("sensitivity")) as report:
        base, *results = run_trials(graph, trials, holdout, chosen, repair or cut_by_zeroing(graph), report)
    curves: dict[str, tuple[TrialRow, ...]] = {}
    for (name, kept), result in zip(trials, results, strict=True):
        width, saved = graph.units[name].width, whole - cost({name: kept})
        row = TrialRow(
            unit=name,
            channels=width - len(kept),
            width=width,
            accuracy=result.quality,
            loss=result.loss,
            value=result.value,
            saved=saved,
            floss=able[name].floss if name in able else saved / (width - len(kept)),
            num_images=result.num_images,
            stopped=name in able and able[name].stopped,
        )
        curves[name] = (*curves.get(name, ()), row)
    near, unit = chosen.trial_ratio, ""
    if callable(chosen.measure):
        measure = str(getattr(chosen.measure, "__name__", "own"))
    elif chosen.measure == "accuracy":
        quality = task_of(chosen.task).measured
        measure, unit = quality.name, quality.unit
    else:
        measure = "loss"
    measured = Sensitivity(
        split=split,
        measure=measure,
        cost=name_of(chosen.cost),
        alpha=chosen.alpha if split == "algorithm1" else None,
        base_accuracy=base.quality,
        base_loss=base.loss,
        base_value=base.value,
        num_images=base.num_images,
        tried={name: min(rows, key=lambda r: abs(r.channels / r.width - near)) for name, rows in curves.items()},
        curves=curves if split == "ratio" else {},
        repair="none" if repair is None else str(getattr(repair, "how", "own")),
        unit=unit,
        left_out=left_out,
    )
    for note in measured.notes:
        logger.warning("%s", note)
    return measured
