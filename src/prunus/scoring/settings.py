"""Settings of scoring, from which the options of `prunus inspect --scores` are made. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prunus.tasks import Task
from prunus.tasks.quality import task_option
from prunus.util.options import maps_memory, option

GIB = 1 << 30
TAPS = ("reader", "before_activation")
Where = Literal["reader", "before_activation"]


@dataclass(frozen=True)
class ScoreSettings:
    """The images that scores are computed on, and the tensors that are scored.

    Metrics that need whole feature maps (di, mmd, hrank, chip), the readers' inputs (rebuilt, thinet, cp) or more than
    one pass (nisp, dcp) use at most `num_map_images` images, because each image costs them time or memory.
    """

    num_images: int | None = option(
        None, "Number of images to score on, a stratified sample; all by default", group="Scoring", least=1
    )
    tap: Where = option(
        "reader", "Tensor to score: the readers' input (reader) or before_activation", group="Scoring", choices=TAPS
    )
    num_map_images: int | None = option(
        2000, "Number of images for metrics that need more than moments of activations", group="Scoring", least=1
    )
    memory: str = option("2G", "Memory for whole feature maps, such as 4G", group="Scoring", valid=maps_memory)
    seed: int | None = option(None, "Seed of the sample; a new sample each time if None", hidden=True)
    task: str | Task | None = task_option("Scoring")

    @property
    def sample_size(self) -> int | None:
        """Number of images for metrics for which an image is costly; None: all."""
        limits = [limit for limit in (self.num_images, self.num_map_images) if limit is not None]
        return min(limits, default=None)
