"""The training loop: read `_train_one_epoch` first."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prunus.errors import RunError
from prunus.tasks import Quality
from prunus.tasks.evaluate import Evaluation, image_values, outputs_for, too_good, unpack_for
from prunus.tasks.evaluate import evaluate as measure
from prunus.tasks.quality import QualityText
from prunus.train import setup
from prunus.train.checkpoint import BestEpoch, Checkpoint, Epoch
from prunus.train.settings import TrainingSettings
from prunus.train.setup import TrainingRun, example_of, prepare, set_epoch
from prunus.train.sparsity import SoftFilters
from prunus.train.trackers import epoch_figures, tracking
from prunus.util.batches import Batches, call, count_images, move, to_device
from prunus.util.options import check, plain, replaced
from prunus.util.processes import accelerating
from prunus.util.progress import PhaseProgress, shown
from prunus.util.state import generators_kept, reseed
from prunus.util.text import count

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_REPORTS = 0.5


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
    quality: float | None  # None if it is no mean over images
    images_per_second: float
    seconds_left: float


def steps_of_epochs(show: PhaseProgress, phase: str = "train") -> Callable[[StepReport], None]:
    """For `prunus.util.progress.shown`: one phase for all epochs."""

    def report(news: StepReport) -> None:
        quality = "" if news.quality is None else f" {100 * news.quality:.1f}%,"
        note = f"loss {news.loss:.3f},{quality} {news.images_per_second:,.0f} images/s"
        done, total = (news.epoch - 1) * news.steps + news.step, news.epochs * news.steps
        show(phase, done, total, f"epoch {news.epoch}/{news.epochs}, {note}")

    return report


Evaluate = Callable[[nn.Module, Batches], Evaluation]
OnStep = Callable[[StepReport], None]


@dataclass(frozen=True, repr=False)
class Fitted:
    """A trained network and the history of its training.

    Attributes:
        model: The trained network.
        history: What each epoch measured.
        kept: With keep_best, the number of the epoch whose weights `model` has; 0: as it was given.
    """

    model: nn.Module
    history: tuple[Epoch, ...]
    kept: int | None = None

    def __repr__(self) -> str:
        last = self.history[-1] if self.history else None
        loss = "" if last is None else f", loss {last.loss:.4g}"
        held = "" if last is None or last.holdout is None else f", held-out quality {last.holdout.quality:.4g}"
        kept = "" if self.kept is None else f", weights of epoch {self.kept} kept"
        return f"Fitted({type(self.model).__name__}: {count(len(self.history), 'epoch')}{loss}{held}{kept})"


def fit(
    model: nn.Module,
    train: Batches,
    holdout: Batches | None = None,
    settings: TrainingSettings | None = None,
    *,
    teacher: nn.Module | None = None,
    checkpoint_dir: str | Path | None = None,
    evaluate: Evaluate | None = None,
    progress: OnStep | bool | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    **changes: Any,
) -> Fitted:
    """Train a copy of `model` on the batches of `train` and return it; `model` itself is not changed.

        fitted = prunus.fit(model, train, holdout, preset="cifar", epochs=50, seed=1)

    Args:
        model: The network to train.
        train: Batches (images, labels), or dicts, or what the task reads.
        holdout: Batches for `evaluate(model, holdout)`, which is called after each epoch.
        settings: A `TrainingSettings`.
        teacher: The network to distil from, usually the unpruned one.
        checkpoint_dir: Folder for the state after each epoch and for metrics.jsonl. The same call continues a killed
            run, and its result is bit for bit that of an uninterrupted run (one process, CPU). A checkpoint of a run
            with other weights or settings is refused.
        evaluate: A function that returns an `Evaluation`; by default the task's quality.
        progress: False, or a function that is called about twice a second with a `StepReport`.
        on_epoch: Called after each epoch.
        changes: Fields of `TrainingSettings` by name, such as preset, epochs, lr, seed, mixed_precision, keep_best.

    Under torchrun every process makes this call with the same arguments, and all get the same network.
    """
    chosen: TrainingSettings = replaced(settings or TrainingSettings(), changes, RunError)
    check(chosen, RunError)
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    display = shown(progress, steps_of_epochs)
    with accelerating(chosen.device, chosen.mixed_precision) as accelerator, generators_kept(), display as report:
        run = prepare(model, train, teacher, chosen, accelerator)
        first = _evaluate_together(run, holdout, evaluate) if chosen.keep_best else None
        best = None if first is None else BestEpoch(run.result, first)
        identity = {} if folder is None else setup.identity_of(run, model, teacher)
        checkpoint = Checkpoint(folder, identity, run, best)
        history = checkpoint.resume()
        soft = SoftFilters(run.model, example_of(train, run), chosen.soft_prune) if chosen.soft_prune else None
        tracker = chosen.tracker if accelerator.is_main_process else None
        with tracking(tracker, folder, plain(chosen), len(history)) as track:
            for epoch in range(len(history), run.schedule.epochs):
                reseed(chosen.seed, chosen.drawn_epoch(epoch), accelerator.process_index)
                set_epoch(train, chosen.drawn_epoch(epoch))
                trained = _train_one_epoch(run, epoch, report)
                if soft is not None:
                    soft.zero()
                history.append(dataclasses.replace(trained, holdout=_evaluate_together(run, holdout, evaluate)))
                logger.info("%s", history[-1])
                if best is not None:
                    best.see(history[-1])
                checkpoint.save(history)
                track(epoch_figures(history[-1], QualityText.of(run.task)), history[-1].number)
                if on_epoch is not None:
                    on_epoch(history[-1])
        accelerator.wait_for_everyone()
    last = history[-1].holdout if history and run.task.chance is not None else None
    if last is not None and (warning := too_good(last)):
        logger.warning("%s", warning)
    if best is not None:
        best.restore()
    return Fitted(setup.returned_like(run, model), tuple(history), None if best is None else best.number)


class Meter:
    """Sums on the device. Reading them makes the CPU wait for an accelerator, so they are read only now and then.

    The quality is measured during training only if it is per cent that are means over images.
    """

    def __init__(self, device: torch.device, quality: Quality) -> None:
        self._quality, self.measures = quality, quality.is_mean and quality.unit == "%"
        kind = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self._sums = torch.zeros(2, dtype=kind, device=device)  # loss, quality
        self.num_images = 0
        self._start = time.perf_counter()

    def add(self, loss: Tensor, outputs: Any, labels: Any, count: int) -> None:
        """Count one step of `count` images: mean loss (0-d), outputs and labels."""
        quality = torch.zeros_like(loss)
        if self.measures:
            with torch.no_grad():
                quality = image_values(self._quality, outputs, labels, count).sum()
        self._sums += torch.stack((loss.detach() * count, quality))
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


def _train_one_epoch(run: TrainingRun, epoch: int, progress: OnStep) -> Epoch:
    device, reported = run.accelerator.device, time.perf_counter()
    where, rate = f"epoch {epoch + 1}", 0.0
    run.train_mode()
    meter = Meter(device, run.task.measured)
    for step, batch in enumerate(islice(run.batches, run.steps)):
        images, labels_here = unpack_for(run.task, batch, step)
        images, labels = move(images, device, run.settings.channels_last), to_device(labels_here, device)
        rate = run.schedule.lr_at(epoch + (step + 0.5) / run.steps)
        for group in run.sgd.param_groups:
            group["lr"] = rate
        outputs = outputs_for(run.task, _outputs(run, images, f"{where}, step {step + 1}"), labels_here, step)
        loss = run.objective(outputs, images, labels)
        run.optimizer.zero_grad()
        with warnings.catch_warnings():
            # Of a weight [N, 1, ...] both layouts are the same bytes, so the strides of its gradient do not matter.
            warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
            run.accelerator.backward(loss)
        run.optimizer.step()
        if run.average is not None:
            run.average.step(epoch * run.steps + step)
        meter.add(loss, outputs, labels, count_images(images))
        if time.perf_counter() - reported > SECONDS_BETWEEN_REPORTS or step + 1 == run.steps:
            reported = time.perf_counter()
            mean_loss, quality = meter.means(f"{where}, step {step + 1}")
            seconds_per_step = (run.seconds + meter.seconds) / (run.steps_done + step + 1)
            left = (run.schedule.epochs - epoch) * run.steps - step - 1
            speed = meter.num_images * run.accelerator.num_processes / meter.seconds
            position = (epoch + 1, run.schedule.epochs, step + 1, run.steps)
            progress(StepReport(*position, mean_loss, quality, speed, left * seconds_per_step))
    if run.accelerator.num_processes > 1:  # each process has seen other batches: all take the first one's statistics
        from accelerate.utils import broadcast

        for buffer in (*run.model.buffers(), *run.result.buffers()):
            buffer.copy_(broadcast(buffer))
    if meter.num_images == 0:
        raise RunError(f"the loader gave no batches in {where}, although its length is {run.steps}")
    total_loss, total_quality, num_images = run.accelerator.reduce(meter.totals(), reduction="sum").tolist()
    run.steps_done, run.seconds = run.steps_done + run.steps, run.seconds + meter.seconds
    loss_mean = checked(total_loss / num_images, where)
    quality_mean = total_quality / num_images if meter.measures else None
    return Epoch(epoch + 1, rate, loss_mean, quality_mean, None, meter.seconds, num_images / meter.seconds)


def _outputs(run: TrainingRun, images: Any, where: str) -> Any:
    """What the network computes; a batch norm that sees a single value per channel is explained."""
    try:
        return call(run.wrapped, images)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise RunError(
            f"{where}: a batch norm cannot be trained on a single image ({error}). Leave out the last, smaller batch "
            "(drop_last=True in a DataLoader), or change the batch size"
        ) from error


def _evaluate_together(run: TrainingRun, holdout: Batches | None, evaluate: Evaluate | None) -> Evaluation | None:
    """Each process evaluates its share; all get the result of the whole. None without held-out images."""
    if holdout is None:
        return None
    evaluate = evaluate or functools.partial(measure, task=run.task)
    if run.accelerator.num_processes == 1 or not run.task.measured.is_mean:  # only means can be merged from shares
        return evaluate(run.result, holdout)
    part = evaluate(run.result, setup.share_of(holdout, run.accelerator, training=False))
    shares = (part.quality, part.loss, 1.0, *part.details.values())
    mine = torch.tensor(shares, dtype=torch.float64, device=run.accelerator.device) * part.num_images
    quality, loss, total, *details = run.accelerator.reduce(mine, reduction="sum").tolist()
    means = {name: each / total for name, each in zip(part.details, details, strict=True)}
    return Evaluation(quality / total, loss / total, round(total), means)
