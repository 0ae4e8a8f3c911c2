"""Settings of a pruning run. Each is declared once: command line, checks, `config.json` and report follow from here.

Importing this module does not import torch, so that `--help` is quick.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from prunus.deciding.goal import Goal
from prunus.deciding.settings import SPLITS, SplitSettings, TimeSettings, check_split, ranking_settings
from prunus.errors import DecideError
from prunus.repairing.repair import REPAIRS
from prunus.scoring.metrics import METRICS, metric_of, metric_option, suited_metric
from prunus.tasks import DEFAULT_TASK, task_of
from prunus.tasks.quality import ACCURACY, QualityText
from prunus.timing.engines import default_engine
from prunus.train.settings import DEFAULT_PRESET, FineTuning, preset_of
from prunus.train.trackers import TrackerSettings
from prunus.util.options import check, option, parse_memory, plain
from prunus.util.user_code import cannot_take

if TYPE_CHECKING:
    from prunus.graph.channel_graph import ChannelGraph
    from prunus.timing.latency_table import LatencyTable


@dataclass(frozen=True)
class Settings(TrackerSettings, FineTuning, SplitSettings, TimeSettings, Goal):
    """How to prune: a goal (see `Goal`), where time is measured (`TimeSettings`), how the cut is split among units
    (`SplitSettings`), how the network is retrained (`FineTuning`), a tracker (`TrackerSettings`), and the following.

    Attributes:
        metric: A name, with options if wanted ("gsd:ridge=0"), or a user-provided function of `Channels`. None: the
            one that suits the split.
        mimic: Steps of `prunus.mimic` in each round, between repair and retraining.
        epochs: Epochs of retraining in each round. 0, the default, is no retraining, and no other setting starts it.
        fit: User-provided retraining, fit(model, train, holdout) -> new model.
        evaluate: User-provided evaluation, evaluate(model, loader) -> Evaluation, whose quality may be any figure where
            higher is better. Both decide everywhere, whatever the task is.
    """

    round_to: int | None = option(
        None,
        "Keep widths that are multiples of this; 1 allows any. By default those that a latency table finds fast, or "
        "else multiples of 8, or of 4 in units of less than 32 channels",
        group="Layers",
        least=1,
    )
    streams: Literal["select", "coupled"] | None = option(
        None,
        "Residual channels: each reader selects its own (select), or all drop them together (coupled). By default "
        "select, and for a latency target the better of both",
        group="Channels",
        choices=("select", "coupled"),
    )
    norms: Literal["whole", "compensated"] = option(
        "whole",
        "Norms and means over channels keep all of them (whole), or count removed ones as zeros (compensated)",
        group="Channels",
        choices=("whole", "compensated"),
    )
    attention: Literal["heads", "dims"] = option(
        "heads",
        "What attention loses: whole heads (heads), or dimensions inside all heads (dims)",
        group="Channels",
        choices=("heads", "dims"),
    )
    metric: str | Callable[..., Any] | None = metric_option(
        None,
        f"Metric that scores channels: {', '.join(METRICS)}; chosen to suit the split by default. Options may follow: "
        "gsd:ridge=0",
        user_code=True,
    )
    metric_options: dict[str, Any] = option({}, "Options of the metric, such as ridge", group="Channels", hidden=True)
    num_images: int | None = option(
        None, "Score on this number of images, sampled again each round; all by default", group="Channels", least=1
    )
    repair: str = option(
        "solve", f"Repair after each cut: {', '.join(REPAIRS)}", group="Repair", everyday=True, choices=REPAIRS
    )
    num_repair_images: int | None = option(
        None,
        "Unlabelled training images for the repair; 500, or 2,000 small ones without retraining",
        group="Repair",
        least=1,
    )
    memory: str | None = option(
        None,
        "Memory for the repair, such as 4G; half of the machine's by default. What does not fit goes to a file or is "
        "computed again",
        group="Repair",
        valid=parse_memory,
    )
    mimic: int = option(
        0,
        "Steps of training, after the repair, to compute what the original network computes; without labels",
        group="Repair",
        least=0,
    )
    epochs: int = option(0, "Epochs of retraining in each round", group="Retraining", everyday=True, least=0)
    last_epochs: int | None = option(
        None, "Epochs of the round that meets the goal, if different", group="Retraining", least=0
    )
    preset: str = option(
        DEFAULT_PRESET, "Schedule of the retraining, as in `prunus train`", group="Retraining", valid=preset_of
    )
    lr: float | None = option(
        None,
        "Learning rate; by default a short test chooses: at most 0.05, after the repair solve at most 0.01",
        group="Retraining",
        above=0,
    )
    distill: bool = option(True, "Use the unpruned network as a teacher when retraining", group="Retraining")
    fit: Callable[..., Any] | None = option(
        None, "User-provided retraining", group="Retraining", hidden=True, user_code=True
    )
    evaluate: Callable[..., Any] | None = option(
        None, "User-provided evaluation", group="Goal", hidden=True, user_code=True
    )

    @classmethod
    def paper(cls, data: str = "cifar10", model: str = "", **changes: Any) -> Settings:
        """The paper's settings for a data set and network, to the letter; see `prunus.run.paper`."""
        from prunus.run.paper import paper_settings

        return paper_settings(cls(**changes), data, model, given=changes.keys())

    @property
    def ranks(self) -> bool:
        """Whether held-out images rank the units, so that there is a sensitivity."""
        return self.ratio is None and SPLITS.find(self.split or "algorithm1").ranks

    @property
    def for_time(self) -> bool:
        """Whether the goal is time: a speed-up, or the fastest network that loses no more than max_drop."""
        return self.speedup is not None or (self.given == ["max_drop"] and self.searches)

    @property
    def needs_times(self) -> bool:
        """Whether the run needs the times of layers."""
        return self.for_time or self.cost == "latency"

    @property
    def searches(self) -> bool:
        """Whether cuts are tried until the largest one is found that loses no more than max_drop.

        Where units are ranked or the network is retrained, max_drop is met round by round instead, as in the paper.
        """
        return self.max_drop is not None and self.decides_once

    @property
    def decides_once(self) -> bool:
        """Whether a plan needs no ranking of units and no retraining, in one round: so several can be tried."""
        if self.retrains_at_all or self.rounds not in (None, 1):
            return False
        if self.split is not None:
            return not self.ranks
        return self.ratio is not None or not (ranking_settings(self) or self.alpha != DEFAULT_ALPHA)

    @property
    def retrains(self) -> bool:
        """Whether rounds before the last one retrain, with prunus's loop or a user-provided one."""
        return self.fit is not None or self.epochs > 0

    @property
    def retrains_at_all(self) -> bool:
        """Whether any round retrains."""
        return self.retrains or bool(self.last_epochs)

    @property
    def has_teacher(self) -> bool:
        """Whether the unpruned network is the teacher of a retraining."""
        return self.distill and self.fit is None

    @property
    def solve_only(self) -> bool:
        """Whether quality is recovered by the repair `solve` alone, without any retraining."""
        return self.repair == "solve" and not self.retrains_at_all

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without the tracker, which changes nothing: a run may continue with another."""
        return {name: value for name, value in plain(self).items() if name != "tracker"}


# Settings that are rarely worth changing. On the command line --set NAME=VALUE gives them: `--help` stays readable.
RARE = (
    *("alpha", "k", "exact", "whole_steps", "blocks", "cost", "measure", "trial_ratio", "trials", "norms", "attention"),
    *("num_repair_images", "memory", "last_epochs", "preset", "tracker"),
    *("ema", "temperature", "distill_weight", "views", "mixed_precision"),
)


def check_settings(settings: Settings) -> None:
    """Refuse at once what would otherwise fail after a long time: after scoring, or when retraining begins."""
    check(settings, DecideError)
    for name, arguments in {"fit": ("model", "train", "holdout"), "evaluate": ("model", "loader")}.items():
        function = getattr(settings, name)
        trouble = None if function is None else cannot_take(function, *arguments)
        if trouble:
            raise DecideError(f"your function {name} is called with ({', '.join(arguments)}), but: {trouble}")
    if settings.idle_without_teacher and not settings.has_teacher:
        raise DecideError(f"{settings.idle_without_teacher} does nothing without a teacher: give distill as well")
    idle = [f.name for f in fields(FineTuning) if getattr(settings, f.name) != f.default]
    if idle and not settings.retrains_at_all:
        raise DecideError(f"{idle[0]} does nothing without retraining: give epochs as well")
    check_split(settings, by_share=settings.ratio is not None)
    split = None if settings.split is None else SPLITS.find(settings.split)
    named = settings.metric if isinstance(settings.metric, str) else None
    if split is not None and split.needs_errors and named is not None and not metric_of(named).adds_up:
        adding = " or ".join(name for name in METRICS if METRICS[name].adds_up)
        raise DecideError(
            f'split "{split.name}" needs scores that are errors, and {named} gives none: use {adding}, or leave the '
            "metric out"
        )
    ends = [name for name in settings.given if name != "max_drop"]
    if settings.last_epochs is not None and not ends:
        raise DecideError(
            "last_epochs needs a goal in MACs, weights or time: with max_drop alone no round knows that it is the last"
        )
    if split is not None and not split.ranks and not ends and not settings.searches:
        raise DecideError(
            f'split "{split.name}" needs a target, speedup, macs, params or ratio: with retraining or rounds, max_drop '
            "alone is not enough"
        )
    preset_of(settings.preset, epochs=settings.epochs or None, lr=settings.lr)


# -- what suits a run where the user left it open

SPEEDUPS = (1.25, 1.5, 2.0, 3.0)  # of a curve
DEFAULT_DROP = 1.0  # points of quality that may be lost if no goal is given
DEFAULT_ALPHA = next(field.default for field in fields(SplitSettings) if field.name == "alpha")
SOME_IMAGES, MANY_IMAGES = 500, 2000  # for a repair
SMALL = 64 * 64  # pixels of an image


def within(drop: float, max_drop: float | None) -> bool:
    """Whether a loss of quality is allowed; one of exactly max_drop is, up to rounding."""
    return max_drop is None or drop <= max_drop + 1e-7


def with_goal(settings: Settings) -> Settings:
    """Settings with a goal: without one, the fastest network that loses at most one point.

    DecideError if the quality is not in per cent: what a point of it means is not known.
    """
    if settings.given:
        return settings
    if settings.evaluate is None or settings.task is not None:
        quality = ACCURACY if settings.task in (None, DEFAULT_TASK) else QualityText.of(task_of(settings.task))
        if quality.unit != "%":
            what = f"{quality.name} in {quality.unit}" if quality.unit else quality.name
            raise DecideError(
                f"give a goal: speedup, target, macs, params, ratio, or max_drop, the {what} that may be lost"
            )
    return replace(settings, max_drop=DEFAULT_DROP)


def goals_of(settings: Settings, speedups: Sequence[float]) -> list[Settings]:
    """Settings for each speed-up, in ascending order."""
    other = next(iter(settings.given), None)
    if other is not None:
        raise DecideError(f"the goals of a curve are its speed-ups: leave {other} out")
    listed: list[Any] = [speedups] if isinstance(speedups, numbers.Real) else list(speedups)
    odd = [each for each in listed if isinstance(each, bool) or not isinstance(each, numbers.Real)]
    odd += [each for each in listed if each not in odd and not 1 < each < math.inf]
    if odd or not listed:
        got = repr(odd[0]) if odd else "none"
        raise DecideError(f"speedups are one or more numbers above 1, such as [1.25, 1.5, 2]; got {got}")
    return [replace(settings, speedup=each) for each in sorted({float(each) for each in listed})]


def fill_defaults(
    settings: Settings, graph: ChannelGraph, pixels: int = 0, table: LatencyTable | None = None
) -> Settings:
    """Settings with split, metric, alpha, trials and number of repair images filled in (docs/repair.md).

    If a solve repairs, the cut is split by the errors that it cannot undo, and so it is for a latency target. If
    nothing follows the solve, units that are ranked are ranked after their repair, and the repair sees more images if
    they have few `pixels`. The `table` of the layers' times decides engine, batch and threads.
    """
    from prunus.deciding.splits import check_reach, first_alpha  # torch is needed from here on

    if table is not None:
        how = table.measured_with
        if settings.latency_table is not None and settings.engine not in (None, how.engine):
            raise DecideError(
                f"the latency table {settings.latency_table} is of the engine {how.engine}, not {settings.engine}: "
                "leave engine, batch and threads out, the table has them"
            )
        settings = replace(settings, engine=how.engine, batch=how.batch, threads=how.threads)
        if settings.round_to is None:  # the table says which widths are fast
            settings = replace(settings, round_to=1)
    settings = replace(settings, engine=settings.engine or default_engine())
    searches = settings.searches  # as the user left it
    if settings.round_to is None:
        try:
            check_reach(graph, settings.budget(graph, table), settings)
        except DecideError:  # wide steps end too early for this goal; the next check reports any other problem
            settings = replace(settings, round_to=1)
    settings = replace(settings, distill=settings.has_teacher and settings.retrains_at_all)
    settings = split_for_solve(settings, graph, table)
    if settings.split is None:
        open_metric = settings.metric is None or (
            isinstance(settings.metric, str) and metric_of(settings.metric).adds_up
        )
        if settings.for_time and open_metric and not ranking_settings(settings):
            split = "least_error"
        else:
            split = "uniform" if settings.ratio is not None or searches else "algorithm1"
        settings = replace(settings, split=split)
    has_streams = any(unit.kind == "stream" for unit in graph.units.values())
    if not (settings.for_time and has_streams and not settings.ranks):  # both ways are tried if this stays None
        settings = replace(settings, streams=settings.streams or graph.streams)
    if settings.metric is None:
        suits = SPLITS.find("least_error" if settings.solve_only else settings.split or "").metric
        settings = replace(settings, metric=suited_metric(suits, settings.task))
    if settings.rounds is not None and settings.split == "algorithm1":
        budget = settings.budget(graph, table)
        if budget.left is not None:
            settings = replace(settings, alpha=round(first_alpha(graph, budget, settings), 4))
    if settings.repair == "none":
        return settings
    count = settings.num_repair_images
    if count is None:  # large images take long
        count = MANY_IMAGES if settings.solve_only and pixels <= SMALL else SOME_IMAGES
    trials = settings.trials or ("repaired" if settings.solve_only else "cut")
    return replace(settings, trials=trials, num_repair_images=count)


def split_for_solve(settings: Settings, graph: ChannelGraph, table: LatencyTable | None = None) -> Settings:
    """If a solve repairs, split the cut so that the total error after it is smallest, with and without retraining.

    Errors count by what they do to the network's outputs, so units inside blocks and readers of streams are comparable,
    and both are pruned. A metric whose scores are not errors cannot compare them. Then, if the solve is all that
    follows, private units lose the same share, as long as they can meet the target: channels inside blocks can be
    rebuilt from their neighbours, channels that readers of a stream drop, much less. Explicit choices of the user are
    respected.
    """
    from prunus.deciding.splits import check_reach
    from prunus.deciding.widths import candidates

    given = settings.only or settings.rounds or settings.ratio or settings.split
    if settings.repair != "solve" or given or ranking_settings(settings):
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
        budget = chosen.budget(graph, table)
        check_reach(graph, budget, chosen)
    except DecideError:  # no such units, too few of them, or a goal without a target
        return settings
    return chosen if budget.left is not None or chosen.searches else settings
