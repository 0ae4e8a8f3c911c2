"""Settings of the effectiveness study, from which the options of `secateur study effectiveness` are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from secateur.base.options import check, option
from secateur.base.parsing import names, numbers
from secateur.errors import DecideError
from secateur.measuring.task_setting import task_option
from secateur.measuring.tasks import Task
from secateur.repairing.methods import REPAIRS
from secateur.training.presets import preset_of

Units = Literal["inner", "all"]


@dataclass(frozen=True)
class EffectivenessSettings:
    """How channels are scored and removed, and how accuracy is recovered.

    metrics: names, with options if needed ("gsd:ridge=0.5"), your own functions, or "all".
    ratios: fractions removed of every unit. The unpruned network (ratio 0) is always measured.
    The seeds are seed, seed + 1, ..., one for each of num_seeds samples.
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
    units: Units = option(
        "inner",
        "Units to prune: the inner channels of residual blocks (inner), or the block inputs too (all)",
        group="Channels",
        choices=("inner", "all"),
    )
    streams: Literal["select", "coupled"] = option(
        "select",
        "Residual channels: each reader selects its own (select), or all drop them together (coupled)",
        group="Channels",
        choices=("select", "coupled"),
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
    memory_gib: float = option(2.0, "Memory for whole feature maps in GiB", group="Channels", above=0)
    num_seeds: int = option(
        1, "Number of samples of images; with several, the table has standard deviations", group="Channels", least=1
    )
    repair: str = option(
        "none",
        f"Also measure after a repair: {', '.join(REPAIRS)}",
        group="Repair",
        choices=REPAIRS,
    )
    num_repair_images: int = option(500, "Number of training images for the repair", group="Repair", least=1)
    epochs: int = option(0, "Also measure after this number of epochs of retraining", group="Retraining", least=0)
    preset: str = option("effectiveness", "Schedule of the retraining, as in `secateur train`", group="Retraining")
    lr: float | None = option(None, "Learning rate instead of the preset's", group="Retraining", above=0)
    task: str | Task | None = task_option()
    seed: int = option(0, "Seed of samples, held-out images and order", group="Output", least=0)

    @property
    def seeds(self) -> range:
        """The seeds of all samples."""
        return range(self.seed, self.seed + self.num_seeds)

    def check(self) -> None:
        """Raise DecideError at once for what would otherwise fail after hours."""
        check(self, DecideError)
        if not self.ratios or not all(0 <= ratio < 1 for ratio in self.ratios):
            raise DecideError(f"ratios must be fractions removed, at least 0 and below 1; got {list(self.ratios)}")
        if self.epochs:
            preset_of(self.preset, epochs=self.epochs, lr=self.lr)
