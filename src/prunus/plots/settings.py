"""Settings of the figures of channels, from which the options of `prunus show` are made. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from prunus.errors import DataError
from prunus.scoring.metrics import check_metric, metric_option
from prunus.util.options import check, names, option


@dataclass(frozen=True)
class FigureSettings:
    """What both figures need: a unit, and images to score on."""

    layer: str | None = option(
        None, "Unit or layer, as listed by `prunus inspect`; the second unit by default", group="Channels"
    )
    num_images: int | None = option(2000, "Number of training images to score on", group="Channels", least=1)
    seed: int = option(0, "Seed of the sample to score on and of held-out images", group="Output", least=0)

    def check(self) -> None:
        check(self, DataError)


@dataclass(frozen=True)
class SeparationSettings(FigureSettings):
    """Which two channels are compared, and on how many images."""

    metric: str = metric_option("gsd", "Metric that ranks the channels")
    weak: int | None = option(None, "Use this channel as the weak one", group="Channels", least=0)
    strong: int | None = option(None, "Use this channel as the strong one", group="Channels", least=0)
    each: int = option(4, "Number of images of each class that are shown with their maps", group="Images", least=1)
    points: int = option(
        100, "Number of images of each class for the projections, half of which are drawn", group="Images", least=2
    )

    def check(self) -> None:
        super().check()
        if self.points < self.each:
            raise DataError(f"points must be at least each ({self.each}), got {self.points}")


@dataclass(frozen=True)
class ChannelsFigureSettings(FigureSettings):
    """Which metrics are compared, and on which images."""

    by: str = metric_option("gsd", "Metric that finds the weakest and the strongest channel")
    metrics: tuple[str, ...] = option(
        ("l1", "bn_scale", "fpgm", "di", "gsd"),  # the columns of the paper's Fig. 3
        "Average over the strongest channels by each of these metrics; l1,bn_scale,fpgm,di,gsd by default",
        group="Channels",
        parse=names,
        valid=check_metric,
    )
    top: int = option(10, "Number of strongest channels in an average", group="Channels", least=1)
    skip: int = option(0, "Skip this number of images of each class", group="Images", least=0)
