"""Settings of a pruning run. Each is declared once: command line, checks, `config.json` and report follow from here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from prunus.decide.candidates import candidates
from prunus.decide.goal import Goal
from prunus.decide.ranked_plan import check_reach, first_alpha
from prunus.decide.settings import SplitSettings, TimeSettings, check_split, ranking_settings
from prunus.decide.splits import SPLITS
from prunus.errors import DecideError
from prunus.graph.channel_graph import ChannelGraph
from prunus.repair.methods import REPAIRS
from prunus.score.metrics import METRICS, metric_of, metric_option, suited_metric
from prunus.timing.latency_table import LatencyTable
from prunus.train.settings import DEFAULT_PRESET, FineTuning, preset_of
from prunus.train.trackers import TrackerSettings
from prunus.util.options import check, default_of, option, plain
from prunus.util.processes import bytes_of_words
from prunus.util.user_code import cannot_take

DEFAULT_REPAIR = "solve"
# Whoever gives one of these asks for retraining:
RETRAINING = ("epochs", "last_epochs", "preset", "lr", "distill", "fit", *(field.name for field in fields(FineTuning)))


@dataclass(frozen=True)
class Settings(TrackerSettings, FineTuning, SplitSettings, TimeSettings, Goal):
    """How to prune: a goal (see `Goal`), where time is measured (`TimeSettings`), how the cut is split among units
    (`SplitSettings`), how it is retrained (`FineTuning`), a tracker (`TrackerSettings`), and the following.

    metric: a name, with options if wanted ("gsd:ridge=0"), or your own function of `Channels`. None: the one that suits
    the split.
    repair: None is `solve`. epochs: None is 0 if a solve repairs and no setting of the retraining is given, otherwise
    the preset's number. distill: None is True after a solve.
    fit: your own retraining, fit(model, train, holdout) -> new model. evaluate: your own evaluation,
    evaluate(model, loader) -> Accuracy, whose top1 may be any figure where higher is better. Both decide everywhere,
    whatever the task is.
    """

    metric: str | Callable[..., Any] | None = metric_option(
        None,
        f"Metric that scores channels: {', '.join(METRICS)}; chosen to suit the split by default. Options may follow: "
        "gsd:ridge=0",
        everyday=True,
        own=True,
    )
    metric_options: dict[str, Any] = option({}, "Options of the metric, such as ridge", group="Channels", hidden=True)
    num_images: int | None = option(
        None, "Score on this number of images, sampled again each round; all by default", group="Channels", least=1
    )
    streams: Literal["select", "coupled"] = option(
        "select",
        "Residual channels: each reader selects its own (select), or all drop them together (coupled)",
        group="Channels",
        choices=("select", "coupled"),
    )
    repair: str | None = option(
        None,
        f"Repair after each cut: {', '.join(REPAIRS)}; {DEFAULT_REPAIR} by default",
        group="Repair",
        everyday=True,
        choices=REPAIRS,
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
        valid=bytes_of_words,
    )
    epochs: int | None = option(
        None,
        "Epochs of retraining in each round; by default none after the repair solve, otherwise the preset's",
        group="Retraining",
        everyday=True,
        least=0,
    )
    last_epochs: int | None = option(
        None, "Epochs of the round that meets the goal, if different", group="Retraining", least=0
    )
    preset: str = option(DEFAULT_PRESET, "Schedule of the retraining, as in `prunus train`", group="Retraining")
    lr: float | None = option(
        None,
        "Learning rate; by default a short test chooses: at most 0.05, after the repair solve at most 0.01",
        group="Retraining",
        above=0,
    )
    distill: bool | None = option(
        None,
        f"Use the unpruned network as a teacher when retraining; by default after the repair {DEFAULT_REPAIR}",
        group="Retraining",
    )
    fit: Callable[..., Any] | None = option(None, "Your own retraining", group="Retraining", hidden=True, own=True)
    evaluate: Callable[..., Any] | None = option(None, "Your own evaluation", group="Goal", hidden=True, own=True)

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
    def needs_times(self) -> bool:
        """Whether the run needs the times of layers."""
        return self.speedup is not None or self.cost == "latency"

    @property
    def leaves_training_open(self) -> bool:
        """Whether nothing was said about retraining."""
        mine = {field.name: default_of(field) for field in fields(Settings) if field.name in RETRAINING}
        return all(getattr(self, name) == value for name, value in mine.items())

    @property
    def has_teacher(self) -> bool:
        """Whether the unpruned network is the teacher of a retraining."""
        repaired = (self.repair or DEFAULT_REPAIR) == DEFAULT_REPAIR
        return self.fit is None and (repaired if self.distill is None else self.distill)

    @property
    def retrains(self) -> bool:
        """Whether rounds before the last one retrain, with prunus's loop or the user's own."""
        return self.fit is not None or self.epochs != 0

    @property
    def solve_only(self) -> bool:
        """Whether accuracy is recovered by the repair `solve` alone, without any retraining."""
        return self.repair == "solve" and self.epochs == 0 and not self.last_epochs

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; without the tracker, which changes nothing: a run may continue with another."""
        return {name: value for name, value in plain(self).items() if name != "tracker"}


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
    check_split(settings, by_share=settings.ratio is not None)
    split = None if settings.split is None else SPLITS.find(settings.split)
    if split is not None and split.needs_errors and isinstance(settings.metric, str):
        adding = [name for name in METRICS if METRICS[name].adds_up]
        if not metric_of(settings.metric).adds_up:
            raise DecideError(
                f'split "{split.name}" needs scores that are errors, and {settings.metric} gives none: use '
                f"{' or '.join(adding)}, or leave the metric out"
            )
    counted = any(getattr(settings, name) is not None for name in ("target", "speedup", "macs", "params"))
    if settings.last_epochs is not None and not counted and settings.ratio is None:
        raise DecideError(
            "last_epochs needs a goal in MACs, weights or time: with max_drop alone no round knows that it is the last"
        )
    if split is not None and not split.ranks and not counted and settings.ratio is None:
        raise DecideError(
            f'split "{split.name}" needs a target, speedup, macs, params or ratio: max_drop alone is not enough'
        )
    preset_of(settings.preset, epochs=settings.epochs or None, lr=settings.lr)


# What suits a run where the user left it open.

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
