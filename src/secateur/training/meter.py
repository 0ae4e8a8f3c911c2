"""Running loss and accuracy of an epoch, and the report that a progress bar shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.base.progress import Show
from secateur.errors import RunError


class DivergedError(RunError):
    """The training loss is no longer finite."""


@dataclass(frozen=True)
class StepReport:
    """Position of a training run. Loss and accuracy are means over the epoch so far, on this process's batches."""

    epoch: int  # from 1
    epochs: int
    step: int  # from 1, within the epoch
    steps: int
    loss: float
    accuracy: float
    images_per_second: float
    seconds_left: float


def steps_of_epochs(show: Show, phase: str = "train") -> Callable[[StepReport], None]:
    """For `secateur.base.progress.shown`: one phase for all epochs."""

    def report(news: StepReport) -> None:
        note = f"loss {news.loss:.3f}, {100 * news.accuracy:.1f}%, {news.images_per_second:,.0f} images/s"
        done, total = (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps
        show(phase, done, total, f"epoch {news.epoch}/{news.epochs}, {note}")

    return report


class Meter:
    """Sums on the device. Reading them makes the CPU wait for an accelerator, so they are read only now and then."""

    def __init__(self, device: torch.device) -> None:
        kind = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self._sums = torch.zeros(2, dtype=kind, device=device)  # loss, hits
        self.num_images = 0
        self._start = time.perf_counter()

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Count one step: mean loss (0-d), logits [N, K], labels [N]."""
        hits = (logits.detach().argmax(1) == labels).sum()
        self._sums += torch.stack((loss.detach() * len(labels), hits))
        self.num_images += len(labels)

    @property
    def seconds(self) -> float:
        """Seconds since the start of the epoch."""
        return time.perf_counter() - self._start

    def totals(self) -> Tensor:
        """[loss sum, hits, images] of this process, to be summed over processes."""
        return torch.cat((self._sums, self._sums.new_tensor([self.num_images])))

    def means(self, where: str) -> tuple[float, float]:
        """(loss, accuracy) so far; DivergedError if the loss is not finite."""
        loss, hits = self._sums.tolist()
        return checked(loss / self.num_images, where), hits / self.num_images


def checked(loss: float, where: str) -> float:
    """`loss`; DivergedError if the training has diverged."""
    if not abs(loss) < float("inf"):  # NaN compares false as well
        raise DivergedError(
            f"the training loss became {loss} in {where}: the run has diverged. A lower learning rate or a warm-up "
            "usually helps. Check the images for NaN, and try without mixed precision"
        )
    return loss
