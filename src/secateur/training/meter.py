"""Running loss and quality of an epoch, and the report that a progress bar shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from secateur.base.progress import Show
from secateur.errors import RunError
from secateur.measuring.quality_sums import image_values
from secateur.measuring.tasks import Quality


class DivergedError(RunError):
    """The training loss is no longer finite."""


@dataclass(frozen=True)
class StepReport:
    """Position of a training run. Loss and quality are means over the epoch so far, on this process's batches."""

    epoch: int  # from 1
    epochs: int
    step: int  # from 1, within the epoch
    steps: int
    loss: float
    accuracy: float | None  # the quality of the task; None if it is no mean over images
    images_per_second: float
    seconds_left: float


def steps_of_epochs(show: Show, phase: str = "train") -> Callable[[StepReport], None]:
    """For `secateur.base.progress.shown`: one phase for all epochs."""

    def report(news: StepReport) -> None:
        quality = "" if news.accuracy is None else f" {100 * news.accuracy:.1f}%,"
        note = f"loss {news.loss:.3f},{quality} {news.images_per_second:,.0f} images/s"
        done, total = (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps
        show(phase, done, total, f"epoch {news.epoch}/{news.epochs}, {note}")

    return report


class Meter:
    """Sums on the device. Reading them makes the CPU wait for an accelerator, so they are read only now and then."""

    def __init__(self, device: torch.device, quality: Quality) -> None:
        self._quality = quality
        kind = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self._sums = torch.zeros(2, dtype=kind, device=device)  # loss, quality
        self.num_images = 0
        self._start = time.perf_counter()

    @property
    def measures(self) -> bool:
        """Whether the quality is measured during training: only per cent that are means over images."""
        return self._quality.is_mean and self._quality.unit == "%"

    def add(self, loss: Tensor, outputs: Any, labels: Any, count: int) -> None:
        """Count one step of `count` images: mean loss (0-d), outputs and labels."""
        found = torch.zeros_like(loss)
        if self.measures:
            with torch.no_grad():
                found = image_values(self._quality, outputs, labels, count).sum()
        self._sums += torch.stack((loss.detach() * count, found))
        self.num_images += count

    @property
    def seconds(self) -> float:
        """Seconds since the start of the epoch."""
        return time.perf_counter() - self._start

    def totals(self) -> Tensor:
        """[loss sum, quality sum, images] of this process, to be summed over processes."""
        return torch.cat((self._sums, self._sums.new_tensor([self.num_images])))

    def means(self, where: str) -> tuple[float, float | None]:
        """(loss, quality) so far; DivergedError if the loss is not finite."""
        loss, quality = self._sums.tolist()
        return checked(loss / self.num_images, where), quality / self.num_images if self.measures else None


def checked(loss: float, where: str) -> float:
    """`loss`; DivergedError if the training has diverged."""
    if not abs(loss) < float("inf"):  # NaN compares false as well
        raise DivergedError(
            f"the training loss became {loss} in {where}: the run has diverged. A lower learning rate or a warm-up "
            "usually helps. Check the images for NaN, and try without mixed precision"
        )
    return loss
