"""Settings of the timing study. The command line options of `secateur study timing` are made from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from secateur.base.options import check, option
from secateur.base.parsing import names
from secateur.errors import ScoreError
from secateur.scoring.metrics import check_metric_options, metric_of

TIMED_BY_LAYER = (
    "moments",
    "maps",
    "filters",
    "nothing",
)  # needs of metrics that score a layer from its maps or weights


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
    memory_gib: float = option(
        2.0, "Memory for feature maps in GiB, and the same again for matrices", group="Timing", above=0
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
        """Raise ScoreError for settings that cannot be timed."""
        check(self, ScoreError)
        for name in self.metrics:
            if metric_of(name).needs not in TIMED_BY_LAYER:
                raise ScoreError(f"{name} needs a pass through the whole network, so it has no time for a single layer")
            check_metric_options(name)
            if ":tap=" in name:
                raise ScoreError(f"{name}: the maps that enter a layer's readers are timed; leave tap out")
