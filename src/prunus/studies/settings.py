"""Settings of the studies, from which the options of `prunus study` are made. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from prunus.deciding.goal import Goal
from prunus.deciding.settings import StreamSettings
from prunus.errors import DecideError, ScoreError
from prunus.repairing.repair import REPAIRS
from prunus.run.settings import Settings, check_settings
from prunus.scoring.metrics import METRICS, check_metric_options, metric_of, metric_option
from prunus.tasks import Task, task_of
from prunus.tasks.quality import QualityText, task_option
from prunus.train.settings import preset_of
from prunus.util.options import check, maps_memory, names, numbers, option, plain


@dataclass(frozen=True)
class EffectivenessSettings(StreamSettings):
    """How channels are scored and removed, and how accuracy is recovered.

    metrics: names, with options if needed ("gsd:ridge=0.5"), your own functions, or "all".
    ratios: fractions removed of every unit. The unpruned network (ratio 0) is always measured.
    seeds: how many samples of images, with the seeds seed, seed + 1, ...
    """

    metrics: tuple[str | Callable[..., Any], ...] = option(
        ("all",),
        "Metrics to compare, separated by commas (gsd,l1,gsd:ridge=0.5); all by default",
        group="Channels",
        everyday=True,
        parse=names,
    )
    ratios: tuple[float, ...] = option(
        (0.1, 0.2, 0.3, 0.4, 0.5),
        "Fractions of channels to remove, separated by commas; 0.1,0.2,0.3,0.4,0.5 by default",
        group="Channels",
        everyday=True,
        parse=numbers,
    )
    units: Literal["inner", "all"] = option(
        "inner",
        "Units to prune: the inner channels of residual blocks (inner), or the block inputs too (all)",
        group="Channels",
        choices=("inner", "all"),
    )
    num_images: int | None = option(
        None, "Number of training images to score on; all by default", group="Channels", least=1
    )
    num_map_images: int = option(
        2000,
        "At most this number of images for metrics that need whole feature maps (di, mmd, hrank, chip), the readers' "
        "inputs (rebuilt, thinet, cp) or more than one pass (nisp, dcp)",
        group="Channels",
        least=1,
    )
    memory: str = option("2G", "Memory for whole feature maps, such as 4G", group="Channels", valid=maps_memory)
    seeds: int = option(
        1,
        "Number of seeds of samples, repairs and retrainings; with several, tables have means and standard errors",
        group="Channels",
        everyday=True,
        least=1,
    )
    repair: str = option("none", f"Also measure after a repair: {', '.join(REPAIRS)}", group="Repair", choices=REPAIRS)
    num_repair_images: int = option(500, "Number of training images for the repair", group="Repair", least=1)
    epochs: int = option(0, "Also measure after this number of epochs of retraining", group="Retraining", least=0)
    preset: str = option("effectiveness", "Schedule of the retraining, as in `prunus train`", group="Retraining")
    lr: float | None = option(None, "Learning rate instead of the preset's", group="Retraining", above=0)
    task: str | Task | None = task_option()
    seed: int = option(0, "Seed of samples, held-out images and order", group="Output", least=0)

    @property
    def each_seed(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    def check(self) -> None:
        """Raise DecideError at once for what would otherwise fail after hours."""
        check(self, DecideError)
        if not self.ratios or not all(0 <= ratio < 1 for ratio in self.ratios):
            raise DecideError(f"ratios must be fractions removed, at least 0 and below 1; got {list(self.ratios)}")
        if self.epochs:
            preset_of(self.preset, epochs=self.epochs, lr=self.lr)


# -- sensitivity

# Settings of a run that the study sets; the command line does not offer them.
DECIDED = (*(field.name for field in fields(Goal)), "rounds", "split")


def share_or_folder(text: str) -> float | str:
    """'0.31' -> 0.31; any other text is the path of a run."""
    try:
        return float(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class SensitivityStudySettings(Settings):
    """Where both arms start and end, and how they prune (see `Settings`). The study sets the goal and the split.

    start: the fraction of MACs that both arms start without, removed uniformly from the inner units and retrained; or
        the folder of a finished run on the same network.
    """

    start: float | str | Path = option(
        0.31,
        "Fraction of MACs that both arms start without, or the folder of a finished run; 0.31 by default",
        group="Goal",
        everyday=True,
        parse=share_or_folder,
    )
    end: float = option(
        0.56, "Fraction of MACs that both arms end without", group="Goal", everyday=True, above=0, below=1
    )
    iterations: int = option(5, "Number of iterations of pruning and retraining", group="Goal", everyday=True, least=1)
    metric: str | Callable[..., Any] | None = metric_option(
        "gsd",
        f"Metric that scores channels: {', '.join(METRICS)}. Options may follow: gsd:ridge=0",
        everyday=True,
        user_code=True,
    )
    repair: str = option(
        "none", f"Repair after each cut: {', '.join(REPAIRS)}", group="Repair", everyday=True, choices=REPAIRS
    )
    epochs: int = option(30, "Epochs of retraining in each iteration", group="Retraining", everyday=True, least=0)
    distill: bool = option(False, "Use the unpruned network as a teacher when retraining", group="Retraining")
    round_to: int | None = option(1, "Keep widths that are multiples of this", group="Layers", least=1)

    def check(self) -> None:
        given = [name for name in DECIDED if getattr(self, name) is not None]
        if given:
            raise DecideError(f"both arms go to `end` in equal iterations, each with its split; leave {given[0]} out")
        check(self, DecideError)
        check_settings(replace(self.run_settings(), target=self.end))  # the arms have goals in MACs
        if isinstance(self.start, float | int) and not 0 < self.start < self.end:
            raise DecideError(
                f"start and end are fractions of MACs removed, 0 < start < end < 1; got {self.start} and {self.end}"
            )

    @property
    def quality(self) -> QualityText:
        """How what is measured is written: the task's quality, or what a user-provided function returns."""
        return QualityText("quality") if self.evaluate is not None else QualityText.of(task_of(self.task))

    def run_settings(self) -> Settings:
        """The settings of the runs, without a goal."""
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON. alpha is left out: it is solved, and each row has its own."""
        data = {**plain(self), "start": self.start if isinstance(self.start, float | int) else str(self.start)}
        return {name: value for name, value in data.items() if name != "alpha"}


# -- timing

# What metrics need that score a layer from its maps or weights:
TIMED_BY_LAYER = ("moments", "maps", "filters", "nothing")


@dataclass(frozen=True)
class TimingSettings:
    """Which metrics are timed, on how many images, and how."""

    metrics: tuple[str, ...] = option(
        ("gsd", "di"),
        "Metrics to time, separated by commas (gsd,gsd:ridge=0); gsd,di by default",
        group="Timing",
        parse=names,
    )
    num_images: int = option(200, "Number of images to score on; the paper used 3,000", group="Timing", least=1)
    memory: str = option(
        "2G", "Memory for feature maps, such as 4G, and the same again for matrices", group="Timing", valid=maps_memory
    )
    inverse_channels: int = option(
        1, "Channels per layer timed for DI with an explicit inverse; 0: do not time it", group="Timing", least=0
    )
    clock: Literal["wall", "cpu"] = option(
        "wall",
        "wall time, or cpu: processor time of this process, for a machine that is busy",
        group="Timing",
        choices=("wall", "cpu"),
    )
    seed: int = option(0, "Seed of the sample of images", group="Output", least=0)

    def check(self) -> None:
        check(self, ScoreError)
        for name in self.metrics:
            if metric_of(name).needs not in TIMED_BY_LAYER:
                raise ScoreError(f"{name} needs a pass through the whole network, so it has no time for a single layer")
            check_metric_options(name)
            if ":tap=" in name:
                raise ScoreError(f"{name}: the maps that enter a layer's readers are timed; leave tap out")
